//! The script by which Redis decides about requests: its arguments and its results.

use redis::{Cmd, Pipeline};

use super::super::exceeded::{Exceeded, LimitKind};
use super::super::key_usage::{Figures, IN_FLIGHT_WAIT_MS, Use};
use super::super::period::PeriodId;
use super::super::rates::{Rate, Rates};
use super::super::window::WINDOW_MS;
use super::Question;
use crate::config::{Budget, KeyLimits, Period};

pub(super) const SOURCE: &str = include_str!("limits.lua");

/// Largest number that Lua, the language of the script, represents exactly. Larger figures are
/// reduced to it.
const MAX: u64 = 1 << 53;

/// Result of the script: figures of the fleet, verdicts with reserved tokens, and the spend of
/// other servers.
pub(super) type Reply = (Vec<i64>, Vec<i64>, Vec<String>);

/// Adds a call of the script to a request to Redis. `own` are the figures of this server.
pub(super) fn call(
    request: &mut Pipeline,
    (sha, prefix, server): (&str, &str, &str),
    key: &str,
    limits: &KeyLimits,
    (own, unreported): (&Figures, u64),
    questions: &[Question],
) {
    let mut command = Cmd::new();
    let number = |value: u64| value.min(MAX);
    let limit =
        |value: Option<u64>| value.map_or_else(|| "-1".to_owned(), |v| number(v).to_string());
    // The braces make a Redis cluster store all data of one API key on one node, as a script
    // requires.
    let name = |what: &str| format!("{prefix}:limits:{{{key}}}:{what}");
    let requests = match limits.requests_per_minute {
        // Windows of small and of large limits are different Redis data types. Each type needs a
        // name of its own, because a reload may change the limit.
        Some(limit) if limit > 1000 => name("rpm-coarse"),
        _ => name("rpm"),
    };
    let (period, days) = match own.period {
        Some(PeriodId::Month(month)) => (format!("spend:month-{month}"), 40),
        Some(PeriodId::Day(day)) => (format!("spend:day-{day}"), 3),
        None => ("spend".to_owned(), 1),
    };
    command.arg("EVALSHA").arg(sha).arg(3);
    command.arg(name("live")).arg(requests).arg(name(&period));
    command.arg(server);
    command.arg(limit(limits.requests_per_minute.map(u64::from)));
    command.arg(limit(limits.concurrency.map(u64::from)));
    command.arg(limit(limits.tokens_per_minute));
    command.arg(limit(limits.budget.map(|budget| budget.tokens)));
    for figure in [
        own.concurrent,
        own.reserved,
        own.tokens,
        own.own,
        own.others,
    ] {
        command.arg(number(figure));
    }
    command.arg(days);
    command.arg(number(unreported)).arg(number(own.requests));
    for question in questions {
        let (least, wanted) = question.demand.bounds(question.expected);
        command.arg(number(least)).arg(number(wanted));
    }
    request.add_command(command);
}

/// Use of a key's limits by all servers of the fleet together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FleetFigures {
    requests: u64,
    /// Milliseconds until the oldest request leaves the window of 60 seconds, so that a refused
    /// request can be admitted.
    wait: u64,
    /// Milliseconds until the newest request leaves the window of 60 seconds, so that the whole
    /// limit is available.
    reset: u64,
    concurrent: u64,
    reserved: u64,
    tokens: u64,
    spent: u64,
}

impl FleetFigures {
    pub(super) fn read(numbers: &[i64]) -> Self {
        let number = |place: usize| {
            let number = numbers.get(place).copied().unwrap_or_default();
            u64::try_from(number).unwrap_or_default()
        };
        Self {
            requests: number(0),
            wait: number(1),
            reset: number(2),
            concurrent: number(3),
            reserved: number(4),
            tokens: number(5),
            spent: number(6),
        }
    }

    /// Returns how much of the key's limits all servers of the fleet use.
    pub(super) fn uses(&self) -> Use {
        Use {
            requests: self.requests,
            concurrent: self.concurrent,
            tokens: self.tokens.saturating_add(self.reserved),
        }
    }

    /// Returns the limit that the request exceeds by the script's verdict; `None` if the request is
    /// admitted. `wait_for_tokens` is the wait until enough tokens of this server have left the
    /// window.
    pub(super) fn exceeded(
        &self,
        verdict: i64,
        question: &Question,
        wait_for_tokens: impl FnOnce(u64) -> u64,
    ) -> Option<Exceeded> {
        let limits = &question.limits;
        let (least, _) = question.demand.bounds(question.expected);
        let exceeded = |kind, limit: Option<u64>, used, requested, wait_ms| {
            let limit = limit.unwrap_or_default();
            Exceeded {
                kind,
                limit,
                used,
                requested,
                wait_ms,
            }
        };
        let requests = limits.requests_per_minute.map(u64::from);
        let concurrency = limits.concurrency.map(u64::from);
        Some(match verdict {
            1 => {
                let wait = if requests == Some(0) {
                    None
                } else {
                    Some(self.wait.max(1))
                };
                exceeded(LimitKind::Requests, requests, self.requests, 1, wait)
            }
            2 => {
                let limit = limits.tokens_per_minute;
                let used = self.tokens.saturating_add(self.reserved);
                let left = limit.unwrap_or_default().saturating_sub(used);
                let wait = (Some(least) <= limit).then(|| wait_for_tokens(least - left.min(least)));
                exceeded(LimitKind::Tokens, limit, used, least, wait)
            }
            3 => {
                let wait = Some(IN_FLIGHT_WAIT_MS);
                exceeded(
                    LimitKind::Concurrency,
                    concurrency,
                    self.concurrent,
                    1,
                    wait,
                )
            }
            4 => {
                let Budget { tokens, per } = limits.budget.unwrap_or(Budget {
                    tokens: 0,
                    per: Period::Day,
                });
                let end = PeriodId::at(per, question.now.wall_ms).end_ms();
                let wait = Some(end.saturating_sub(question.now.wall_ms));
                let used = self.spent.saturating_add(self.reserved);
                exceeded(LimitKind::Budget(per), Some(tokens), used, least, wait)
            }
            _ => return None,
        })
    }

    /// Returns what is left of the key's limits per minute on all servers together.
    pub(super) fn rates(&self, limits: &KeyLimits) -> Rates {
        let requests = limits.requests_per_minute.map(u64::from);
        Rates {
            requests: requests.map(|limit| Rate::new(limit, self.requests, self.reset)),
            tokens: limits.tokens_per_minute.map(|limit| {
                let used = self.tokens.saturating_add(self.reserved);
                Rate::new(limit, used, if used > 0 { WINDOW_MS } else { 0 })
            }),
        }
    }
}
