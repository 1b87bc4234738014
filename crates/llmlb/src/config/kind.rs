//! Kind of a backend: the program or service that runs there, such as Ollama.

use super::types::word_for;

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
    /// Names of the kinds in the configuration file, in logs and in `/status`.
    pub(super) const WORDS: [(&'static str, Self); 6] = [
        ("ollama", Self::Ollama),
        ("vllm", Self::Vllm),
        ("llama.cpp", Self::LlamaCpp),
        ("lm-studio", Self::LmStudio),
        ("openai", Self::OpenAi),
        ("anthropic", Self::Anthropic),
    ];

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::WORDS.into_iter().map(|(_, kind)| kind)
    }

    pub(crate) fn name(self) -> &'static str {
        word_for(&self, &Self::WORDS)
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

    /// Recognizes the program that a backend runs by the `owned_by` of its models.
    pub(crate) fn from_owner(owner: &str) -> Option<Self> {
        match owner {
            "vllm" => Some(Self::Vllm),
            "llamacpp" => Some(Self::LlamaCpp),
            "library" => Some(Self::Ollama),
            "organization_owner" => Some(Self::LmStudio),
            _ => None,
        }
    }

    /// Returns the kind whose discriminant (`kind as u8`) is this number. Backends store their kind
    /// as a number.
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        Self::all().find(|kind| *kind as u8 == number)
    }

    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.name() == name)
    }
}
