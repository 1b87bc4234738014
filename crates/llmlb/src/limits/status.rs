//! State of the limits in `/status`: docs/status-json.md.

use serde_json::{Value, json};

use super::Limiter;
use super::exceeded::LimitKind;
use super::period::PeriodId;
use crate::config::{KeyLimits, LimitMode, Period};

impl Limiter {
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
    let kinds = [
        LimitKind::Requests,
        LimitKind::Tokens,
        LimitKind::Concurrency,
        LimitKind::Budget(Period::Day),
    ];
    let counts = kinds.map(|kind| (kind.name().to_owned(), Value::from(count(kind))));
    counts.into_iter().collect()
}
