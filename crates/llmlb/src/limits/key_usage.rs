//! Use of the limits of one API key. Pure: callers pass the time and hold the lock.

use super::demand::TokenDemand;
use super::exceeded::{Exceeded, LimitKind};
use super::period::PeriodId;
use super::rates::{Rate, Rates};
use super::spend::Spend;
use super::window::{WINDOW_MS, Window};
use crate::config::{Budget, KeyLimits, Period};

/// Wait that a refusal announces if requests in flight use up the limit, since their end is not
/// known.
pub(super) const IN_FLIGHT_WAIT_MS: u64 = 1000;
/// Maximum age of the fleet's last decision for the limit on concurrency: the fleet no longer counts the
/// requests in flight of a server that is silent for longer.
const SILENCE_MS: u64 = 10_000;

/// The current time, by the monotonic clock and by the wall clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Now {
    /// Milliseconds of the monotonic clock, since the server started.
    pub(crate) mono_ms: u64,
    /// Time of the request's usage record, in milliseconds since 1970. It decides in which period
    /// of the budget the request counts.
    pub(crate) wall_ms: u64,
}

/// Use of the limits of one API key at present.
#[derive(Debug, Default)]
pub(super) struct KeyUsage {
    /// The latest monotonic time that was seen. Threads read the clock before they take the lock,
    /// so their times can arrive out of order.
    now: u64,
    ever: Ever,
    /// Number of requests admitted in the last 60 seconds.
    requests: Window,
    /// Tokens of the requests that ended in the last 60 seconds.
    tokens: Window,
    concurrent: u64,
    /// Number of tokens reserved by requests in flight.
    reserved: u64,
    pub(super) spend: Spend,
    /// Limits of the key when it was used last. A reload of the configuration can change them.
    pub(super) limits: KeyLimits,
    /// Figures of this server that the store of the fleet has, so that unchanged figures are not
    /// published every second.
    pub(super) published: Option<Figures>,
    /// Use of the key's limits when the store of the fleet last decided about a request.
    pub(super) contact: Option<Contact>,
    /// Number of requests that were admitted without the fleet and are not reported to its store yet.
    pub(super) unreported: u64,
}

/// Use of a key's limits when the store of the fleet last decided. It divides the rest of the
/// limits among the servers while the store does not respond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Contact {
    pub(super) mono_ms: u64,
    pub(super) own: Use,
    /// Tokens of this server's requests that had ended. `own` has the reserved ones too.
    pub(super) ended_tokens: u64,
    pub(super) ever: Ever,
    /// Use of the limits by all servers of the fleet together.
    pub(super) all: Use,
}

/// Use of the limits that the servers of a fleet share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) requests: u64,
    pub(super) concurrent: u64,
    /// Tokens of the last minute, and tokens reserved by requests in flight.
    pub(super) tokens: u64,
}

/// Amounts that were added to the windows of this server since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ever {
    pub(super) requests: u64,
    pub(super) tokens: u64,
}

/// Use of a key's limits on this server at one time, as this server publishes it to its fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Figures {
    pub(super) requests: u64,
    pub(super) tokens: u64,
    pub(super) concurrent: u64,
    pub(super) reserved: u64,
    /// Period of the key's budget; the current day if the key has no budget.
    pub(super) period: Option<PeriodId>,
    /// Number of tokens that this server used in `period`.
    pub(super) own: u64,
    /// Number of tokens that other servers used in `period`, as far as they are known.
    pub(super) others: u64,
    pub(super) ever: Ever,
}

#[cfg(feature = "redis")]
impl Figures {
    /// Returns how much of the shared limits this server uses.
    pub(super) fn uses(&self) -> Use {
        Use {
            requests: self.requests,
            concurrent: self.concurrent,
            tokens: self.tokens.saturating_add(self.reserved),
        }
    }
}

impl KeyUsage {
    /// Returns the number of tokens to reserve for a request, or the limit that the request would
    /// exceed.
    pub(super) fn check(
        &mut self,
        limits: &KeyLimits,
        demand: TokenDemand,
        expected: u64,
        now: Now,
    ) -> Result<u64, Exceeded> {
        self.now = self.now.max(now.mono_ms);
        let mut left = u64::MAX;
        if let Some(budget) = limits.budget {
            left = self.check_budget(budget, demand, expected, now)?;
        }
        if let Some(limit) = limits.requests_per_minute.map(u64::from) {
            let used = self.requests.sum_at(self.now);
            if used >= limit {
                let wait_ms = self.requests.wait_for(self.now, used - limit + 1);
                return Err(Exceeded {
                    kind: LimitKind::Requests,
                    limit,
                    used,
                    requested: 1,
                    wait_ms,
                });
            }
        }
        if let Some(limit) = limits.tokens_per_minute {
            left = left.min(self.check_tokens(limit, demand, expected)?);
        }
        if let Some(limit) = limits.concurrency.map(u64::from)
            && self.concurrent >= limit
        {
            return Err(Exceeded {
                kind: LimitKind::Concurrency,
                limit,
                used: self.concurrent,
                requested: 1,
                wait_ms: Some(IN_FLIGHT_WAIT_MS),
            });
        }
        if left == u64::MAX {
            return Ok(0);
        }
        // The fallback is never used: the checks above have found enough tokens for the smallest
        // demand.
        Ok(demand.reserve(left, expected).unwrap_or(left))
    }

    /// Returns the number of tokens that are left of a budget, or the error for a request that
    /// needs more.
    fn check_budget(
        &self,
        Budget { tokens, per }: Budget,
        demand: TokenDemand,
        expected: u64,
        now: Now,
    ) -> Result<u64, Exceeded> {
        let period = PeriodId::at(per, now.wall_ms);
        let used = self.spend.total(period).saturating_add(self.reserved);
        let left = tokens.saturating_sub(used);
        match demand.reserve(left, expected) {
            Ok(_) => Ok(left),
            Err(requested) => Err(Exceeded {
                kind: LimitKind::Budget(per),
                limit: tokens,
                used,
                requested,
                wait_ms: Some(period.end_ms().saturating_sub(now.wall_ms)),
            }),
        }
    }

    /// Returns the number of tokens that are left of the limit per minute, or the error for a
    /// request that needs more.
    fn check_tokens(
        &mut self,
        limit: u64,
        demand: TokenDemand,
        expected: u64,
    ) -> Result<u64, Exceeded> {
        let used = self.tokens.sum_at(self.now).saturating_add(self.reserved);
        let left = limit.saturating_sub(used);
        match demand.reserve(left, expected) {
            Ok(_) => Ok(left),
            Err(requested) => Err(Exceeded {
                kind: LimitKind::Tokens,
                limit,
                used,
                requested,
                wait_ms: (requested <= limit).then(|| self.wait_for_tokens(requested - left)),
            }),
        }
    }

    /// Returns the milliseconds until `tokens` tokens of ended requests leave the window of 60
    /// seconds, when a refused request may be admitted.
    pub(super) fn wait_for_tokens(&self, tokens: u64) -> u64 {
        let wait = self.tokens.wait_for(self.now, tokens);
        wait.unwrap_or(IN_FLIGHT_WAIT_MS)
    }

    /// Counts an admitted request against the key's limits.
    pub(super) fn commit(&mut self, limits: &KeyLimits, reserved: u64, now: Now) {
        self.now = self.now.max(now.mono_ms);
        if let Some(limit) = limits.requests_per_minute {
            let _ = self.requests.sum_at(self.now);
            self.requests.add(self.now, 1, limit.into());
            self.ever.requests += 1;
        }
        self.concurrent += 1;
        self.reserved = self.reserved.saturating_add(reserved);
    }

    /// Counts the tokens of a usage record, whose time is `wall_ms`. `is_counted` is false for a
    /// request that only dry-run mode admitted: its tokens count in the spend, but in no window.
    pub(super) fn use_tokens(&mut self, tokens: u64, is_counted: bool, now_ms: u64, wall_ms: u64) {
        if tokens == 0 {
            return;
        }
        self.now = self.now.max(now_ms);
        if is_counted {
            let _ = self.tokens.sum_at(self.now);
            // Entries of tokens are 100 ms wide, whatever the limit: `u64::MAX` selects that width.
            self.tokens.add(self.now, tokens, u64::MAX);
            self.ever.tokens = self.ever.tokens.saturating_add(tokens);
        }
        self.spend.add(wall_ms, tokens);
    }

    pub(super) fn release_reserved(&mut self, reserved: u64) {
        self.reserved = self.reserved.saturating_sub(reserved);
    }

    pub(super) fn release_concurrency(&mut self) {
        self.concurrent = self.concurrent.saturating_sub(1);
    }

    /// Returns what is left of the key's limits per minute, for the header fields of a response.
    pub(super) fn rates(&mut self, limits: &KeyLimits, now: Now) -> Rates {
        self.now = self.now.max(now.mono_ms);
        let requests = limits.requests_per_minute.map(|limit| {
            let used = self.requests.sum_at(self.now);
            Rate::new(limit.into(), used, self.requests.reset_after(self.now))
        });
        let tokens = limits.tokens_per_minute.map(|limit| {
            let used = self.tokens.sum_at(self.now).saturating_add(self.reserved);
            let in_flight = if self.reserved > 0 { WINDOW_MS } else { 0 };
            let reset = self.tokens.reset_after(self.now).max(in_flight);
            Rate::new(limit, used, reset)
        });
        Rates { requests, tokens }
    }

    /// Returns this server's use of the key's limits. `per` is the period of the budget.
    pub(super) fn figures(&mut self, per: Period, now: Now) -> Figures {
        self.now = self.now.max(now.mono_ms);
        let period = PeriodId::at(per, now.wall_ms);
        Figures {
            requests: self.requests.sum_at(self.now),
            tokens: self.tokens.sum_at(self.now),
            concurrent: self.concurrent,
            reserved: self.reserved,
            period: Some(period),
            own: self.spend.own(period),
            others: self.spend.others(period),
            ever: self.ever,
        }
    }

    /// Returns the part of a key's limits that this server enforces while the store of the fleet
    /// does not respond.
    ///
    /// The rest of each limit at the last contact with the store is divided among the servers, so
    /// that together they do not exceed the limit. What leaves the window of this server since then is
    /// divided too, because each server gets an equal part of the whole limit once that contact is too
    /// long ago. A server serves at least one request as long as anything is left.
    pub(super) fn share_of(&self, limits: &KeyLimits, servers: u32, now: Now) -> KeyLimits {
        let servers = u64::from(servers.max(1));
        // `left`: what left the window since the last contact.
        let share = |limit: u64, known: Option<(u64, u64, u64)>| match known {
            Some((own, all, left)) => {
                let own = own.saturating_sub(left).saturating_add(left / servers);
                own.saturating_add(part(limit.saturating_sub(all), servers))
            }
            None => part(limit, servers),
        };
        let is_since = |limit_ms: u64| {
            let known = self.contact.as_ref();
            known.filter(|known| now.mono_ms.saturating_sub(known.mono_ms) <= limit_ms)
        };
        // What was added since the last contact is still in the window, so the rest of the window is older.
        let left = |window: &Window, at_contact: u64, added: u64| {
            let older = window.peek(now.mono_ms).saturating_sub(added);
            at_contact.saturating_sub(older)
        };
        let requests = is_since(WINDOW_MS).map(|known| {
            let added = self.ever.requests.saturating_sub(known.ever.requests);
            let left = left(&self.requests, known.own.requests, added);
            (known.own.requests, known.all.requests, left)
        });
        let tokens = is_since(WINDOW_MS).map(|known| {
            let added = self.ever.tokens.saturating_sub(known.ever.tokens);
            let left = left(&self.tokens, known.ended_tokens, added);
            (known.own.tokens, known.all.tokens, left)
        });
        let concurrent = is_since(SILENCE_MS);
        let concurrent = concurrent.map(|known| (known.own.concurrent, known.all.concurrent, 0));
        let small = |limit: u32, known| {
            let share = share(limit.into(), known);
            u32::try_from(share).unwrap_or(limit).min(limit)
        };
        KeyLimits {
            requests_per_minute: (limits.requests_per_minute).map(|limit| small(limit, requests)),
            tokens_per_minute: (limits.tokens_per_minute)
                .map(|limit| share(limit, tokens).min(limit)),
            concurrency: limits.concurrency.map(|limit| small(limit, concurrent)),
            budget: limits.budget.map(|budget| {
                let period = PeriodId::at(budget.per, now.wall_ms);
                // Do not deduct the published spend of this server again: what is left for all
                // servers is already smaller by it.
                let published = self.published.filter(|known| known.period == Some(period));
                let own = published.map_or(0, |known| known.own);
                let base = own.saturating_add(self.spend.others(period));
                let left = budget.tokens.saturating_sub(base);
                let tokens = base.saturating_add(part(left, servers));
                Budget {
                    tokens: tokens.min(budget.tokens),
                    ..budget
                }
            }),
        }
    }
}

/// Divides a number into equal parts and returns one of them; at least 1 unless the number is 0, so
/// that each server can serve a request.
fn part(number: u64, parts: u64) -> u64 {
    (number / parts).max(1).min(number)
}
