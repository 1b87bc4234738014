//! Ledger of the tokens that a fake server generated. Tests compare it with the usage records of
//! llmlb.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::call::Call;
use super::words::Words;

/// Entry of the ledger: the tokens that the fake server generated for one request. Tests compare
/// them with the usage record of the request.
#[derive(Clone, Debug)]
pub struct Produced {
    /// `x-request-id` of the request.
    pub request_id: String,
    /// Path of the request.
    pub path: String,
    /// Model of the request.
    pub model: String,
    /// True if the response is a stream.
    pub is_streamed: bool,
    /// Prompt tokens.
    pub prompt: u64,
    /// Prompt tokens that were in the cache.
    pub cached: u64,
    /// Completion tokens so far.
    pub completion: u64,
    /// State of the response to the request: being sent, sent completely, or broken off.
    pub state: End,
}

/// State of a response.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum End {
    /// Response is being sent.
    Open,
    /// Response was sent completely. Set before the last byte is sent, and replaced by `Broken` if
    /// sending it fails.
    Whole,
    /// Client disconnected, or the response was cut on purpose.
    Broken,
}

/// Tokens of every request that generated tokens, in the order of arrival.
#[derive(Debug, Default)]
pub struct Ledger(Mutex<Vec<Produced>>);

/// Index of the ledger's entry for one request. The entry is updated while the response is sent.
pub(super) struct Line(usize);

impl Ledger {
    pub(super) fn open(&self, call: &Call<'_>, is_streamed: bool, words: &Words) -> Line {
        let mut lines = self.0.lock().expect("the ledger");
        lines.push(Produced {
            request_id: call.header("x-request-id").unwrap_or_default(),
            path: call.path().to_owned(),
            model: call.params()["model"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            is_streamed,
            prompt: words.prompt,
            cached: words.cached,
            completion: 0,
            state: End::Open,
        });
        Line(lines.len() - 1)
    }

    pub(super) fn add(&self, line: &Line, tokens: u64) {
        self.0.lock().expect("the ledger")[line.0].completion += tokens;
    }

    /// Sets the state of a response in its entry of the ledger. `End::Whole` is set before the last
    /// byte is sent, so that a test that has received the response finds the state set.
    pub(super) fn close(&self, line: &Line, state: End) {
        self.0.lock().expect("the ledger")[line.0].state = state;
    }

    /// Returns a copy of all lines, one for each request.
    pub fn lines(&self) -> Vec<Produced> {
        self.0.lock().expect("the ledger").clone()
    }
}

impl Produced {
    pub(super) fn json(&self) -> Value {
        json!({
            "request_id": self.request_id,
            "path": self.path,
            "model": self.model,
            "streamed": self.is_streamed,
            "prompt": self.prompt,
            "cached": self.cached,
            "completion": self.completion,
            "state": match self.state {
                End::Open => "open",
                End::Whole => "whole",
                End::Broken => "broken",
            },
        })
    }
}
