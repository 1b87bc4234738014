//! What kind of request a path makes it.

use http::Method;

use super::ollama;

/// Whether a request asks a model for something. Asking twice does no harm. `path` is what follows
/// `/v1/`, or all of it if the API is Ollama's.
pub(crate) fn is_inference(path: &str) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    let is_ours = matches!(
        path,
        "chat/completions"
            | "completions"
            | "embeddings"
            | "messages"
            | "messages/count_tokens"
            | "moderations"
            | "rerank"
            | "responses"
            | "responses/compact"
            | "score"
    );
    is_ours || ollama::is_question(path)
}

/// Whether a backend may be asked the same twice.
pub(super) fn is_repeatable(method: &Method, path: &str) -> bool {
    method.is_safe() || (*method == Method::POST && is_inference(path))
}

/// Whether a path could mean another one to a backend that resolves it: then what is said here
/// about it would not hold there.
pub(super) fn is_ambiguous(path: &str) -> bool {
    let is_dots = |segment: &str| segment == "." || segment == "..";
    let is_dotted = |path: &str| path.split(['/', '\\']).any(is_dots);
    is_dotted(path)
        || path.contains("//")
        || has_needless_escape(path)
        || (path.contains('%') && is_dotted(&path.to_ascii_lowercase().replace("%2f", "/")))
}

/// Whether a character is escaped that stands for itself (RFC 3986, section 2.3).
fn has_needless_escape(path: &str) -> bool {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    path.as_bytes().windows(3).any(|escape| {
        let &[b'%', high, low] = escape else {
            return false;
        };
        let decoded = digit(high)
            .zip(digit(low))
            .map(|(high, low)| high * 16 + low);
        decoded.and_then(char::from_u32).is_some_and(|char| {
            char.is_ascii_alphanumeric() || ['-', '.', '_', '~', '\\'].contains(&char)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_may_mean_another_is_known_in_every_spelling() {
        for path in [
            "..",
            "../api/tags",
            "a/../b",
            "%2e%2E/x",
            "a/.%2e/b",
            "./x",
            "a\\..\\b",
            "chat//completions",
            "chat/c%6fmpletions",
            "files/a%5Cb",
            "a%2F..%2Fb",
        ] {
            assert!(is_ambiguous(path), "{path}");
        }
        for path in [
            "chat/completions",
            "files/a..b",
            "models/.hidden",
            "x/...",
            "models/meta%2Fllama",
            "models/a%20b",
            "files/100%",
        ] {
            assert!(!is_ambiguous(path), "{path}");
        }
    }
}
