//! Selection of a backend.

use super::*;
use crate::balance::choose::Selection;
use crate::issued_ids::IdHash;

const SECOND: Duration = Duration::from_secs(1);

fn fail(backend: &Arc<Backend>, now: Moment) {
    for _ in 0..3 {
        backend.stats.note_failed(now);
    }
}

fn counts(pool: &Pool, backends: usize, requests: usize, now: Moment) -> Vec<usize> {
    let mut counts = vec![0; backends];
    let mut random = Random::seeded(5);
    let route = pool.route(Some("m")).unwrap();
    for _ in 0..requests {
        let choice = pool.choose_at(&route, &SelectHints::default(), &[], now, &mut random);
        counts[slot(choice).backend().id.0 as usize] += 1;
    }
    counts
}

#[test]
fn slot_counts_until_it_is_dropped() {
    let (pool, a, b) = pool();
    let busy = chosen(&pool, Some("one"));
    assert_eq!((a.outstanding(), a.requests()), (1, 1));
    for _ in 0..5 {
        let name = chosen(&pool, Some("both")).backend().name.clone();
        assert_eq!(name, b.name, "the idle backend");
    }
    drop(busy);
    assert_eq!((a.outstanding(), a.requests()), (0, 1));
}

#[test]
fn selection_is_busy_when_all_backends_are_at_max_concurrent() {
    let (pool, backends) = alike(&[(1, Some(2)), (1, Some(1))]);
    let slots: Vec<_> = (0..3).map(|_| chosen(&pool, Some("m"))).collect();
    let outstanding: Vec<_> = backends.iter().map(|one| one.outstanding()).collect();
    assert_eq!(outstanding, [2, 1]);
    let hints = SelectHints::default();
    assert!(matches!(
        choose(&pool, Some("m"), &hints, &[]),
        Choice::Busy
    ));
    drop(slots);
    drop(chosen(&pool, Some("m")));
}

#[test]
fn tried_backend_is_not_chosen_again() {
    let (pool, backends) = alike(&[(1, None); 3]);
    let hints = SelectHints::default();
    let mut tried = Vec::new();
    for _ in 0..3 {
        let slot = slot(choose(&pool, Some("m"), &hints, &tried));
        assert!(!tried.contains(&slot.backend().id));
        tried.push(slot.backend().id);
    }
    assert!(matches!(
        choose(&pool, Some("m"), &hints, &tried),
        Choice::Down
    ));
    let [a, b, c] = &backends[..] else { panic!() };
    let two = [a.id, c.id];
    for _ in 0..20 {
        assert_eq!(
            slot(choose(&pool, Some("m"), &hints, &two)).backend().id,
            b.id
        );
    }
}

#[test]
fn sequential_requests_are_shared_by_weight() {
    let (pool, _) = alike(&[(1, None), (3, None), (6, None)]);
    let counts = counts(&pool, 3, 10_000, Moment(1));
    for (count, share) in counts.iter().zip([1, 3, 6]) {
        assert!(count.abs_diff(share * 1000) < 150, "{counts:?}");
    }
}

#[test]
fn concurrent_requests_are_shared_by_weight() {
    let weights = [1, 2, 3, 4];
    let (pool, backends) = alike(&weights.map(|weight| (weight, None)));
    let route = pool.route(Some("m")).unwrap();
    let mut random = Random::seeded(11);
    let mut slots = std::collections::VecDeque::new();
    for request in 0..20_000 {
        let choice = pool.choose_at(&route, &SelectHints::default(), &[], Moment(1), &mut random);
        slots.push_back(slot(choice));
        if request >= 200 {
            // Each request ends after 200 later ones have begun, so all requests take equally long.
            slots.pop_front();
        }
    }
    for (backend, weight) in backends.iter().zip(weights) {
        let expected = u64::from(weight) * 2000;
        assert!(
            backend.requests().abs_diff(expected) < expected / 20,
            "{} {}",
            backend.name,
            backend.requests()
        );
        let share = weight as usize * 20;
        assert!(backend.outstanding().abs_diff(share) <= 8, "{backend:?}");
    }
}

#[test]
fn slow_backend_gets_fewer_requests_until_its_latency_decays() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    backends[0].stats.note_latency(10 * SECOND, Moment(1));
    backends[1].stats.note_latency(SECOND / 10, Moment(1));
    assert_eq!(counts(&pool, 2, 100, Moment(1)), [0, 100]);
    // Comparisons limit the ratio of latencies to 4, so the fast backend gets four times the load of the
    // slow one.
    let route = pool.route(Some("m")).unwrap();
    let mut random = Random::seeded(1);
    let mut choose =
        || slot(pool.choose_at(&route, &SelectHints::default(), &[], Moment(1), &mut random));
    let slots: Vec<_> = (0..50).map(|_| choose()).collect();
    let outstanding = [backends[0].outstanding(), backends[1].outstanding()];
    assert_eq!(outstanding, [10, 40]);
    drop(slots);
    let later = Moment(200_000);
    let [slow, fast] = counts(&pool, 2, 1000, later)[..] else {
        panic!()
    };
    assert!(slow.abs_diff(fast) < 150, "{slow} {fast}");
}

#[test]
fn backend_with_three_failures_is_ejected_for_a_second_then_gets_a_trial() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    let bad = &backends[0];
    let (now, later) = (Moment(10_000), Moment(11_000));
    bad.stats.note_failed(now);
    bad.stats.note_failed(now);
    assert!(counts(&pool, 2, 100, now)[0] > 0, "two failures");
    bad.stats.note_failed(now);
    assert_eq!(counts(&pool, 2, 100, now), [0, 100]);
    assert_eq!(counts(&pool, 2, 100, Moment(10_999)), [0, 100]);
    assert_eq!(counts(&pool, 2, 100, later), [1, 99], "one trial");
    bad.stats.note_began(later);
    assert!(counts(&pool, 2, 100, later)[0] > 20);
}

#[test]
fn ejected_backends_are_used_if_there_is_no_other() {
    let (pool, backends) = alike(&[(1, None), (1, None), (1, None)]);
    let now = Moment(10_000);
    for one in &backends {
        fail(one, now);
    }
    let counts = counts(&pool, 3, 300, now);
    assert!(counts.iter().all(|count| *count > 30), "{counts:?}");
    // Only one backend was not tried yet. It is used although it is ejected.
    let tried = [backends[0].id, backends[1].id];
    let route = pool.route(Some("m")).unwrap();
    let mut random = Random::seeded(1);
    let last = pool.choose_at(&route, &SelectHints::default(), &tried, now, &mut random);
    assert_eq!(slot(last).backend().id, backends[2].id);
}

#[test]
fn ejected_backend_at_max_concurrent_is_busy_not_down() {
    let (pool, backends) = alike(&[(1, Some(1))]);
    let held = chosen(&pool, Some("m"));
    fail(&backends[0], Moment::now());
    let hints = SelectHints::default();
    for model in [Some("m"), None] {
        assert!(matches!(choose(&pool, model, &hints, &[]), Choice::Busy));
    }
    drop(held);
    drop(chosen(&pool, Some("m")));
}

#[test]
fn request_waits_for_a_healthy_backend_rather_than_use_an_ejected_one() {
    let (pool, backends) = alike(&[(1, None), (1, Some(1))]);
    let now = Moment(10_000);
    fail(&backends[0], now);
    let route = pool.route(Some("m")).unwrap();
    let mut random = Random::seeded(1);
    let mut choose = |now| pool.choose_at(&route, &SelectHints::default(), &[], now, &mut random);
    let busy = slot(choose(now));
    assert_eq!(busy.backend().id, backends[1].id);
    assert!(matches!(choose(now), Choice::Busy));
    let trial = slot(choose(Moment(11_000)));
    assert_eq!(trial.backend().id, backends[0].id);
    assert!(
        matches!(choose(Moment(11_000)), Choice::Busy),
        "one trial at a time"
    );
}

#[test]
fn backend_that_comes_up_again_is_not_ejected() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    fail(&backends[0], Moment::now());
    assert!(backends[0].is_ejected() && !backends[1].is_ejected());
    pool.set_state(&backends[0], down());
    pool.set_state(&backends[0], up(&["m"]));
    assert!(!backends[0].is_ejected());
    assert!(counts(&pool, 2, 100, Moment::now())[0] > 20);
}

#[test]
fn slot_reports_failures_and_latency() {
    let (pool, backends) = alike(&[(1, None)]);
    for _ in 0..3 {
        assert!(!backends[0].is_ejected());
        chosen(&pool, Some("m")).note_failed();
    }
    assert!(backends[0].is_ejected());
    chosen(&pool, Some("m")).note_began(Some(SECOND));
    assert!(!backends[0].is_ejected());
    assert_eq!(backends[0].stats.latency(Moment::now()), 1_000_000);
}

#[test]
fn request_with_an_issued_id_is_sent_to_its_issuer() {
    let (pool, a, b) = pool();
    pool.note_issued(IdHash(77), &b);
    let named = SelectHints {
        issued: Some(IdHash(77)),
        ..SelectHints::default()
    };
    for model in [None, Some("both")] {
        for _ in 0..10 {
            assert_eq!(slot(choose(&pool, model, &named, &[])).backend().id, b.id);
        }
        let tried = choose(&pool, model, &named, &[b.id]);
        assert!(matches!(tried, Choice::Down), "no other backend has it");
    }
    let other = choose(&pool, Some("one"), &named, &[]);
    assert_eq!(slot(other).backend().id, a.id, "b does not serve `one`");
    let unknown = SelectHints {
        issued: Some(IdHash(78)),
        ..SelectHints::default()
    };
    assert_eq!(slot(choose(&pool, None, &unknown, &[])).backend().id, a.id);
    fail(&b, Moment::now());
    assert_eq!(slot(choose(&pool, None, &named, &[])).backend().id, b.id);
    pool.set_state(&b, down());
    assert!(matches!(choose(&pool, None, &named, &[]), Choice::Down));
}

#[test]
fn request_without_a_model_waits_for_the_first_backend_that_is_up() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, None)]);
    let hints = SelectHints::default();
    let first = chosen(&pool, None);
    assert_eq!(first.backend().id, backends[0].id);
    assert!(matches!(choose(&pool, None, &hints, &[]), Choice::Busy));
    drop(first);
    // The first backend is used although it is ejected: the object that a request without a model names may
    // be stored only there.
    fail(&backends[0], Moment::now());
    assert_eq!(chosen(&pool, None).backend().id, backends[0].id);
    let tried = [backends[0].id];
    let next = choose(&pool, None, &hints, &tried);
    assert_eq!(slot(next).backend().id, backends[1].id);
    pool.set_state(&backends[0], down());
    assert_eq!(chosen(&pool, None).backend().id, backends[1].id);
}

#[test]
fn recovery_is_the_time_of_the_next_trial() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, None), (1, None)]);
    let held = chosen(&pool, None);
    let now = Moment(10_000);
    let recovery = |model, only, tried: &[BackendId], now| {
        let selection = Selection {
            route: &pool.route(model).unwrap(),
            only,
            tried,
            endpoint: None,
            now,
            average: None,
        };
        selection.recovery()
    };
    assert_eq!(recovery(Some("m"), None, &[], now), None);
    fail(&backends[0], Moment(9_500));
    fail(&backends[2], Moment(9_700));
    let (first, third) = (Some(Moment(10_500)), Some(Moment(10_700)));
    assert_eq!(
        recovery(Some("m"), None, &[], now),
        first,
        "although the backend is full"
    );
    let tried = [backends[0].id];
    assert_eq!(recovery(Some("m"), None, &tried, now), third);
    assert_eq!(recovery(None, None, &[], now), None, "no model");
    assert_eq!(recovery(Some("m"), Some(2), &[], now), third);
    assert_eq!(recovery(Some("m"), Some(1), &[], now), None);
    let later = Moment(10_600);
    assert_eq!(
        recovery(Some("m"), None, &[], later),
        third,
        "the first is full"
    );
    drop(held);
    assert_eq!(recovery(Some("m"), None, &[], later), Some(later), "now");
}

#[test]
fn free_backend_is_found_among_many_that_are_full() {
    let (pool, backends) = alike(&[(1, Some(1)); 200]);
    let held: Vec<_> = (0..200).map(|_| chosen(&pool, Some("m"))).collect();
    assert!(backends.iter().all(|one| one.outstanding() == 1));
    let hints = SelectHints::default();
    for slot in held {
        assert!(matches!(
            choose(&pool, Some("m"), &hints, &[]),
            Choice::Busy
        ));
        let id = slot.backend().id;
        drop(slot);
        let found = chosen(&pool, Some("m"));
        assert_eq!(found.backend().id, id);
        // The slot is never released, so that this backend stays full. In the next round only the
        // next backend is free.
        std::mem::forget(found);
    }
}

#[test]
fn route_finds_a_backend_that_came_up_later() {
    let (pool, a, b) = pool();
    pool.set_state(&a, down());
    pool.set_state(&b, down());
    let route = pool.route(Some("both")).unwrap();
    let hints = SelectHints::default();
    assert!(matches!(pool.choose(&route, &hints, &[]), Choice::Down));
    pool.set_state(&b, up(&["both"]));
    assert_eq!(slot(pool.choose(&route, &hints, &[])).backend().id, b.id);
}
