//! Which program or service a backend is.

/// A program or service that backends are known to be.
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

    /// As it is written in the file and in reports.
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

    /// Services that are known by their address. They want their keys in different places, and
    /// answer nothing before they have them.
    pub(crate) fn of_host(host: &str) -> Option<Self> {
        match host {
            "api.openai.com" => Some(Self::OpenAi),
            "api.anthropic.com" => Some(Self::Anthropic),
            _ => None,
        }
    }

    /// Programs that are known by whom they name as the owner of a model.
    pub(crate) fn of_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "llamacpp" => Some(Self::LlamaCpp),
            "library" => Some(Self::Ollama),
            "organization_owner" => Some(Self::LmStudio),
            _ => None,
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
