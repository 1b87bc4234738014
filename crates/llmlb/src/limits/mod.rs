//! Limits of API keys: requests and tokens per minute, concurrency, and budgets.
//!
//! A request is admitted when it has been parsed and routed, in front of the queue for a slot. It then holds an
//! [`Admission`] until its response has ended. The tokens that it may use are reserved, and replaced
//! by the metered figure when its usage record is final, so that limits and bills agree.
//!
//! Nothing is stored here. What a key has spent in a period is the sum of its usage records, which
//! [`replay`] reads at the start; records are with the kernel before the client gets the last byte,
//! so the spend is exact after `kill -9`.

mod demand;
mod exceeded;
mod key_state;
mod output;
mod period;
mod rates;
pub(crate) mod replay;
mod spend;
mod status;
mod window;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;

use foldhash::fast::RandomState;

use crate::config::{KeyLimits, LimitMode};
use crate::episode::Event;
use key_state::KeyState;
use output::OutputLengths;

pub(crate) use demand::{OutputDemand, TokenDemand};
pub(crate) use exceeded::{Exceeded, LimitKind};
pub(crate) use key_state::{Admission, Now};
pub(crate) use rates::Rates;

/// Maximum number of keys with a state. Keys are configured, and records name them, so only programs
/// that stage records can invent some.
const MAX_KEYS: usize = 100_000;

/// Limits of all keys of a server.
#[derive(Debug)]
pub(crate) struct Limiter {
    mode: LimitMode,
    started: Instant,
    keys: RwLock<HashMap<Arc<str>, Arc<KeyState>, RandomState>>,
    outputs: Arc<OutputLengths>,
    /// State of keys beyond [`MAX_KEYS`], which share one.
    rest: Arc<KeyState>,
}

/// A request that asks for admission.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) key: &'a str,
    pub(crate) limits: &'a KeyLimits,
    pub(crate) demand: TokenDemand,
    pub(crate) model: Option<&'a str>,
    /// Time of the request's usage record, in milliseconds since 1970.
    pub(crate) wall_ms: u64,
}

impl Limiter {
    pub(crate) fn new(mode: LimitMode) -> Self {
        let outputs = Arc::default();
        Self {
            mode,
            started: Instant::now(),
            keys: RwLock::default(),
            rest: Arc::new(KeyState::new("", Arc::clone(&outputs))),
            outputs,
        }
    }

    /// Admits a request, or returns the limit that it would exceed. Also returns what is left of the
    /// key's limits, for the fields of the response.
    pub(crate) fn admit(
        &self,
        candidate: &Candidate<'_>,
    ) -> (Result<Admission, Exceeded>, Rates) {
        let Candidate {
            key,
            limits,
            demand,
            model,
            wall_ms,
        } = *candidate;
        let now = self.now(wall_ms);
        let state = self.state(key);
        if *limits == KeyLimits::default() {
            // The spend is counted for a budget that the key may get later.
            let admission = state.admit_unchecked(limits, 0, true, now);
            return (Ok(admission), Rates::default());
        }
        let expected = match demand.output {
            OutputDemand::Unlimited { .. } => self.outputs.expected(model),
            _ => 0,
        };
        let (found, rates) = state.admit(limits, demand, expected, now);
        let found = found.or_else(|exceeded| self.refuse(&state, limits, exceeded, now));
        (found, rates)
    }

    /// Counts a request beyond a limit, and admits it in dry-run mode.
    fn refuse(
        &self,
        state: &Arc<KeyState>,
        limits: &KeyLimits,
        exceeded: Exceeded,
        now: Now,
    ) -> Result<Admission, Exceeded> {
        let is_dry_run = self.mode == LimitMode::DryRun;
        state.count_refusal(exceeded.kind, is_dry_run);
        if !is_dry_run {
            return Err(exceeded);
        }
        if let Some(Event::Began | Event::Continues { .. }) = state.dry_runs.occurred(Instant::now())
        {
            tracing::info!(
                "key {} exceeds its limit on {exceeded} The request is served, because \
                 server.limits is dry-run",
                state.name
            );
        }
        Ok(state.admit_unchecked(limits, 0, false, now))
    }

    /// Returns what is left of the limits of a key, for a response to a request that needs no
    /// admission.
    pub(crate) fn rates(&self, key: &str, limits: &KeyLimits, wall_ms: u64) -> Rates {
        if limits.requests_per_minute.is_none() && limits.tokens_per_minute.is_none() {
            return Rates::default();
        }
        self.state(key).rates(limits, self.now(wall_ms))
    }

    /// Returns the state of a key, which is created by the first request.
    fn state(&self, key: &str) -> Arc<KeyState> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = keys.get(key) {
            return Arc::clone(state);
        }
        drop(keys);
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = keys.get(key) {
            return Arc::clone(state);
        }
        if keys.len() >= MAX_KEYS {
            return Arc::clone(&self.rest);
        }
        let state = Arc::new(KeyState::new(key, Arc::clone(&self.outputs)));
        keys.insert(Arc::clone(&state.name), Arc::clone(&state));
        state
    }

    fn now(&self, wall_ms: u64) -> Now {
        let mono_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Now { mono_ms, wall_ms }
    }
}
