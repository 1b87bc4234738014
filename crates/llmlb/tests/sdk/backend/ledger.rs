//! What a backend produced, for whoever wants to compare.

use std::sync::Mutex;

use serde_json::{Value, json};

use super::call::Call;
use super::words::Words;

/// The tokens of one request.
#[derive(Clone, Debug)]
pub(crate) struct Produced {
    /// The `x-request-id` it came with.
    pub(crate) request_id: String,
    pub(crate) path: String,
    pub(crate) model: String,
    pub(crate) is_streamed: bool,
    pub(crate) prompt: u64,
    pub(crate) cached: u64,
    pub(crate) completion: u64,
    pub(crate) state: End,
}

/// How far an answer got.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum End {
    /// It is being given.
    Open,
    /// Its last byte was handed to the system.
    Whole,
    /// Nobody listened any more, or it was cut on purpose.
    Broken,
}

/// Every request that made tokens, in the order in which they came.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<Vec<Produced>>);

/// One line of it.
pub(super) struct Line(usize);

impl Ledger {
    pub(super) fn open(&self, call: &Call<'_>, is_streamed: bool, words: &Words) -> Line {
        let mut lines = self.0.lock().expect("the ledger");
        lines.push(Produced {
            request_id: call.header("x-request-id").unwrap_or_default(),
            path: call.path().to_owned(),
            model: call.asked()["model"]
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

    /// To be said before the last byte goes out, so that whoever has it finds it said.
    pub(super) fn close(&self, line: &Line, state: End) {
        self.0.lock().expect("the ledger")[line.0].state = state;
    }

    pub(crate) fn lines(&self) -> Vec<Produced> {
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
