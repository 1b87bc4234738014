//! Which API a request is for, since each tells its usage in its own way.

use http::Method;

/// What a path asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Embeddings,
    /// Anthropic's.
    Messages,
    /// Documents against a query; all of its tokens are read, none is written.
    Rerank,
    /// As [`Api::Rerank`], vLLM's.
    Score,
    Audio,
    Images,
    Moderations,
    /// Ollama's own.
    OllamaChat,
    OllamaGenerate,
    OllamaEmbed,
    /// Files, models, batches, what is stored, and what is not known here.
    Other,
}

impl Api {
    /// By method and whole path, without the query.
    ///
    /// Only a POST to the path itself asks a model. What is fetched again by its id
    /// (`/v1/responses/resp_1`) says what it once took, and was counted then; counting tokens
    /// (`/v1/messages/count_tokens`) takes none.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        if method != Method::POST {
            return Self::Other;
        }
        match path.strip_suffix('/').unwrap_or(path) {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/responses" | "/v1/responses/compact" => Self::Responses,
            "/v1/embeddings" => Self::Embeddings,
            "/v1/messages" => Self::Messages,
            "/v1/rerank" => Self::Rerank,
            "/v1/score" => Self::Score,
            "/v1/audio/speech" | "/v1/audio/transcriptions" | "/v1/audio/translations" => {
                Self::Audio
            }
            "/v1/images/generations" | "/v1/images/edits" | "/v1/images/variations" => Self::Images,
            "/v1/moderations" => Self::Moderations,
            "/api/chat" => Self::OllamaChat,
            "/api/generate" => Self::OllamaGenerate,
            "/api/embed" | "/api/embeddings" => Self::OllamaEmbed,
            _ => Self::Other,
        }
    }

    /// Whether the answer comes as it is made if the request does not say how.
    pub(crate) fn streams_unless_told(self) -> bool {
        matches!(self, Self::OllamaChat | Self::OllamaGenerate)
    }

    /// Its name in a record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
            Self::Rerank => "rerank",
            Self::Score => "score",
            Self::Audio => "audio",
            Self::Images => "images",
            Self::Moderations => "moderations",
            Self::OllamaChat => "ollama.chat",
            Self::OllamaGenerate => "ollama.generate",
            Self::OllamaEmbed => "ollama.embed",
            Self::Other => "other",
        }
    }

    /// Whether its answers are looked into.
    pub(crate) fn tells_usage(self) -> bool {
        self != Self::Other
    }

    /// Whether a model reads text for it, so that its tokens can be estimated.
    pub(crate) fn reads_text(self) -> bool {
        self.writes_text()
            || matches!(
                self,
                Self::Embeddings | Self::OllamaEmbed | Self::Rerank | Self::Score
            )
    }

    /// Whether a model writes text for it.
    pub(crate) fn writes_text(self) -> bool {
        matches!(
            self,
            Self::Chat
                | Self::Completions
                | Self::Responses
                | Self::Messages
                | Self::OllamaChat
                | Self::OllamaGenerate
        )
    }

    /// Whether `stream_options` is part of it. The others tell usage unasked.
    pub(crate) fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_api_is_known_by_its_path() {
        for (path, api, name) in [
            ("/v1/chat/completions", Api::Chat, "chat"),
            ("/v1/chat/completions/", Api::Chat, "chat"),
            ("/v1/completions", Api::Completions, "completions"),
            ("/v1/responses", Api::Responses, "responses"),
            ("/v1/responses/compact", Api::Responses, "responses"),
            ("/v1/embeddings", Api::Embeddings, "embeddings"),
            ("/v1/messages", Api::Messages, "messages"),
            ("/v1/rerank", Api::Rerank, "rerank"),
            ("/v1/score", Api::Score, "score"),
            ("/v1/audio/transcriptions", Api::Audio, "audio"),
            ("/v1/images/generations", Api::Images, "images"),
            ("/v1/moderations", Api::Moderations, "moderations"),
            ("/api/chat", Api::OllamaChat, "ollama.chat"),
            ("/api/generate", Api::OllamaGenerate, "ollama.generate"),
            ("/api/embed", Api::OllamaEmbed, "ollama.embed"),
            ("/v1/files", Api::Other, "other"),
        ] {
            let found = Api::of(&Method::POST, path);
            assert_eq!((found, found.name()), (api, name), "{path}");
        }
    }

    #[test]
    fn what_was_counted_before_is_not_counted_when_it_is_fetched() {
        for (method, path) in [
            (Method::GET, "/v1/responses/resp_1"),
            (Method::GET, "/v1/responses"),
            (Method::POST, "/v1/responses/resp_1/cancel"),
            (Method::GET, "/v1/chat/completions"),
            (Method::GET, "/v1/chat/completions/chatcmpl-1"),
            (Method::POST, "/v1/chat/completions/chatcmpl-1"),
            (Method::POST, "/v1/messages/count_tokens"),
            (Method::POST, "/v1/messages/batches"),
            (Method::POST, "/v1/batches"),
            (Method::POST, "/chat/completions"),
            (Method::POST, "/v1/chat/completions//"),
            (Method::POST, "/v1/"),
            (Method::POST, ""),
        ] {
            assert_eq!(Api::of(&method, path), Api::Other, "{method} {path}");
            assert!(!Api::of(&method, path).tells_usage());
        }
    }
}
