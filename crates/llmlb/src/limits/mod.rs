//! Limits of API keys: requests and tokens per minute, concurrency, and budgets.
//!
//! A request is admitted when it has been parsed and routed, in front of the queue for a slot. It then holds an
//! [`Admission`] until its response has ended. The tokens that it may use are reserved, and replaced
//! by the metered figure when its usage record is final, so that limits and bills agree.
//!
//! No state of limits is stored on disk. The spend of a key in a period is the sum of its usage
//! records, which [`replay`] reads at the start; records are with the kernel before the client gets the last byte,
//! so the spend is exact after `kill -9`.

mod admission;
mod demand;
mod exceeded;
mod key_state;
mod key_usage;
mod output;
mod period;
mod rates;
mod replay;
mod spend;
mod status;
mod store;
mod window;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use foldhash::fast::RandomState;

use crate::config::{FleetConfig, KeyLimits, LimitMode};
use crate::episode::Event;
use crate::keys::KeyTable;
use key_state::KeyState;
use output::OutputLengths;
use replay::Replay;
use store::{Decision, LimitStore, Question};

pub(crate) use admission::Admission;
pub(crate) use demand::{OutputDemand, TokenDemand};
pub(crate) use exceeded::{Exceeded, LimitKind};
pub(crate) use key_usage::Now;
pub(crate) use rates::Rates;
pub(crate) use status::LimitUse;

/// Maximum number of keys with a state. Keys are configured, and records name them, so only programs
/// that stage records can invent some.
const MAX_KEYS: usize = 100_000;

/// Limits of all API keys of a server.
#[derive(Debug)]
pub(crate) struct Limiter {
    states: Arc<KeyStates>,
    /// Limits that the servers of a fleet enforce together; `None` without Redis.
    store: Option<LimitStore>,
    /// Reader of the usage records of other servers; empty without a data directory.
    replay: OnceLock<Replay>,
}

/// Use of the limits of all API keys.
#[derive(Debug)]
struct KeyStates {
    started: Instant,
    /// The keys of the server; `None` in tests.
    table: Option<Arc<KeyTable>>,
    keys: RwLock<HashMap<Arc<str>, Arc<KeyState>, RandomState>>,
    outputs: Arc<OutputLengths>,
    /// State that all keys beyond [`MAX_KEYS`] share, which bounds memory.
    rest: Arc<KeyState>,
}

/// A request that is to be admitted, with its key, its demand of tokens and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate<'a> {
    pub(crate) key: &'a str,
    pub(crate) limits: &'a KeyLimits,
    pub(crate) demand: TokenDemand,
    pub(crate) model: Option<&'a str>,
    /// Time of the request's usage record, in milliseconds since 1970. It decides in which period
    /// of the budget the request counts.
    pub(crate) wall_ms: u64,
    /// `server.limits`.
    pub(crate) mode: LimitMode,
}

impl Limiter {
    /// Returns the limiter of a server, which decides which requests the limits of their keys
    /// permit. `instance` is the name of the server in usage records.
    pub(crate) fn start(
        fleet: &FleetConfig,
        instance: &str,
        keys: &Arc<KeyTable>,
    ) -> io::Result<Self> {
        let states = Arc::new(KeyStates::new(Some(Arc::clone(keys))));
        Ok(Self {
            store: LimitStore::start(fleet, instance, &states)?,
            states,
            replay: OnceLock::new(),
        })
    }

    /// Reads the tokens that the keys have spent from the usage records in a data directory. Must
    /// be called before the first request is admitted, and after the records of requests that a
    /// crash interrupted are staged: otherwise budgets would count too little.
    pub(crate) fn replay(&self, data: &Path, instance: &str) -> io::Result<()> {
        let _ = self
            .replay
            .set(Replay::start(&self.states, data, instance)?);
        Ok(())
    }

    /// Ends the threads of the limiter. The store of the fleet gets the last figures of this
    /// server.
    pub(crate) fn finish(&self) {
        if let Some(replay) = self.replay.get() {
            replay.finish();
        }
        if let Some(store) = &self.store {
            store.finish();
        }
    }

    /// Admits a request, or returns the limit that it would exceed. Also returns what is left of the
    /// key's limits, for the fields of the response.
    pub(crate) async fn admit(&self, candidate: &Candidate<'_>) -> Decision {
        let state = self.states.get(candidate.key);
        let question = self.question(candidate);
        if question.limits == KeyLimits::default() {
            // Count the spend even for a key without limits: a reload may give the key a budget,
            // which then includes this spend.
            let (limits, demand) = (&question.limits, question.demand);
            let admission = state.admit_unchecked(limits, 0, demand, true, question.now);
            return (Ok(admission), Rates::default());
        }
        let mut servers = None;
        if let Some(store) = &self.store {
            if let Some((found, rates)) = store.decide(&state, question).await {
                return (judge(&state, &question, found), rates);
            }
            servers = Some(store.servers());
        }
        Self::decide_alone(&state, &question, servers)
    }

    /// Decides about a request by the limits of this server alone. `servers` is the number of
    /// servers of a fleet whose store does not respond: this server then enforces its share.
    fn decide_alone(state: &Arc<KeyState>, question: &Question, servers: Option<u32>) -> Decision {
        let Question {
            limits,
            demand,
            expected,
            now,
            ..
        } = *question;
        let (found, rates) = state.admit(&limits, servers, demand, expected, now);
        (judge(state, question, found), rates)
    }

    fn question(&self, candidate: &Candidate<'_>) -> Question {
        let expected = match candidate.demand.output {
            OutputDemand::Unlimited => self.states.outputs.expected(candidate.model),
            _ => 0,
        };
        Question {
            limits: *candidate.limits,
            demand: candidate.demand,
            expected,
            now: self.now(candidate.wall_ms),
            mode: candidate.mode,
        }
    }

    /// Returns what is left of the limits of a key, for the response to a request that needs no
    /// admission.
    pub(crate) fn rates(&self, key: &str, limits: &KeyLimits, wall_ms: u64) -> Rates {
        if limits.requests_per_minute.is_none() && limits.tokens_per_minute.is_none() {
            return Rates::default();
        }
        let state = self.states.get(key);
        let now = self.now(wall_ms);
        let mut usage = state.lock();
        usage.rates(limits, now)
    }

    fn now(&self, wall_ms: u64) -> Now {
        let mono_ms = self.states.elapsed_ms();
        Now { mono_ms, wall_ms }
    }
}

/// Counts a request that exceeds a limit. In dry-run mode the request is logged and admitted,
/// otherwise it is refused.
fn judge(
    state: &Arc<KeyState>,
    question: &Question,
    found: Result<Admission, Exceeded>,
) -> Result<Admission, Exceeded> {
    let exceeded = match found {
        Ok(admission) => return Ok(admission),
        Err(exceeded) => exceeded,
    };
    let is_dry_run = question.mode == LimitMode::DryRun;
    state.count_refusal(exceeded.kind, is_dry_run);
    if !is_dry_run {
        return Err(exceeded);
    }
    let event = state.dry_runs.occurred(Instant::now());
    if let Some(Event::Began | Event::Continues { .. }) = event {
        tracing::info!(
            "the API key `{}` exceeds its limit on {exceeded} The request is served, because \
             server.limits is `dry-run`",
            state.name
        );
    }
    let (limits, demand) = (&question.limits, question.demand);
    Ok(state.admit_unchecked(limits, 0, demand, false, question.now))
}

impl KeyStates {
    fn new(table: Option<Arc<KeyTable>>) -> Self {
        let (started, outputs) = (Instant::now(), Arc::default());
        Self {
            started,
            table,
            keys: RwLock::default(),
            rest: Arc::new(KeyState::new("", started, Arc::clone(&outputs))),
            outputs,
        }
    }

    /// True if clients need an API key. Without keys there is nothing to limit.
    fn are_needed(&self) -> bool {
        self.table.as_ref().is_none_or(|table| table.is_required())
    }

    /// Returns the milliseconds of the monotonic clock, which changes of the system time do not
    /// affect.
    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the state of a key; `None` before its first request.
    fn find(&self, key: &str) -> Option<Arc<KeyState>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.get(key).map(Arc::clone)
    }

    /// Returns the state of a key. The first request of the key creates it.
    fn get(&self, key: &str) -> Arc<KeyState> {
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
        let state = Arc::new(KeyState::new(key, self.started, Arc::clone(&self.outputs)));
        keys.insert(Arc::clone(&state.name), Arc::clone(&state));
        state
    }

    #[cfg(feature = "redis")]
    fn all(&self) -> Vec<Arc<KeyState>> {
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        keys.values().map(Arc::clone).collect()
    }
}
