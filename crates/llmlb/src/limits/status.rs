//! Limits in `/status`: docs/status-json.md.

use serde_json::{Value, json};

use super::exceeded::LimitKind;
use super::Limiter;
use super::key_state::Figures;

use crate::config::{Budget, KeyLimits, LimitMode, Period};

impl Limiter {
    /// Returns the word of `server.limits`.
    pub(crate) fn mode(&self) -> &'static str {
        match self.mode {
            LimitMode::Enforce => "enforce",
            LimitMode::DryRun => "dry-run",
        }
    }

    /// Returns the limits of a key, what it uses of them, and how many requests were refused.
    pub(crate) fn json(&self, key: &str, limits: &KeyLimits, wall_ms: u64) -> Value {
        let state = self.state(key);
        let now = self.now(wall_ms);
        let figures = state.figures(now);
        json!({
            "requests_per_minute": limits.requests_per_minute.map(|limit| json!({
                "limit": limit, "used": figures.requests,
            })),
            "tokens_per_minute": limits.tokens_per_minute.map(|limit| json!({
                "limit": limit, "used": figures.tokens, "reserved": figures.reserved,
            })),
            "concurrency": { "limit": limits.concurrency, "used": figures.concurrent },
            "budget": limits.budget.map(|budget| self::budget(budget, &figures)),
            "spent": { "day": figures.day.total(), "month": figures.month.total() },
            "refused": counts(|kind| state.refused(kind)),
            "would_refuse": counts(|kind| state.would_refuse(kind)),
        })
    }
}

fn budget(budget: Budget, figures: &Figures) -> Value {
    let (per, spend) = match budget.per {
        Period::Day => ("day", figures.day),
        Period::Month => ("month", figures.month),
    };
    json!({
        "tokens": budget.tokens, "per": per, "spent": spend.total(), "reserved": figures.reserved,
    })
}

/// Returns the number of requests by the limit that refused them.
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
