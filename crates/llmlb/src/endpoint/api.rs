//! APIs that llmlb meters. Each API reports its usage in its own format.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Embeddings,
    /// Anthropic's Messages API.
    Messages,
    /// Ranking of documents by a query. The model reads tokens and generates none, so no completion
    /// is estimated.
    Rerank,
    /// vLLM's variant of [`Api::Rerank`], with other field names.
    Score,
    Audio,
    Images,
    Moderations,
    /// Ollama's native API.
    OllamaChat,
    OllamaGenerate,
    OllamaEmbed,
    /// Session over a WebSocket, whose usage is the sum of the usage of its responses.
    Realtime,
    /// Endpoint that llmlb does not know. Only reported usage counts: without knowledge of the
    /// formats nothing can be estimated.
    Unknown,
    /// Files, models, batches and other stored objects. They run no model and are not metered.
    Other,
}

impl Api {
    /// True if responses are streamed unless the request has `"stream": false`.
    pub(crate) fn streams_by_default(self) -> bool {
        matches!(self, Self::OllamaChat | Self::OllamaGenerate)
    }

    /// Returns the value of `api` in a usage record.
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
            Self::Realtime => "realtime",
            Self::Unknown => "unknown",
            Self::Other => "other",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        const ALL: [Api; 16] = [
            Api::Chat,
            Api::Completions,
            Api::Responses,
            Api::Embeddings,
            Api::Messages,
            Api::Rerank,
            Api::Score,
            Api::Audio,
            Api::Images,
            Api::Moderations,
            Api::OllamaChat,
            Api::OllamaGenerate,
            Api::OllamaEmbed,
            Api::Realtime,
            Api::Unknown,
            Api::Other,
        ];
        ALL.into_iter().find(|api| api.name() == name)
    }

    /// True if the bodies of responses are searched for their usage.
    pub(crate) fn is_metered(self) -> bool {
        !matches!(self, Self::Other | Self::Realtime)
    }

    /// True if the prompt is text, so that its tokens can be estimated when the backend does not
    /// report them.
    pub(crate) fn reads_text(self) -> bool {
        self.writes_text()
            || matches!(
                self,
                Self::Embeddings | Self::OllamaEmbed | Self::Rerank | Self::Score
            )
    }

    /// True if the model generates text, so that the response's tokens can be estimated when the
    /// backend does not report them.
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

    /// True if streams of this API report usage only for `stream_options.include_usage`, so that
    /// llmlb adds the option. Other APIs always report usage.
    pub(crate) fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}
