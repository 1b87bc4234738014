//! State of one key: what it uses of its limits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::demand::TokenDemand;
use super::exceeded::{Exceeded, LimitKind};
use super::output::OutputLengths;
use super::period::PeriodId;
use super::rates::{Rate, Rates};
use super::spend::{PeriodSpend, Spend};
use super::window::{WINDOW_MS, Window};
use crate::config::{Budget, KeyLimits};
use crate::episode::Episode;

/// Wait that is announced if a limit is used by requests in flight, whose end is not known.
const IN_FLIGHT_WAIT_MS: u64 = 1000;

/// A time, by both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Milliseconds of the monotonic clock, since the server started.
    pub(crate) mono_ms: u64,
    /// Time of the request's usage record, in milliseconds since 1970. It decides the period.
    pub(crate) wall_ms: u64,
}

/// State of one key.
#[derive(Debug)]
pub(super) struct KeyState {
    pub(super) name: Arc<str>,
    usage: Mutex<KeyUsage>,
    outputs: Arc<OutputLengths>,
    /// Number of refused requests, by [`LimitKind::index`].
    refused: [AtomicU64; LimitKind::COUNT],
    /// Number of requests that dry-run mode admitted beyond a limit.
    would_refuse: [AtomicU64; LimitKind::COUNT],
    pub(super) dry_runs: Episode,
}

/// What a key uses now.
#[derive(Debug, Default)]
pub(super) struct KeyUsage {
    /// The latest time that was seen. Threads read the clock before they take the lock, so their
    /// times can arrive out of order.
    now: u64,
    /// Requests admitted in the last 60 seconds.
    requests: Window,
    /// Tokens of the requests that ended in the last 60 seconds.
    tokens: Window,
    concurrent: u64,
    /// Tokens reserved by requests in flight.
    reserved: u64,
    spend: Spend,
}

/// Figures of a key at one time, for the store of a fleet and for `/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) requests: u64,
    pub(super) tokens: u64,
    pub(super) concurrent: u64,
    pub(super) reserved: u64,
    pub(super) day: PeriodSpend,
    pub(super) month: PeriodSpend,
}

impl KeyState {
    pub(super) fn new(name: &str, outputs: Arc<OutputLengths>) -> Self {
        Self {
            name: name.into(),
            usage: Mutex::default(),
            outputs,
            refused: Default::default(),
            would_refuse: Default::default(),
            dry_runs: Episode::default(),
        }
    }

    /// Admits a request if it exceeds no limit of this server alone.
    pub(super) fn admit(
        self: &Arc<Self>,
        limits: &KeyLimits,
        demand: TokenDemand,
        expected: u64,
        now: Now,
    ) -> (Result<Admission, Exceeded>, Rates) {
        let mut usage = self.lock();
        let found = usage.check(limits, demand, expected, now);
        let admitted = found.map(|reserved| usage.commit(limits, reserved, now));
        let rates = usage.rates(limits, now);
        drop(usage);
        let admission = admitted.map(|reserved| self.admission(reserved, true, now));
        (admission, rates)
    }

    /// Admits a request that another place has checked, or that dry-run mode lets pass.
    /// `is_counted` is false for a request that enforced limits would have refused: it counts in no
    /// window, so that the next request is judged as it would be then.
    pub(super) fn admit_unchecked(
        self: &Arc<Self>,
        limits: &KeyLimits,
        reserved: u64,
        is_counted: bool,
        now: Now,
    ) -> Admission {
        if is_counted {
            let _ = self.lock().commit(limits, reserved, now);
        }
        self.admission(reserved, is_counted, now)
    }

    fn admission(self: &Arc<Self>, reserved: u64, is_counted: bool, now: Now) -> Admission {
        Admission {
            state: Arc::clone(self),
            reserved: if is_counted { reserved } else { 0 },
            is_counted,
            is_settled: false,
            mono_ms: now.mono_ms,
            wall_ms: now.wall_ms,
        }
    }

    /// Returns the rates of the key without admitting a request.
    pub(super) fn rates(&self, limits: &KeyLimits, now: Now) -> Rates {
        let mut usage = self.lock();
        usage.rates(limits, now)
    }

    pub(super) fn figures(&self, now: Now) -> Figures {
        self.lock().figures(now)
    }

    pub(super) fn merge_staged(&self, period: PeriodId, own: u64, staged: u64) {
        self.lock().spend.merge_staged(period, own, staged);
    }

    pub(super) fn merge_remote(&self, period: PeriodId, remote: u64) {
        self.lock().spend.merge_remote(period, remote);
    }

    pub(super) fn count_refusal(&self, kind: LimitKind, is_dry_run: bool) {
        let counts = if is_dry_run {
            &self.would_refuse
        } else {
            &self.refused
        };
        counts[kind.index()].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn refused(&self, kind: LimitKind) -> u64 {
        self.refused[kind.index()].load(Ordering::Relaxed)
    }

    pub(super) fn would_refuse(&self, kind: LimitKind) -> u64 {
        self.would_refuse[kind.index()].load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, KeyUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeyUsage {
    /// Returns the tokens to reserve, or the limit that the request would exceed.
    fn check(
        &mut self,
        limits: &KeyLimits,
        demand: TokenDemand,
        expected: u64,
        now: Now,
    ) -> Result<u64, Exceeded> {
        self.now = self.now.max(now.mono_ms);
        let exceeded = |kind, limit, used, requested, wait_ms| Exceeded {
            kind,
            limit,
            used,
            requested,
            wait_ms,
        };
        let mut left = u64::MAX;
        if let Some(Budget { tokens, per }) = limits.budget {
            let period = PeriodId::at(per, now.wall_ms);
            let spent = self.spend.of(period).total();
            let used = spent.saturating_add(self.reserved);
            left = tokens.saturating_sub(used);
            demand.reserve(left, expected).map_err(|least| {
                let wait = period.end_ms().saturating_sub(now.wall_ms);
                exceeded(LimitKind::Budget(per), tokens, used, least, Some(wait))
            })?;
        }
        if let Some(limit) = limits.requests_per_minute.map(u64::from) {
            let used = self.requests.sum_at(self.now);
            if used >= limit {
                let wait = self.requests.wait_for(self.now, used - limit + 1);
                return Err(exceeded(LimitKind::Requests, limit, used, 1, wait));
            }
        }
        if let Some(limit) = limits.tokens_per_minute {
            let counted = self.tokens.sum_at(self.now);
            let used = counted.saturating_add(self.reserved);
            let left_now = limit.saturating_sub(used);
            demand.reserve(left_now, expected).map_err(|least| {
                let wait = || {
                    let wait = self.tokens.wait_for(self.now, least - left_now);
                    wait.unwrap_or(IN_FLIGHT_WAIT_MS)
                };
                let wait = (least <= limit).then(wait);
                exceeded(LimitKind::Tokens, limit, used, least, wait)
            })?;
            left = left.min(left_now);
        }
        if let Some(limit) = limits.concurrency.map(u64::from)
            && self.concurrent >= limit
        {
            let wait = Some(IN_FLIGHT_WAIT_MS);
            let used = self.concurrent;
            return Err(exceeded(LimitKind::Concurrency, limit, used, 1, wait));
        }
        if left == u64::MAX {
            return Ok(0);
        }
        // Both limits have room for the smallest demand, as checked above.
        Ok(demand.reserve(left, expected).unwrap_or(left))
    }

    /// Counts an admitted request. Returns the reserved tokens.
    fn commit(&mut self, limits: &KeyLimits, reserved: u64, now: Now) -> u64 {
        self.now = self.now.max(now.mono_ms);
        if let Some(limit) = limits.requests_per_minute {
            let _ = self.requests.sum_at(self.now);
            self.requests.add(self.now, 1, limit.into());
        }
        self.concurrent += 1;
        self.reserved = self.reserved.saturating_add(reserved);
        reserved
    }

    fn rates(&mut self, limits: &KeyLimits, now: Now) -> Rates {
        self.now = self.now.max(now.mono_ms);
        let requests = limits.requests_per_minute.map(|limit| {
            let used = self.requests.sum_at(self.now);
            Rate::new(limit.into(), used, self.requests.reset_after(self.now))
        });
        let tokens = limits.tokens_per_minute.map(|limit| {
            let used = self.tokens.sum_at(self.now);
            let used = used.saturating_add(self.reserved);
            let in_flight = if self.reserved > 0 { WINDOW_MS } else { 0 };
            let reset = self.tokens.reset_after(self.now).max(in_flight);
            Rate::new(limit, used, reset)
        });
        Rates { requests, tokens }
    }

    fn figures(&mut self, now: Now) -> Figures {
        self.now = self.now.max(now.mono_ms);
        let spend = |per| self.spend.of(PeriodId::at(per, now.wall_ms));
        let (day, month) = (
            spend(crate::config::Period::Day),
            spend(crate::config::Period::Month),
        );
        Figures {
            requests: self.requests.sum_at(self.now),
            tokens: self.tokens.sum_at(self.now),
            concurrent: self.concurrent,
            reserved: self.reserved,
            day,
            month,
        }
    }
}

/// An admitted request. It holds its share of the key's limits until it is dropped.
#[derive(Debug)]
pub(crate) struct Admission {
    state: Arc<KeyState>,
    reserved: u64,
    /// False for a request that only dry-run mode admitted.
    is_counted: bool,
    is_settled: bool,
    mono_ms: u64,
    wall_ms: u64,
}

impl Admission {
    #[cfg(test)]
    pub(super) fn admitted_at(&self) -> u64 {
        self.mono_ms
    }

    /// Replaces the reserved tokens with those of the usage record. `None` if there is no record,
    /// because metering is off: then the reserved tokens count. `age_ms` is the time since the
    /// request was admitted.
    pub(crate) fn settle(&mut self, tokens: Option<u64>, age_ms: u64) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let tokens = tokens.unwrap_or(self.reserved);
        let mut usage = self.state.lock();
        usage.reserved = usage.reserved.saturating_sub(self.reserved);
        if tokens > 0 {
            usage.now = usage.now.max(self.mono_ms.saturating_add(age_ms));
            let now = usage.now;
            let _ = usage.tokens.sum_at(now);
            if self.is_counted {
                // Tokens have coarse entries, whatever their limit.
                usage.tokens.add(now, tokens, u64::MAX);
            }
            usage.spend.add(self.wall_ms, tokens);
        }
    }

    /// Learns the output of a complete response, for requests that do not limit their output.
    pub(crate) fn learn(&self, model: &str, completion: u64, choices: u64) {
        self.state
            .outputs
            .learn(model, completion / choices.max(1));
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut usage = self.state.lock();
        if !self.is_settled {
            usage.reserved = usage.reserved.saturating_sub(self.reserved);
        }
        if self.is_counted {
            usage.concurrent = usage.concurrent.saturating_sub(1);
        }
    }
}
