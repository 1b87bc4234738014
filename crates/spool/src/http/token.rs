//! The bearer token of the receiver. It is never printed.

use std::fmt;
use std::path::Path;

use super::HttpError;

/// Maximum length of a token. A longer file was likely named by mistake.
const MAX_LENGTH: usize = 16 * 1024;

/// A bearer token. `{:?}` does not show it.
///
/// ```
/// use spool::Token;
///
/// let token = Token::new("s3cret")?;
/// assert_eq!(format!("{token:?}"), "Token(***)");
/// # Ok::<(), spool::HttpError>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// Creates a token from text; white space around it is removed. Text that cannot be sent in a
    /// header is an error, which does not repeat the text.
    pub fn new(text: &str) -> Result<Self, HttpError> {
        let text = text.trim();
        let reason = if text.is_empty() {
            "the token is empty"
        } else if text.len() > MAX_LENGTH {
            "the token is too long"
        } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            "the token has white space, control characters or non-ASCII characters in it"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(HttpError::new(reason))
    }

    /// Reads a token from a file that holds nothing else.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, HttpError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|error| {
            HttpError::new(format!(
                "cannot read the token in {}: {error}",
                path.display()
            ))
        })?;
        Self::new(&text).map_err(|error| HttpError::new(format!("{}: {error}", path.display())))
    }

    /// Returns the token, for the request and for hiding it in responses.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_from_a_file_has_no_line_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "  s3cret\r\n").unwrap();
        assert_eq!(Token::read(&file).unwrap().expose(), "s3cret");
    }

    #[test]
    fn invalid_token_is_rejected_and_not_repeated_in_the_error() {
        for text in [
            "",
            " \n",
            "two s3cret",
            "s3cret\nX: y",
            "s3cret\0",
            "s3crét",
        ] {
            let error = Token::new(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("s3cr"), "{text:?}");
        }
        assert!(Token::new(&"x".repeat(MAX_LENGTH + 1)).is_err());
    }

    #[test]
    fn error_of_a_token_file_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let error = |file: &Path| Token::read(file).unwrap_err().to_string();
        assert!(error(&file).starts_with("cannot read the token in "));
        std::fs::write(&file, "\n").unwrap();
        assert!(error(&file).ends_with("token: the token is empty"));
    }
}
