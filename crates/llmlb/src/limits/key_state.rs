//! Use of the limits of one API key, which all threads share, and the admission of its requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::admission::Admission;
use super::demand::TokenDemand;
use super::exceeded::{Exceeded, LimitKind};
use super::key_usage::{KeyUsage, Now};
use super::output::OutputLengths;
use super::rates::Rates;
use crate::config::KeyLimits;
use crate::episode::Episode;

#[derive(Debug)]
pub(super) struct KeyState {
    pub(super) name: Arc<str>,
    /// Start of the monotonic clock by which the windows of the limits are measured.
    pub(super) started: Instant,
    usage: Mutex<KeyUsage>,
    pub(super) outputs: Arc<OutputLengths>,
    /// Number of refused requests, by [`LimitKind::index`].
    refused: [AtomicU64; LimitKind::COUNT],
    /// Number of requests that dry-run mode admitted beyond a limit.
    would_refuse: [AtomicU64; LimitKind::COUNT],
    pub(super) dry_runs: Episode,
}

impl KeyState {
    pub(super) fn new(name: &str, started: Instant, outputs: Arc<OutputLengths>) -> Self {
        Self {
            name: name.into(),
            started,
            usage: Mutex::default(),
            outputs,
            refused: Default::default(),
            would_refuse: Default::default(),
            dry_runs: Episode::default(),
        }
    }

    /// Admits a request if it exceeds no limit on this server. `servers` is the number of servers of a
    /// fleet, whose store does not respond: then the server enforces its share of the limits. `None`
    /// without a fleet.
    pub(super) fn admit(
        self: &Arc<Self>,
        limits: &KeyLimits,
        servers: Option<u32>,
        demand: TokenDemand,
        expected: u64,
        now: Now,
    ) -> (Result<Admission, Exceeded>, Rates) {
        let mut usage = self.lock();
        usage.limits = *limits;
        let own = servers.map_or(*limits, |servers| usage.share_of(limits, servers, now));
        let found = usage.check(&own, demand, expected, now);
        if let Ok(reserved) = found {
            usage.commit(limits, reserved, now);
            usage.unreported += u64::from(servers.is_some());
        }
        let rates = usage.rates(&own, now);
        drop(usage);
        let admission = found.map(|reserved| Admission::new(self, reserved, demand, true, now));
        (admission, rates)
    }

    /// Admits a request without checking the limits: the store of the fleet has checked them, or dry-run mode
    /// admits every request. `is_counted` is false for a request that enforced limits would have refused: it
    /// counts in no window, so that dry-run mode decides about the next request as enforced limits would.
    pub(super) fn admit_unchecked(
        self: &Arc<Self>,
        limits: &KeyLimits,
        reserved: u64,
        demand: TokenDemand,
        is_counted: bool,
        now: Now,
    ) -> Admission {
        if is_counted {
            let mut usage = self.lock();
            usage.limits = *limits;
            usage.commit(limits, reserved, now);
        }
        Admission::new(self, reserved, demand, is_counted, now)
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

    pub(super) fn lock(&self) -> MutexGuard<'_, KeyUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
