//! Limits of one server, with a clock that the tests set.

use super::key_state::KeyState;
use super::key_usage::{Contact, Ever, Figures, Use};
use super::*;
use crate::config::{Budget, Period};
use crate::dice::Dice;

const DAY_MS: u64 = 24 * 3600 * 1000;

fn state() -> Arc<KeyState> {
    Arc::new(KeyState::new("alice", Instant::now(), Arc::default()))
}

fn figures(state: &KeyState, now: Now) -> Figures {
    state.lock().figures(Period::Day, now)
}

fn limiter() -> Limiter {
    Limiter {
        states: Arc::new(KeyStates::new(None)),
        store: None,
        replay: OnceLock::new(),
    }
}

fn ask(limiter: &Limiter, mode: LimitMode, limits: &KeyLimits) -> Result<Admission, Exceeded> {
    let question = limiter.question(&candidate(mode, limits));
    let state = limiter.states.get("alice");
    Limiter::decide_alone(&state, &question, None).0
}

fn at(mono_ms: u64) -> Now {
    Now {
        mono_ms,
        wall_ms: 100 * DAY_MS + mono_ms,
    }
}

fn demand(prompt: u64, output: u64) -> TokenDemand {
    TokenDemand {
        prompt,
        output: OutputDemand::AtMost(output),
        choices: 1,
    }
}

fn requests(limit: u32) -> KeyLimits {
    KeyLimits {
        requests_per_minute: Some(limit),
        ..KeyLimits::default()
    }
}

fn tokens(limit: u64) -> KeyLimits {
    KeyLimits {
        tokens_per_minute: Some(limit),
        ..KeyLimits::default()
    }
}

fn budget(tokens: u64) -> KeyLimits {
    KeyLimits {
        budget: Some(Budget {
            tokens,
            per: Period::Day,
        }),
        ..KeyLimits::default()
    }
}

fn admit(
    state: &Arc<KeyState>,
    limits: &KeyLimits,
    demand: TokenDemand,
    now: Now,
) -> Result<Admission, Exceeded> {
    state.admit(limits, None, demand, 4096, now).0
}

#[test]
fn refused_request_does_not_count() {
    let (state, limits) = (state(), requests(2));
    for now in [0, 1000] {
        drop(admit(&state, &limits, demand(1, 1), at(now)).unwrap());
    }
    for now in 2000..2100 {
        let refused = admit(&state, &limits, demand(1, 1), at(now)).unwrap_err();
        assert_eq!(refused.kind, LimitKind::Requests);
        assert_eq!(refused.wait_ms, Some(60_001 - now));
    }
    assert!(admit(&state, &limits, demand(1, 1), at(60_001)).is_ok());
    assert!(admit(&state, &limits, demand(1, 1), at(60_001)).is_err());
}

#[test]
fn concurrency_is_released_when_the_admission_is_dropped() {
    let limits = KeyLimits {
        concurrency: Some(2),
        ..KeyLimits::default()
    };
    let state = state();
    let first = admit(&state, &limits, demand(1, 1), at(0)).unwrap();
    let mut second = admit(&state, &limits, demand(1, 1), at(0)).unwrap();
    let refused = admit(&state, &limits, demand(1, 1), at(1)).unwrap_err();
    assert_eq!(refused.kind, LimitKind::Concurrency);
    second.settle_at(Some(5), 1);
    assert!(admit(&state, &limits, demand(1, 1), at(2)).is_err());
    drop(first);
    let third = admit(&state, &limits, demand(1, 1), at(3)).unwrap();
    assert!(admit(&state, &limits, demand(1, 1), at(4)).is_err());
    drop((second, third));
    assert_eq!(figures(&state, at(5)).concurrent, 0);
}

#[test]
fn settled_tokens_replace_the_reserved_ones() {
    let (state, limits) = (state(), tokens(100));
    let mut first = admit(&state, &limits, demand(10, 50), at(0)).unwrap();
    let refused = admit(&state, &limits, demand(10, 50), at(1)).unwrap_err();
    assert_eq!((refused.used, refused.requested), (60, 60));
    first.settle_at(Some(30), 1000);
    first.settle_at(Some(1_000_000), 1000);
    drop(first);
    assert_eq!(figures(&state, at(1000)).tokens, 30);
    let second = admit(&state, &limits, demand(10, 60), at(1000)).unwrap();
    drop(second);
    assert_eq!(
        figures(&state, at(1000)).reserved,
        0,
        "a failed request uses nothing"
    );
    // The settled tokens leave the window of 60 seconds, after which a new request is admitted.
    let refused = admit(&state, &limits, demand(100, 0), at(1001)).unwrap_err();
    let wait = refused.wait_ms.unwrap();
    assert!(admit(&state, &limits, demand(100, 0), at(1001 + wait)).is_ok());
}

#[test]
fn request_that_asks_for_more_than_the_limit_is_told_so() {
    let (state, limits) = (state(), tokens(100));
    let refused = admit(&state, &limits, demand(50, 51), at(0)).unwrap_err();
    assert_eq!((refused.wait_ms, refused.requested), (None, 101));
}

#[test]
fn request_without_a_maximum_takes_what_is_left() {
    let (state, limits) = (state(), budget(100));
    let demand = TokenDemand {
        prompt: 10,
        output: OutputDemand::Unlimited,
        choices: 1,
    };
    let first = admit(&state, &limits, demand, at(0)).unwrap();
    assert_eq!(figures(&state, at(0)).reserved, 100);
    let refused = admit(&state, &limits, demand, at(1)).unwrap_err();
    assert_eq!(refused.kind, LimitKind::Budget(Period::Day));
    drop(first);
}

#[test]
fn budget_ends_at_midnight_utc() {
    let (state, limits) = (state(), budget(100));
    let mut spent = admit(&state, &limits, demand(1, 99), at(0)).unwrap();
    spent.settle_at(Some(100), 0);
    drop(spent);
    let refused = admit(&state, &limits, demand(1, 1), at(1000)).unwrap_err();
    assert_eq!(refused.wait_ms, Some(DAY_MS - 1000));
    assert!(admit(&state, &limits, demand(1, 1), at(DAY_MS - 1)).is_err());
    assert!(admit(&state, &limits, demand(1, 1), at(DAY_MS)).is_ok());
    // A request that runs no model needs no tokens, so it is admitted although the budget is used
    // up.
    assert!(admit(&state, &limits, TokenDemand::default(), at(1001)).is_ok());
}

/// For any order of requests, tokens exceed the limit at most by the sum, over requests in flight,
/// of metered minus reserved tokens.
#[test]
fn tokens_exceed_the_limit_at_most_by_what_requests_in_flight_used_beyond_their_reservation() {
    for seed in 0..20 {
        let (mut dice, state, limits) = (Dice::new(seed), state(), tokens(1000));
        let mut in_flight: Vec<(Admission, u64)> = Vec::new();
        let mut now = 1;
        // Time of each settlement, its tokens, and the number of tokens beyond the reservation.
        let mut used: Vec<(u64, u64, u64)> = Vec::new();
        for _ in 0..3000 {
            now += dice.below(2000) as u64;
            if dice.below(2) == 0 {
                let (prompt, output) = (dice.below(50) as u64, dice.below(200) as u64);
                if let Ok(admission) = admit(&state, &limits, demand(prompt, output), at(now)) {
                    in_flight.push((admission, prompt + output));
                }
            } else if !in_flight.is_empty() {
                let (mut admission, reserved) = in_flight.remove(dice.below(in_flight.len()));
                let metered = dice.below(300) as u64;
                admission.settle_at(Some(metered), now);
                used.push((now, metered, metered.saturating_sub(reserved)));
            }
            let recent = used.iter().filter(|(time, ..)| time + 60_000 >= now);
            let sums = recent.fold((0, 0), |(all, beyond), one| (all + one.1, beyond + one.2));
            assert!(sums.0 <= 1000 + sums.1, "seed {seed}: {sums:?}");
        }
    }
}

/// With reservations that are never exceeded, no interval of 60 seconds has more than the limit.
#[test]
fn tokens_never_exceed_the_limit_if_reservations_hold() {
    for seed in 0..20 {
        let (mut dice, state, limits) = (Dice::new(seed), state(), tokens(1000));
        let mut in_flight: Vec<(Admission, u64)> = Vec::new();
        let mut used: Vec<(u64, u64)> = Vec::new();
        let mut now = 1;
        for _ in 0..3000 {
            now += dice.below(1500) as u64;
            if dice.below(2) == 0 {
                let wanted = demand(dice.below(50) as u64, dice.below(300) as u64);
                let reserved = wanted.reserve(1000, 0).unwrap();
                if let Ok(admission) = admit(&state, &limits, wanted, at(now)) {
                    in_flight.push((admission, reserved));
                }
            } else if !in_flight.is_empty() {
                let (mut admission, reserved) = in_flight.remove(dice.below(in_flight.len()));
                let metered = dice.below(usize::try_from(reserved).unwrap() + 1) as u64;
                admission.settle_at(Some(metered), now);
                used.push((now, metered));
            }
            let recent = used.iter().filter(|(time, _)| time + 60_000 >= now);
            let sum: u64 = recent.map(|(_, tokens)| tokens).sum();
            assert!(sum <= 1000, "seed {seed}: {sum} tokens in a minute");
        }
        drop(in_flight);
        assert_eq!(figures(&state, at(now)).reserved, 0);
        assert_eq!(figures(&state, at(now)).concurrent, 0);
    }
}

#[test]
fn concurrent_threads_admit_exactly_the_limit() {
    let limiter = limiter();
    let limits = KeyLimits {
        requests_per_minute: Some(500),
        ..KeyLimits::default()
    };
    let admitted = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let found = ask(&limiter, LimitMode::Enforce, &limits);
                    admitted.fetch_add(found.is_ok().into(), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 500);
    let status = limiter.json_of("alice", &limits, 0);
    assert_eq!(status["requests_per_minute"]["used"], 500);
    assert_eq!(status["refused"]["requests"], 1100);
}

fn candidate(mode: LimitMode, limits: &KeyLimits) -> Candidate<'_> {
    Candidate {
        key: "alice",
        limits,
        demand: demand(1, 1),
        model: None,
        wall_ms: 0,
        mode,
    }
}

#[test]
fn dry_run_counts_exactly_the_requests_that_would_be_refused() {
    let limiter = limiter();
    let limits = KeyLimits {
        requests_per_minute: Some(3),
        concurrency: Some(1),
        ..KeyLimits::default()
    };
    let first = ask(&limiter, LimitMode::DryRun, &limits).unwrap();
    let second = ask(&limiter, LimitMode::DryRun, &limits).unwrap();
    drop((first, second));
    for _ in 0..4 {
        assert!(ask(&limiter, LimitMode::DryRun, &limits).is_ok());
    }
    let status = limiter.json_of("alice", &limits, 0);
    assert_eq!(status["would_refuse"]["concurrency"], 1);
    assert_eq!(status["would_refuse"]["requests"], 2);
    assert_eq!(status["requests_per_minute"]["used"], 3);
    assert_eq!(status["refused"]["requests"], 0);
}

#[test]
fn rates_tell_what_is_left() {
    let (state, limits) = (state(), requests(3));
    let (first, rates) = state.admit(&limits, None, demand(1, 1), 0, at(10));
    let requests = rates.requests.unwrap();
    assert_eq!(
        (requests.limit, requests.remaining, requests.reset_ms),
        (3, 2, 60_001)
    );
    assert!(first.is_ok() && rates.tokens.is_none());
}

#[test]
fn share_of_the_limits_is_never_more_than_the_limits_together() {
    let state = state();
    let limits = KeyLimits {
        requests_per_minute: Some(10),
        tokens_per_minute: Some(1000),
        concurrency: Some(2),
        ..budget(900)
    };
    let mut usage = state.lock();
    let day = period::PeriodId::at(Period::Day, at(0).wall_ms);
    usage.spend.merge_own(day, 200);
    usage.spend.merge_other(day, "b:1", 100);
    usage.published = Some(usage.figures(Period::Day, at(0)));
    usage.spend.merge_own(day, 250);
    let share = usage.share_of(&limits, 3, at(0));
    assert_eq!(share.requests_per_minute, Some(3));
    assert_eq!(share.tokens_per_minute, Some(333));
    assert_eq!(
        share.concurrency,
        Some(1),
        "each server serves at least one"
    );
    // 200 tokens for each of three servers: 600 tokens of the budget were left when the spend was
    // last published.
    assert_eq!(share.budget.unwrap().tokens, 300 + 200);
    assert_eq!(
        usage.share_of(&limits, 1, at(0)).requests_per_minute,
        Some(10)
    );
}

/// The rest of the limit at the last contact is divided among the servers, so that together they
/// keep the limit.
#[test]
fn share_after_a_contact_is_a_part_of_what_was_left() {
    let state = state();
    let limits = KeyLimits {
        requests_per_minute: Some(10),
        tokens_per_minute: Some(1000),
        concurrency: Some(8),
        ..KeyLimits::default()
    };
    let mut usage = state.lock();
    usage.use_tokens(60, true, 900, at(900).wall_ms);
    usage.commit(&limits, 0, at(900));
    usage.commit(&limits, 0, at(1000));
    usage.contact = Some(Contact {
        mono_ms: 1000,
        own: Use {
            requests: 2,
            concurrent: 1,
            tokens: 100,
        },
        ended_tokens: 60,
        ever: Ever {
            requests: 2,
            tokens: 60,
        },
        all: Use {
            requests: 6,
            concurrent: 8,
            tokens: 500,
        },
    });
    let share = usage.share_of(&limits, 2, at(2000));
    assert_eq!(share.requests_per_minute, Some(2 + 2));
    assert_eq!(share.tokens_per_minute, Some(100 + 250));
    assert_eq!(share.concurrency, Some(1), "all slots are in use");
    let share = usage.share_of(&limits, 2, at(12_000));
    assert_eq!(share.concurrency, Some(4), "the other server may be dead");
    assert_eq!(share.requests_per_minute, Some(4));
    let share = usage.share_of(&limits, 2, at(61_000));
    assert_eq!(share.requests_per_minute, Some(1 + 2), "one left");
    assert_eq!(share.tokens_per_minute, Some(40 + 30 + 250), "60 left");
    let share = usage.share_of(&limits, 2, at(62_000));
    assert_eq!(share.requests_per_minute, Some(5));
}

/// Large limits are counted in steps of 100 ms. A step that is not over has not left the window.
#[test]
fn requests_in_front_of_a_short_pause_have_not_left_the_window() {
    let (state, limits) = (state(), requests(1000));
    for _ in 0..600 {
        drop(state.admit_unchecked(&limits, 0, demand(1, 1), true, at(59_910)));
    }
    let ever = figures(&state, at(59_910)).ever;
    let own = Use {
        requests: 600,
        ..Use::default()
    };
    let mut usage = state.lock();
    usage.contact = Some(Contact {
        mono_ms: 59_920,
        own,
        ever,
        all: own,
        ..Contact::default()
    });
    let share = usage.share_of(&limits, 2, at(59_990));
    assert_eq!(share.requests_per_minute, Some(600 + 200));
}

/// Without the store, servers together admit at most the limit and one request for each further server, in any
/// 60 seconds: also when the last contact gets too old.
#[test]
fn servers_without_a_store_keep_the_limit_together() {
    for seed in 0..60 {
        let mut dice = Dice::new(seed);
        let servers = [2, 3, 4][dice.below(3)];
        let limit = [10, 60, 700][dice.below(3)];
        let limits = requests(limit);
        let states: Vec<Arc<KeyState>> = (0..servers).map(|_| state()).collect();
        // Most requests of the first server are just in front of the loss, or all over the minute.
        let begin = [0, 55_000, 59_900][dice.below(3)];
        let mut admitted: Vec<u64> = Vec::new();
        let mut times: Vec<u64> = (0..dice.below(limit as usize + 1))
            .map(|_| (begin + dice.below(60_000 - begin)) as u64)
            .collect();
        times.sort_unstable();
        for time in times {
            let server = dice.below(4).saturating_sub(2).min(servers - 1);
            drop(states[server].admit_unchecked(&limits, 0, demand(1, 1), true, at(time)));
            admitted.push(time);
        }
        let contact = 60_000;
        let own = |state: &KeyState| Use {
            requests: figures(state, at(contact)).requests,
            ..Use::default()
        };
        let all = Use {
            requests: states.iter().map(|state| own(state).requests).sum(),
            ..Use::default()
        };
        for state in &states {
            let (own, ever) = (own(state), figures(state, at(contact)).ever);
            state.lock().contact = Some(Contact {
                mono_ms: contact,
                own,
                ever,
                all,
                ..Contact::default()
            });
        }
        let mut now = contact;
        while now < 250_000 {
            now += dice.below(40) as u64;
            let server = &states[dice.below(servers)];
            let count = u32::try_from(servers).unwrap();
            let found = server.admit(&limits, Some(count), demand(1, 1), 0, at(now));
            if found.0.is_ok() {
                admitted.push(now);
            }
            let recent = admitted
                .iter()
                .rev()
                .take_while(|time| **time + 60_000 >= now);
            let most = limit as usize + servers - 1;
            assert!(
                recent.count() <= most,
                "seed {seed}: limit {limit}, {servers} servers, at {now} ms"
            );
        }
    }
}
