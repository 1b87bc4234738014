//! The share of a key's limits that an admitted request holds until its response has ended.

use std::sync::Arc;

use super::demand::TokenDemand;
use super::key_state::KeyState;
use super::key_usage::Now;

/// An admitted request. It holds its share of the key's limits (concurrency and reserved tokens)
/// until it is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Arc<KeyState>,
    reserved: u64,
    choices: u64,
    /// False for a request that only dry-run mode admitted. Such a request counts in no window.
    is_counted: bool,
    is_settled: bool,
    wall_ms: u64,
}

impl Admission {
    pub(super) fn new(
        state: &Arc<KeyState>,
        reserved: u64,
        demand: TokenDemand,
        is_counted: bool,
        now: Now,
    ) -> Self {
        Self {
            state: Arc::clone(state),
            reserved: if is_counted { reserved } else { 0 },
            choices: demand.choices.max(1),
            is_counted,
            is_settled: false,
            wall_ms: now.wall_ms,
        }
    }

    /// Replaces the reserved tokens of the request with those of its usage record. `None` if there
    /// is no record, because metering is off: then the reserved tokens count.
    pub(crate) fn settle(&mut self, tokens: Option<u64>) {
        let now = self.state.started.elapsed().as_millis();
        self.settle_at(tokens, u64::try_from(now).unwrap_or(u64::MAX));
    }

    pub(super) fn settle_at(&mut self, tokens: Option<u64>, now_ms: u64) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let tokens = tokens.unwrap_or(self.reserved);
        let mut usage = self.state.lock();
        usage.release_reserved(self.reserved);
        usage.use_tokens(tokens, self.is_counted, now_ms, self.wall_ms);
    }

    /// Learns how many tokens a complete response has, so that later requests for the model reserve
    /// a realistic number. For requests that do not limit their output.
    pub(crate) fn learn(&self, model: &str, completion: u64) {
        let outputs = &self.state.outputs;
        outputs.learn(model, completion / self.choices);
    }

    /// True if tokens were reserved for the request, because its key limits tokens. Only then is
    /// the output of its response worth learning.
    pub(crate) fn has_token_limit(&self) -> bool {
        self.reserved > 0
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if self.is_settled && !self.is_counted {
            return;
        }
        let mut usage = self.state.lock();
        if !self.is_settled {
            usage.release_reserved(self.reserved);
        }
        if self.is_counted {
            usage.release_concurrency();
        }
    }
}
