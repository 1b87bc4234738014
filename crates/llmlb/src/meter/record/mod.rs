//! What is written down of a request: one line of JSON. Never what was asked, nor the answer.
//!
//! ```text
//! {"id":"01890a5d-ac96-774b-bcce-b302099a8057","time":"2026-11-16T12:00:00.250Z",
//!  "request_id":"req-1","key":null,"model":"fast","served_model":"llama3:8b","backend":"gpu-1",
//!  "api":"chat","path":"/v1/chat/completions","stream":true,"status":200,"outcome":"complete",
//!  "attempts":[{"backend":"gpu-2","error":"connection refused"}],"prompt_tokens":9,
//!  "completion_tokens":4,"cached_tokens":0,"tokens":13,"tokens_from":"reported","ms":840,
//!  "first_byte_ms":120,"bytes":5120}
//! ```
//!
//! Usage is summed up by field, over all whose names are `tokens` or end in `_tokens`, each for
//! itself. So a total is the sum of `tokens` and of nothing else: the others are its parts
//! (`prompt_tokens`, `completion_tokens`), parts of these (`cached_tokens`, `reasoning_tokens`),
//! or the same once more where it is a guess (`estimated_tokens`). The last two are there only
//! if they are not 0.

mod json;
#[cfg(test)]
mod tests;

use uuid::Uuid;

use super::usage::{Source, Usage};
use crate::endpoint::Api;
use json::Line;

/// Longer names are cut: a record is for counting.
const LONGEST_NAME: usize = 200;

/// One request, when it is over.
#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    /// Tells it from all others: a UUID of version 7.
    pub(crate) id: Uuid,
    /// When it came, in milliseconds since 1970.
    pub(crate) time_ms: u64,
    /// What the client and the backend know it by.
    pub(crate) request_id: &'a str,
    pub(crate) key: Option<&'a str>,
    /// As the client called it.
    pub(crate) model: Option<&'a str>,
    /// As the backend was told, if not the same.
    pub(crate) served_model: Option<&'a str>,
    /// Who answered.
    pub(crate) backend: Option<&'a str>,
    pub(crate) api: Api,
    /// Without what belongs to this request alone.
    pub(crate) path: &'a str,
    pub(crate) is_stream: bool,
    /// What the client was answered, if it was.
    pub(crate) status: Option<u16>,
    pub(crate) outcome: Outcome,
    /// The limit by which this server ended a request that was being served.
    pub(crate) reason: Option<&'a str>,
    /// Who was tried before, in vain.
    pub(crate) attempts: &'a [Attempt<'a>],
    pub(crate) usage: Usage,
    /// From its first byte to the last of the answer.
    pub(crate) ms: u64,
    /// To the first byte of its body.
    pub(crate) first_byte_ms: Option<u64>,
    /// Of the answer's body.
    pub(crate) bytes: u64,
}

/// A backend that was tried in vain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) backend: &'a str,
    pub(crate) error: &'a str,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The client has the backend's whole answer, whatever it says.
    Complete,
    /// The client left before.
    Cancelled,
    /// The backend ended its answer too early.
    Cut,
    /// No backend answered.
    Failed,
    /// It was not passed to a backend.
    Refused,
}

impl Outcome {
    /// Its name in a record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cancelled => "cancelled",
            Self::Cut => "cut",
            Self::Failed => "failed",
            Self::Refused => "refused",
        }
    }
}

impl Record<'_> {
    /// As it is staged.
    pub(crate) fn staged(&self) -> spool::Record {
        let mut line = Vec::with_capacity(640);
        self.write(&mut line);
        // What is written is text: names that are not were refused, or are escaped.
        let json = String::from_utf8(line).unwrap_or_default();
        spool::Record::from_trusted(self.id, json)
    }

    /// Writes it into `line`, which is emptied before; it has no line end.
    pub(crate) fn write(&self, line: &mut Vec<u8>) {
        line.clear();
        let mut line = Line::new(line);
        let mut id = Uuid::encode_buffer();
        line.plain("id", self.id.hyphenated().encode_lower(&mut id));
        line.time("time", self.time_ms);
        line.text("request_id", Some(self.request_id));
        line.text("key", self.key);
        line.text("model", self.model);
        if let Some(served) = self.served_model
            && self.served_model != self.model
        {
            line.text("served_model", Some(served));
        }
        line.text("backend", self.backend);
        line.plain("api", self.api.name());
        line.text("path", Some(self.path));
        line.boolean("stream", self.is_stream);
        line.number("status", self.status.map(u64::from));
        line.plain("outcome", self.outcome.name());
        if let Some(reason) = self.reason {
            line.plain("reason", reason);
        }
        self.write_attempts(&mut line);
        let usage = &self.usage;
        line.number("prompt_tokens", Some(usage.prompt));
        line.number("completion_tokens", Some(usage.completion));
        line.number("cached_tokens", Some(usage.cached));
        if usage.reasoning > 0 {
            line.number("reasoning_tokens", Some(usage.reasoning));
        }
        line.number("tokens", Some(usage.total));
        if usage.source == Source::Estimated {
            line.number("estimated_tokens", Some(usage.total));
        }
        line.plain("tokens_from", usage.source.name());
        line.number("ms", Some(self.ms));
        line.number("first_byte_ms", self.first_byte_ms);
        line.number("bytes", Some(self.bytes));
        line.end();
    }

    fn write_attempts(&self, line: &mut Line<'_>) {
        line.list("attempts", self.attempts, |line, attempt| {
            line.text("backend", Some(attempt.backend));
            line.text("error", Some(attempt.error));
        });
    }
}
