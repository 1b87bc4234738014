//! APIs that llmlb meters. Each API reports its usage in its own format.

/// API of an endpoint, which determines how its usage is read and estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Api {
    Chat,
    Completions,
    Responses,
    Embeddings,
    /// Anthropic's Messages API.
    Messages,
    /// Ranks documents by a query. The model reads tokens and generates none.
    Rerank,
    /// vLLM's variant of [`Api::Rerank`].
    Score,
    Audio,
    Images,
    Moderations,
    /// Ollama's native API.
    OllamaChat,
    OllamaGenerate,
    OllamaEmbed,
    /// Sessions over a WebSocket. Their usage is the sum of the usage of their responses.
    Realtime,
    /// An endpoint that llmlb does not know. Only reported usage counts, without estimates.
    Unknown,
    /// Files, models, batches and other stored objects. They are not metered.
    Other,
}

impl Api {
    /// True if responses are streamed unless the request has `"stream": false`.
    pub(crate) fn streams_by_default(self) -> bool {
        matches!(self, Self::OllamaChat | Self::OllamaGenerate)
    }

    /// Value of `api` in a usage record.
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

    /// Returns the API with this [`name`](Self::name).
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

    /// True if the bodies of responses are read to find their usage.
    pub(crate) fn is_metered(self) -> bool {
        !matches!(self, Self::Other | Self::Realtime)
    }

    /// True if the prompt is text, so that its tokens can be estimated.
    pub(crate) fn reads_text(self) -> bool {
        self.writes_text()
            || matches!(
                self,
                Self::Embeddings | Self::OllamaEmbed | Self::Rerank | Self::Score
            )
    }

    /// True if the model generates text, so that the response's tokens can be estimated.
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

    /// True if streams report usage only for `stream_options.include_usage`. Other APIs always report it.
    pub(crate) fn has_stream_options(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}
