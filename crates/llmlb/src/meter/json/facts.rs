//! Fields of a JSON response from which metering learns usage, errors and the end of the response.

use super::super::usage::TokenCounts;
use crate::json::text;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent property of the response"
)]
pub(crate) struct Facts {
    pub(crate) counts: TokenCounts,
    /// True if the JSON object has a `usage` object at its top level. If `choices` is empty as
    /// well, the object is a usage event of a stream.
    pub(crate) has_usage: bool,
    pub(crate) choices: Choices,
    /// True if the JSON object is an error or has an `error` field, so that no completion is
    /// estimated for the response.
    pub(crate) is_error: bool,
    /// True if the JSON object is the last event of a stream, such as `message_stop`. A stream
    /// without a last event counts as truncated unless a finish reason arrived.
    pub(crate) is_last: bool,
    /// True if the response is queued or in progress, so that it has no completion to estimate.
    pub(crate) is_pending: bool,
    /// Meaning of the first `type` field of the object, which determines if an event of a WebSocket
    /// session reports usage.
    pub(crate) session_event: Option<SessionEvent>,
}

/// Kind of an event of a WebSocket session, which determines if its usage is added to the
/// session's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEvent {
    /// A response begins.
    ResponseCreated,
    /// A response ended, and the event reports its usage.
    ResponseDone,
    /// A transcription ended, and the event may report its usage.
    Transcribed,
    Other,
}

impl SessionEvent {
    fn classify(name: &[u8]) -> Self {
        match name {
            b"response.created" => Self::ResponseCreated,
            b"response.done"
            | b"response.completed"
            | b"response.incomplete"
            | b"response.failed" => Self::ResponseDone,
            b"conversation.item.input_audio_transcription.completed" | b"transcription.done" => {
                Self::Transcribed
            }
            _ => Self::Other,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choices {
    #[default]
    Missing,
    Empty,
    Filled,
}

/// Nested object of a response in which a `usage` object is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Parent {
    Response,
    Message,
}

/// Field of a response whose value is read to find usage, completeness or errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseField {
    Usage,
    Choices,
    Error,
    /// Kind of an event, from which the end of a stream or an error is recognized.
    Type,
    /// Progress of a response of the Responses API. A queued or unfinished response has no
    /// completion to estimate.
    Status,
    /// Ollama's `done` field, which marks the last object of a response.
    Done,
    PromptEvalCount,
    EvalCount,
}

/// Meaning of a field name in a JSON response. It determines if the value is read for metering,
/// searched for fields, or skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum NameMeaning {
    Parent(Parent),
    Field(ResponseField),
    #[default]
    Other,
}

impl NameMeaning {
    /// Classifies a field name as it is written in JSON, with escapes: a backend may write
    /// `"usage"` as `"us\u0061ge"`.
    pub(super) fn classify_escaped(parent: Option<Parent>, name: &[u8]) -> Self {
        if !name.contains(&b'\\') {
            return Self::classify(parent, name);
        }
        let quoted = [b"\"", name, b"\""].concat();
        text(&quoted).map_or(Self::Other, |name| Self::classify(parent, name.as_bytes()))
    }

    /// Classifies a field name of the top-level object (`None`) or of a nested one. Escapes in the name are
    /// already decoded.
    pub(super) fn classify(parent: Option<Parent>, name: &[u8]) -> Self {
        match (parent, name) {
            (_, b"usage") => Self::Field(ResponseField::Usage),
            (None, b"response") => Self::Parent(Parent::Response),
            (None, b"message") => Self::Parent(Parent::Message),
            (None, b"choices") => Self::Field(ResponseField::Choices),
            (None, b"error") => Self::Field(ResponseField::Error),
            (None, b"type") => Self::Field(ResponseField::Type),
            (None, b"status") => Self::Field(ResponseField::Status),
            (None, b"done") => Self::Field(ResponseField::Done),
            (None, b"prompt_eval_count") => Self::Field(ResponseField::PromptEvalCount),
            (None, b"eval_count") => Self::Field(ResponseField::EvalCount),
            _ => Self::Other,
        }
    }
}

impl ResponseField {
    /// Maximum length of the field's value that metering reads. Only the beginning of a longer
    /// value is kept, so that memory stays bounded.
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
    /// Derives the facts from the value of a field, which may be truncated to its maximum length.
    pub(super) fn note(&mut self, field: ResponseField, parent: Option<Parent>, value: &[u8]) {
        match field {
            ResponseField::Usage => {
                let mut counts = TokenCounts::read(value);
                if parent == Some(Parent::Message) {
                    counts = counts.as_first_event();
                }
                self.counts.merge(&counts);
                self.has_usage |= parent.is_none() && value.starts_with(b"{");
            }
            // If `choices` appears twice, the list with elements counts. Otherwise an empty duplicate
            // could make an event with text look like a usage event.
            ResponseField::Choices if is_filled(value) => self.choices = Choices::Filled,
            ResponseField::Choices
                if self.choices == Choices::Missing && value.starts_with(b"[") =>
            {
                self.choices = Choices::Empty;
            }
            ResponseField::Choices => {}
            ResponseField::Error => self.is_error |= is_error_value(value),
            ResponseField::Type => self.kind(value),
            ResponseField::Status => {
                self.is_pending |= matches!(value, b"\"queued\"" | b"\"in_progress\"");
            }
            ResponseField::Done => self.is_last |= value == b"true",
            ResponseField::PromptEvalCount => self.counts.field(b"prompt_eval_count", value),
            ResponseField::EvalCount => self.counts.field(b"eval_count", value),
        }
    }

    fn kind(&mut self, value: &[u8]) {
        let name = value.strip_prefix(b"\"").unwrap_or_default();
        let name = name.strip_suffix(b"\"").unwrap_or_default();
        self.event(name);
        self.session_event
            .get_or_insert_with(|| SessionEvent::classify(name));
    }

    /// Derives facts from the kind of an event, such as `message_stop` or `error`: that the event
    /// is the last one of its stream, or an error.
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

/// True if the value of an `error` field is an error. Some backends send the field with `null`,
/// `false` or `""` in every response.
pub(crate) fn is_error_value(value: &[u8]) -> bool {
    const NONE: [&[u8]; 3] = [b"null", b"false", b"\"\""];
    !NONE.iter().any(|none| value.starts_with(none))
}

/// True if a `choices` list has an element. Only the beginning of the list may be known; it is
/// enough to tell a completion from a usage event.
pub(super) fn is_filled(value: &[u8]) -> bool {
    let inner = value.strip_prefix(b"[").unwrap_or_default();
    let first = inner.trim_ascii_start().first();
    first.is_some_and(|byte| *byte != b']') || value.len() > ResponseField::Choices.longest()
}
