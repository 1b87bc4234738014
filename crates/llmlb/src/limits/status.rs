//! State of the limits in `/status`: docs/status-json.md.

use serde_json::{Value, json};

use super::Limiter;
use super::exceeded::LimitKind;
use super::period::PeriodId;
use crate::config::{KeyLimits, LimitMode, Period};

const KINDS: [LimitKind; LimitKind::COUNT] = [
    LimitKind::Requests,
    LimitKind::Tokens,
    LimitKind::Concurrency,
    LimitKind::Budget(Period::Day),
];

/// Use of one limit of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitUse {
    pub(crate) kind: &'static str,
    pub(crate) limit: u64,
    /// Use at present, with tokens that requests in flight have reserved. On this server, without those of a
    /// fleet.
    pub(crate) used: u64,
}

impl Limiter {
    /// Returns the use of each limit of a key.
    pub(crate) fn uses_of(&self, key: &str, limits: &KeyLimits, wall_ms: u64) -> Vec<LimitUse> {
        let state = self.states.get(key);
        let now = self.now(wall_ms);
        let mut usage = state.lock();
        let figures = usage.figures(Period::Day, now);
        let spent = limits.budget.map_or(0, |budget| {
            usage.spend.total(PeriodId::at(budget.per, wall_ms))
        });
        drop(usage);
        let budget_kind = match limits.budget.map(|budget| budget.per) {
            Some(Period::Month) => "budget_month",
            Some(Period::Day) | None => "budget_day",
        };
        let reserved = figures.reserved;
        let uses = [
            (
                "requests_per_minute",
                limits.requests_per_minute.map(u64::from),
                figures.requests,
            ),
            (
                "tokens_per_minute",
                limits.tokens_per_minute,
                figures.tokens.saturating_add(reserved),
            ),
            (
                "concurrency",
                limits.concurrency.map(u64::from),
                figures.concurrent,
            ),
            (
                budget_kind,
                limits.budget.map(|budget| budget.tokens),
                spent.saturating_add(reserved),
            ),
        ];
        let limited = uses.into_iter().filter_map(|(kind, limit, used)| {
            Some(LimitUse {
                kind,
                limit: limit?,
                used,
            })
        });
        limited.collect()
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

/// Returns an object with one number for each limit, such as the requests that the limit refused.
fn counts(count: impl Fn(LimitKind) -> u64) -> Value {
    let counts = KINDS.map(|kind| (kind.name().to_owned(), Value::from(count(kind))));
    counts.into_iter().collect()
}
