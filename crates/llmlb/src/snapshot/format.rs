//! The snapshot of a server as JSON: docs/status-json.md.
//!
//! `GET /dashboard/snapshot` and `/dashboard/events` send it, and `llmlb top` reads it. A reader accepts a
//! snapshot of another release: unknown fields are ignored, and missing ones have their default.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of the format. It changes when a field is removed or changes its meaning.
pub(crate) const VERSION: u32 = 1;

/// State of a server at one time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Snapshot {
    pub(crate) version: u32,
    pub(crate) at: String,
    pub(crate) llmlb_version: String,
    pub(crate) instance: String,
    pub(crate) port: u16,
    pub(crate) pid: u32,
    pub(crate) uptime_s: u64,
    pub(crate) state: String,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    pub(crate) requests: u64,
    pub(crate) requests_per_s: f64,
    pub(crate) prompt_tokens_per_s: f64,
    pub(crate) completion_tokens_per_s: f64,
    pub(crate) backends: Vec<BackendLine>,
    pub(crate) live: Vec<LiveLine>,
    pub(crate) live_more: u64,
    pub(crate) errors: Vec<ErrorLine>,
    pub(crate) usage: Option<Usage>,
    pub(crate) spool: Option<Spool>,
    pub(crate) limits: Vec<LimitLine>,
}

/// A backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BackendLine {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) kind: Option<String>,
    pub(crate) state: String,
    pub(crate) drained: bool,
    pub(crate) error: Option<String>,
    pub(crate) in_flight: u64,
    pub(crate) waiting: u64,
    pub(crate) max_concurrent: Option<u32>,
    pub(crate) requests: u64,
    pub(crate) failed: u64,
    pub(crate) first_byte_ms: Option<f64>,
    pub(crate) tokens_per_s: f64,
    pub(crate) models: Vec<String>,
}

/// A request in flight.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LiveLine {
    pub(crate) id: String,
    pub(crate) age_ms: u64,
    pub(crate) model: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) state: String,
    pub(crate) stream: bool,
    pub(crate) tokens: u64,
}

/// A request that failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct ErrorLine {
    pub(crate) at: String,
    pub(crate) id: String,
    pub(crate) status: u16,
    pub(crate) code: Option<String>,
    pub(crate) model: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) outcome: String,
    pub(crate) message: Option<String>,
}

/// Usage by hour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Usage {
    pub(crate) hours: Vec<UsageHour>,
    pub(crate) as_of: Option<String>,
}

/// Usage of one hour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UsageHour {
    pub(crate) start: String,
    pub(crate) model: BTreeMap<String, UsageSum>,
    pub(crate) key: BTreeMap<String, UsageSum>,
}

/// Tokens and requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct UsageSum {
    pub(crate) prompt: u64,
    pub(crate) completion: u64,
    pub(crate) requests: u64,
}

/// Usage records on their way to the receiver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Spool {
    pub(crate) to: Option<String>,
    pub(crate) pending: u64,
    pub(crate) failed: u64,
    pub(crate) recorded: u64,
    pub(crate) lost: u64,
    pub(crate) last_delivery: Option<String>,
    pub(crate) error: Option<String>,
    pub(crate) books: String,
    pub(crate) books_at: Option<String>,
    pub(crate) books_problem: Option<String>,
}

/// A limit of a key, and its use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LimitLine {
    pub(crate) key: String,
    pub(crate) kind: String,
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl UsageSum {
    pub(crate) fn add(&mut self, other: Self) {
        self.prompt = self.prompt.saturating_add(other.prompt);
        self.completion = self.completion.saturating_add(other.completion);
        self.requests = self.requests.saturating_add(other.requests);
    }
}
