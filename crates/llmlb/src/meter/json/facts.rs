//! The fields that matter, and what they say.

use super::super::usage::Counts;
use crate::json::text;

/// What an answer, or an event of one, says about itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is something that it may say, or not"
)]
pub(crate) struct Facts {
    pub(crate) counts: Counts,
    /// It has a `usage` object of its own.
    pub(crate) has_usage: bool,
    pub(crate) choices: Choices,
    /// It is, or has, an error.
    pub(crate) is_error: bool,
    /// It is the last event of its answer.
    pub(crate) is_last: bool,
    /// It only promises an answer, which is made later.
    pub(crate) is_promise: bool,
}

/// The `choices` of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choices {
    #[default]
    Untold,
    /// An empty list.
    None,
    Some,
}

/// An object that has usage inside of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    /// What an event of the Responses API is about.
    Response,
    /// What Anthropic's answer begins with.
    Message,
}

/// A field that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    Usage,
    Choices,
    Error,
    /// What kind of event it is.
    Type,
    /// How far a response of the Responses API is.
    Status,
    /// Ollama's: whether it is the last part.
    Done,
    /// Ollama's counts.
    PromptEvalCount,
    EvalCount,
}

/// What a name means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Named {
    Parent(Parent),
    Field(Field),
    #[default]
    Other,
}

impl Named {
    /// By a name as it is written, in an object of this kind.
    pub(super) fn classify(parent: Option<Parent>, name: &[u8]) -> Self {
        match (parent, name) {
            (_, b"usage") => Self::Field(Field::Usage),
            (_, name) if name.contains(&b'\\') => {
                // Nobody writes ours so, but they may.
                let quoted = [b"\"", name, b"\""].concat();
                match text(&quoted) {
                    Some(name) if !name.contains('\\') => Self::classify(parent, name.as_bytes()),
                    _ => Self::Other,
                }
            }
            (None, b"response") => Self::Parent(Parent::Response),
            (None, b"message") => Self::Parent(Parent::Message),
            (None, b"choices") => Self::Field(Field::Choices),
            (None, b"error") => Self::Field(Field::Error),
            (None, b"type") => Self::Field(Field::Type),
            (None, b"status") => Self::Field(Field::Status),
            (None, b"done") => Self::Field(Field::Done),
            (None, b"prompt_eval_count") => Self::Field(Field::PromptEvalCount),
            (None, b"eval_count") => Self::Field(Field::EvalCount),
            _ => Self::Other,
        }
    }
}

impl Field {
    /// How many bytes of it are of interest. What is longer says that it is there, no more.
    pub(super) fn longest(self) -> usize {
        match self {
            Self::Usage => 8 * 1024,
            Self::Type => 64,
            Self::Choices | Self::Error => 16,
            Self::Status | Self::Done | Self::PromptEvalCount | Self::EvalCount => 24,
        }
    }
}

impl Facts {
    /// A field has this value, perhaps cut off.
    pub(super) fn note(&mut self, field: Field, parent: Option<Parent>, value: &[u8]) {
        match field {
            Field::Usage => {
                let mut counts = Counts::read(value);
                if parent == Some(Parent::Message) {
                    counts = counts.as_beginning();
                }
                self.counts.merge(&counts);
                self.has_usage |= parent.is_none() && value.starts_with(b"{");
            }
            // Once there are choices there are.
            Field::Choices if is_filled(value) => self.choices = Choices::Some,
            Field::Choices if self.choices == Choices::Untold && value.starts_with(b"[") => {
                self.choices = Choices::None;
            }
            Field::Choices => {}
            Field::Error => self.is_error |= is_an_error(value),
            Field::Type => self.kind(value),
            Field::Status => {
                self.is_promise |= matches!(value, b"\"queued\"" | b"\"in_progress\"");
            }
            Field::Done => self.is_last |= value == b"true",
            Field::PromptEvalCount => self.counts.field(b"prompt_eval_count", value),
            Field::EvalCount => self.counts.field(b"eval_count", value),
        }
    }

    fn kind(&mut self, value: &[u8]) {
        let name = value.strip_prefix(b"\"").unwrap_or_default();
        self.event(name.strip_suffix(b"\"").unwrap_or_default());
    }

    /// An event is of this kind.
    pub(crate) fn event(&mut self, name: &[u8]) {
        match name {
            b"message_stop"
            | b"response.completed"
            | b"response.incomplete"
            | b"transcript.text.done"
            | b"speech.audio.done"
            | b"image_generation.completed"
            | b"image_edit.completed" => self.is_last = true,
            b"response.failed" => {
                self.is_last = true;
                self.is_error = true;
            }
            b"error" => self.is_error = true,
            _ => {}
        }
    }
}

/// Whether the value of `error`, as far as it goes, tells of one. Some say so that there is none.
pub(crate) fn is_an_error(value: &[u8]) -> bool {
    const NONE: [&[u8]; 3] = [b"null", b"false", b"\"\""];
    !NONE.iter().any(|none| value.starts_with(none))
}

/// Whether the list of choices has something in it, as far as it goes.
pub(super) fn is_filled(value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"[").unwrap_or_default();
    let first = inner.trim_ascii_start().first();
    first.is_some_and(|byte| *byte != b']') || value.len() > Field::Choices.longest()
}
