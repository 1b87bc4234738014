//! Which API a request is for, since each tells its usage in its own way.

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
    /// An endpoint that llmlb does not know: only what its response reports is counted.
    Unknown,
    /// Files, models, batches and other stored things: nothing is counted.
    Other,
}

impl Api {
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
            Self::Unknown => "unknown",
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
