//! The bearer token: given to the receiver, shown to nobody else.

use std::fmt;
use std::path::Path;

use super::HttpError;

/// No token is longer; a file that is was named by mistake.
const LONGEST: usize = 16 * 1024;

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
    /// Takes a token without the white space around it. One that cannot be sent in a header is
    /// refused; the error does not show it.
    pub fn new(text: &str) -> Result<Self, HttpError> {
        let text = text.trim();
        let why = if text.is_empty() {
            "the token is empty"
        } else if text.len() > LONGEST {
            "the token is too long"
        } else if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            "the token has white space, control characters or other than ASCII in it"
        } else {
            return Ok(Self(text.to_owned()));
        };
        Err(HttpError::new(why))
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

    /// For the request, and for keeping it out of what the receiver says.
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
    fn a_token_is_taken_without_the_line_end_of_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "  s3cret\r\n").unwrap();
        assert_eq!(Token::read(&file).unwrap().expose(), "s3cret");
    }

    #[test]
    fn what_cannot_be_a_token_is_refused_and_not_repeated() {
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
        assert!(Token::new(&"x".repeat(LONGEST + 1)).is_err());
    }

    #[test]
    fn a_file_that_has_no_token_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        let told = |file: &Path| Token::read(file).unwrap_err().to_string();
        assert!(told(&file).starts_with("cannot read the token in "));
        std::fs::write(&file, "\n").unwrap();
        assert!(told(&file).ends_with("token: the token is empty"));
    }
}
