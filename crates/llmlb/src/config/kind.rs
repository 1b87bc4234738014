//! Kind of a backend: the program or service that it runs.

/// A program or service whose API llmlb knows, such as Ollama or OpenAI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ollama,
    Vllm,
    LlamaCpp,
    LmStudio,
    OpenAi,
    Anthropic,
}

impl Kind {
    pub(crate) const ALL: [Self; 6] = [
        Self::Ollama,
        Self::Vllm,
        Self::LlamaCpp,
        Self::LmStudio,
        Self::OpenAi,
        Self::Anthropic,
    ];

    /// Name in the configuration file, in logs and in `/status`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ollama => "ollama",
            Self::Vllm => "vllm",
            Self::LlamaCpp => "llama.cpp",
            Self::LmStudio => "lm-studio",
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }

    /// Recognizes a service by its host name. The kind must be known before the first probe, because
    /// these services expect the key in different headers and reject requests without it.
    pub(crate) fn from_host(host: &str) -> Option<Self> {
        match host {
            "api.openai.com" => Some(Self::OpenAi),
            "api.anthropic.com" => Some(Self::Anthropic),
            _ => None,
        }
    }

    /// Recognizes a program by the `owned_by` of its models.
    pub(crate) fn from_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "llamacpp" => Some(Self::LlamaCpp),
            "library" => Some(Self::Ollama),
            "organization_owner" => Some(Self::LmStudio),
            _ => None,
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
