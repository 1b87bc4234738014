//! State of the limits in `/status`: docs/status-json.md.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Value, json};

use super::Limiter;
use super::exceeded::LimitKind;
use super::key_usage::{KeyUsage, Now};
use super::period::PeriodId;
use crate::config::{Budget, KeyLimits, LimitMode, Period};
use crate::keys::{ApiKey, KeyTable};

const KINDS: [LimitKind; LimitKind::COUNT] = [
    LimitKind::Requests,
    LimitKind::Tokens,
    LimitKind::Concurrency,
    LimitKind::Budget(Period::Day),
];

impl Limiter {
    /// Returns the use of each limit of a key, on this server only, without other servers of a fleet.
    pub(crate) fn uses_of(&self, key: &ApiKey, wall_ms: u64) -> Vec<LimitUse> {
        let state = self.states.get(&key.name);
        let now = self.now(wall_ms);
        uses_of(&mut state.lock(), key, now).collect()
    }

    /// Returns the number of requests of a key that its limits refused, by the limit.
    pub(crate) fn refusals_of(&self, key: &str) -> [(&'static str, u64); LimitKind::COUNT] {
        let state = self.states.get(key);
        KINDS.map(|kind| (kind.name(), state.refused(kind)))
    }

    /// Returns the state of the limits of all keys together, such as the connection to the fleet's
    /// store.
    pub(crate) fn json(&self, mode: LimitMode) -> Value {
        let mode = match mode {
            LimitMode::Enforce => "enforce",
            LimitMode::DryRun => "dry-run",
        };
        json!({
            "mode": mode,
            "fleet": self.store.as_ref().map(|store| json!({
                "reachable": store.is_reachable(), "servers": store.servers(),
            })),
        })
    }

    /// Returns the limits of a key, the current use of each, and the number of refused requests.
    pub(crate) fn json_of(&self, key: &str, limits: &KeyLimits, wall_ms: u64) -> Value {
        let state = self.states.get(key);
        let now = self.now(wall_ms);
        let mut usage = state.lock();
        let figures = usage.figures(Period::Day, now);
        let [day, month] =
            [Period::Day, Period::Month].map(|per| usage.spend.total(PeriodId::at(per, wall_ms)));
        drop(usage);
        json!({
            "requests_per_minute": limits.requests_per_minute.map(|limit| json!({
                "limit": limit, "used": figures.requests,
            })),
            "tokens_per_minute": limits.tokens_per_minute.map(|limit| json!({
                "limit": limit, "used": figures.tokens,
            })),
            "concurrency": { "limit": limits.concurrency, "used": figures.concurrent },
            "budget": limits.budget.map(|budget| json!({
                "tokens": budget.tokens,
                "per": match budget.per {
                    Period::Day => "day",
                    Period::Month => "month",
                },
            })),
            "reserved": figures.reserved,
            "spent": { "day": day, "month": month },
            "refused": counts(|kind| state.refused(kind)),
            "would_refuse": counts(|kind| state.would_refuse(kind)),
        })
    }
}

/// Maximum number of keys whose limits are compared.
const MAX_COMPARED: usize = 10_000;

/// A limit of a key, and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitUse {
    pub(crate) key: Arc<str>,
    /// `requests_per_minute`, `tokens_per_minute`, `concurrency`, `budget_day` or `budget_month`.
    pub(crate) kind: &'static str,
    pub(crate) used: u64,
    pub(crate) limit: u64,
}

impl LimitUse {
    /// Compares the shares of two limits that are used, the larger one first.
    fn compare(&self, other: &Self) -> Ordering {
        let share = |one: &Self, another: &Self| u128::from(one.used) * u128::from(another.limit);
        let by_share = share(other, self).cmp(&share(self, other));
        by_share.then_with(|| (&self.key, self.kind).cmp(&(&other.key, other.kind)))
    }
}

impl Limiter {
    /// Returns the limits of which keys use the largest share, the largest first. A key that has sent no
    /// request is left out.
    pub(crate) fn largest_uses(&self, keys: &KeyTable, max: usize) -> Vec<LimitUse> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let wall_ms = since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(0));
        let now = self.now(wall_ms);
        let mut uses = Vec::new();
        for key in keys.all().into_iter().take(MAX_COMPARED) {
            if key.limits != KeyLimits::default()
                && let Some(state) = self.states.find(&key.name)
            {
                uses.extend(uses_of(&mut state.lock(), &key, now));
            }
        }
        uses.sort_unstable_by(LimitUse::compare);
        uses.truncate(max);
        uses
    }
}

/// Returns the use of each limit of a key. Tokens that requests in flight have reserved count as used.
fn uses_of(usage: &mut KeyUsage, key: &ApiKey, now: Now) -> impl Iterator<Item = LimitUse> {
    let limits = &key.limits;
    let figures = usage.figures(Period::Day, now);
    let budget = limits.budget.map(|Budget { tokens, per }| {
        let kind = match per {
            Period::Day => "budget_day",
            Period::Month => "budget_month",
        };
        let spent = usage.spend.total(PeriodId::at(per, now.wall_ms));
        (kind, spent.saturating_add(figures.reserved), tokens)
    });
    let requests = limits.requests_per_minute.map(u64::from);
    let concurrency = limits.concurrency.map(u64::from);
    let uses = [
        requests.map(|limit| ("requests_per_minute", figures.requests, limit)),
        limits.tokens_per_minute.map(|limit| {
            let used = figures.tokens.saturating_add(figures.reserved);
            ("tokens_per_minute", used, limit)
        }),
        concurrency.map(|limit| ("concurrency", figures.concurrent, limit)),
        budget,
    ];
    let name = Arc::clone(&key.name);
    uses.into_iter()
        .flatten()
        .map(move |(kind, used, limit)| LimitUse {
            key: Arc::clone(&name),
            kind,
            used,
            limit,
        })
}

/// Returns an object with one number for each limit, such as the requests that the limit refused.
fn counts(count: impl Fn(LimitKind) -> u64) -> Value {
    let counts = KINDS.map(|kind| (kind.name().to_owned(), Value::from(count(kind))));
    counts.into_iter().collect()
}
