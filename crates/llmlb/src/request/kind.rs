//! What kind of request a path makes it.

use http::Method;

/// Whether a request asks a model for something. Asking twice does no harm.
pub(crate) fn is_inference(path: &str) -> bool {
    matches!(
        path,
        "chat/completions"
            | "completions"
            | "embeddings"
            | "messages"
            | "messages/count_tokens"
            | "moderations"
            | "rerank"
            | "responses"
            | "score"
    )
}

/// Whether a backend may be asked the same twice.
pub(super) fn is_repeatable(method: &Method, path: &str) -> bool {
    method.is_safe() || (*method == Method::POST && is_inference(path))
}

/// Whether a path could mean another one to a backend that resolves it.
pub(super) fn has_dot_segments(path: &str) -> bool {
    path.split(['/', '\\']).any(|segment| {
        if !segment.starts_with(['.', '%']) {
            return false;
        }
        let plain = segment.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_leads_elsewhere_is_known_in_every_spelling() {
        for path in [
            "..",
            "../api/tags",
            "a/../b",
            "%2e%2E/x",
            "a/.%2e/b",
            "./x",
            "a\\..\\b",
        ] {
            assert!(has_dot_segments(path), "{path}");
        }
        for path in [
            "chat/completions",
            "files/a..b",
            "models/.hidden",
            "x/...",
            "a%2eb",
        ] {
            assert!(!has_dot_segments(path), "{path}");
        }
    }
}
