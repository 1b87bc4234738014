//! The usage record of a request: one line of JSON. It never contains the prompt or the response.
//!
//! ```text
//! {"id":"01890a5d-ac96-774b-bcce-b302099a8057","time":"2026-11-16T12:00:00.250Z",
//!  "request_id":"req-1","key":null,"model":"fast","served_model":"llama3:8b","backend":"gpu-1",
//!  "api":"chat","path":"/v1/chat/completions","stream":true,"status":200,"outcome":"complete",
//!  "attempts":[{"backend":"gpu-2","error":"connection refused","why":"load","at_ms":0,"ms":12}],
//!  "why":"fail_over","candidates":2,"prompt_tokens":9,"completion_tokens":4,"cached_tokens":0,"tokens":13,
//!  "tokens_from":"reported","ms":840,"queue_ms":30,"sent_ms":42,"first_byte_ms":120,"bytes":5120,
//!  "instance":"gpu-1:32768"}
//! ```
//!
//! Reports sum each field whose name is `tokens` or ends in `_tokens` separately, so `tokens` alone
//! is the total. The other fields are its parts (`prompt_tokens`, `completion_tokens`), parts of
//! these (`cached_tokens`, `reasoning_tokens`), or the same number again if it is an estimate
//! (`estimated_tokens`). `reasoning_tokens`, `estimated_tokens`, `candidates`, `queue_ms` and `sent_ms` are
//! omitted if they are 0.

mod json;
#[cfg(test)]
mod tests;

use uuid::Uuid;

use super::usage::{TokenUsage, UsageSource};
use crate::endpoint::Api;
pub(crate) use json::{FieldName, ObjectWriter, field};

/// Maximum number of characters of a name in a usage record. Clients choose model names, so longer
/// names are truncated to bound the record.
const MAX_NAME: usize = 200;

#[derive(Clone, Debug)]
pub(crate) struct Record<'a> {
    /// Unique id of the record, a UUID of version 7. A record that is staged again under the same
    /// id counts once.
    pub(crate) id: Uuid,
    pub(crate) time_ms: u64,
    /// The `x-request-id` that the client and the backend know.
    pub(crate) request_id: &'a str,
    /// Name of the client's API key. Valid names need no escapes in JSON.
    pub(crate) key: Option<&'a str>,
    pub(crate) team: Option<&'a str>,
    pub(crate) model: Option<&'a str>,
    /// Model name that was sent to the backend. Omitted from the record if it equals `model`.
    pub(crate) served_model: Option<&'a str>,
    /// Backend that responded.
    pub(crate) backend: Option<&'a str>,
    pub(crate) api: Api,
    /// Path of the request without ids and query, so that records can be grouped by path.
    pub(crate) path: &'a str,
    pub(crate) is_stream: bool,
    /// Status of the response to the client; `None` if the client received none.
    pub(crate) status: Option<u16>,
    pub(crate) outcome: Outcome,
    /// The limit for which llmlb aborted the request, such as a timeout; `None` if llmlb aborted
    /// nothing.
    pub(crate) reason: Option<&'a str>,
    /// Failed attempts, each with its backend and error: they yielded no response for the client.
    pub(crate) attempts: &'a [Attempt<'a>],
    /// Word for the reason why `backend` was selected.
    pub(crate) why: Option<&'static str>,
    /// Number of backends that could have been selected; 0 if none was selected.
    pub(crate) candidates: u32,
    /// Milliseconds in the queue.
    pub(crate) queue_ms: u64,
    /// Milliseconds from the first byte of the request to the start of the attempt at `backend`.
    pub(crate) sent_ms: u64,
    pub(crate) usage: TokenUsage,
    /// Milliseconds from the first byte of the request to the last byte of the response.
    pub(crate) ms: u64,
    /// Milliseconds from the first byte of the request to the first byte of the response body.
    pub(crate) first_byte_ms: Option<u64>,
    pub(crate) bytes: u64,
    /// Name of the server that served the request. Valid names need no escapes in JSON.
    pub(crate) instance: &'a str,
}

/// Failed attempt to get a response for the request from a backend.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt<'a> {
    pub(crate) backend: &'a str,
    pub(crate) error: &'a str,
    /// Word for the reason why the backend was selected.
    pub(crate) why: &'static str,
    /// Milliseconds from the first byte of the request to the start of the attempt.
    pub(crate) at_ms: u64,
    /// Duration of the attempt in milliseconds.
    pub(crate) ms: u64,
}

/// Outcome of a request, as its usage record and the access log report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Outcome {
    /// The client received the backend's complete response, which may be an error.
    Complete,
    /// The client disconnected before the end of the response.
    Cancelled,
    /// The backend ended its response early.
    Cut,
    /// No backend responded.
    Failed,
    /// llmlb rejected the request, so the client received no backend's response.
    Refused,
    /// The server was killed while the request was in flight.
    Interrupted,
}

impl Outcome {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Cancelled => "cancelled",
            Self::Cut => "cut",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Interrupted => "interrupted",
        }
    }
}

impl Record<'_> {
    /// Returns the record as the line of JSON that the spool stages.
    pub(crate) fn staged(&self) -> spool::Record {
        let mut json = String::with_capacity(640);
        self.write(&mut json);
        spool::Record::from_trusted(self.id, json)
    }

    /// Replaces the content of `line` with the record, without a line break.
    pub(crate) fn write(&self, line: &mut String) {
        line.clear();
        let mut line = ObjectWriter::new(line);
        let mut id = Uuid::encode_buffer();
        line.plain(field!("id"), self.id.hyphenated().encode_lower(&mut id));
        line.time(field!("time"), self.time_ms);
        line.text(field!("request_id"), Some(self.request_id));
        line.text(field!("key"), self.key);
        if let Some(team) = self.team {
            line.plain(field!("team"), team);
        }
        line.text(field!("model"), self.model);
        if let Some(served) = self.served_model
            && self.served_model != self.model
        {
            line.text(field!("served_model"), Some(served));
        }
        line.text(field!("backend"), self.backend);
        line.plain(field!("api"), self.api.name());
        line.text(field!("path"), Some(self.path));
        line.boolean(field!("stream"), self.is_stream);
        line.number(field!("status"), self.status.map(u64::from));
        line.plain(field!("outcome"), self.outcome.name());
        if let Some(reason) = self.reason {
            line.plain(field!("reason"), reason);
        }
        self.write_attempts(&mut line);
        if let Some(why) = self.why {
            line.plain(field!("why"), why);
        }
        if self.candidates > 0 {
            line.number(field!("candidates"), Some(self.candidates.into()));
        }
        let usage = &self.usage;
        line.number(field!("prompt_tokens"), Some(usage.prompt));
        line.number(field!("completion_tokens"), Some(usage.completion));
        line.number(field!("cached_tokens"), Some(usage.cached));
        if usage.reasoning > 0 {
            line.number(field!("reasoning_tokens"), Some(usage.reasoning));
        }
        line.number(field!("tokens"), Some(usage.total));
        if usage.source == UsageSource::Estimated {
            line.number(field!("estimated_tokens"), Some(usage.total));
        }
        line.plain(field!("tokens_from"), usage.source.name());
        line.number(field!("ms"), Some(self.ms));
        if self.queue_ms > 0 {
            line.number(field!("queue_ms"), Some(self.queue_ms));
        }
        if self.sent_ms > 0 {
            line.number(field!("sent_ms"), Some(self.sent_ms));
        }
        line.number(field!("first_byte_ms"), self.first_byte_ms);
        line.number(field!("bytes"), Some(self.bytes));
        line.plain(field!("instance"), self.instance);
        line.end();
    }

    fn write_attempts(&self, line: &mut ObjectWriter<'_>) {
        line.list(field!("attempts"), self.attempts, |line, attempt| {
            line.text(field!("backend"), Some(attempt.backend));
            line.text(field!("error"), Some(attempt.error));
            line.plain(field!("why"), attempt.why);
            line.number(field!("at_ms"), Some(attempt.at_ms));
            line.number(field!("ms"), Some(attempt.ms));
        });
    }
}
