//! Ejection by responses that a client may provoke.

use std::sync::Barrier;
use std::thread;

use http::StatusCode;

use super::*;

/// Returns evidence against a backend: the response 500 to a request of this client with this
/// prompt.
fn evidence(client: u64, prompt: u64) -> Evidence {
    Evidence {
        fault: Fault::Status(StatusCode::INTERNAL_SERVER_ERROR),
        client: address(client),
        prompt,
    }
}

/// Reports three responses to the pool that are sufficient evidence against the backend.
fn suspect(pool: &Pool, backend: &Backend) {
    for prompt in 0..3 {
        pool.suspect(backend, evidence(1, prompt));
    }
}

const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn evidence_ejects_a_backend_unless_it_is_the_last_one() {
    let (pool, backends) = alike(&[(1, None), (1, None), (1, None)]);
    suspect(&pool, &backends[0]);
    suspect(&pool, &backends[2]);
    suspect(&pool, &backends[1]);
    let ejected = backends.iter().map(|one| one.is_ejected());
    assert_eq!(ejected.collect::<Vec<_>>(), [true, false, true]);
    assert!(!pool.back_off(&backends[1], MINUTE));
    assert!(!backends[1].is_ejected());
}

#[test]
fn credentials_of_one_address_are_one_client() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    for credential in 0..100 {
        let client = ClientKey {
            address: 1,
            credential,
        };
        pool.suspect(
            &backends[0],
            Evidence {
                client,
                ..evidence(1, 7)
            },
        );
    }
    assert!(!backends[0].is_ejected());
    pool.suspect(&backends[0], evidence(2, 7));
    assert!(backends[0].is_ejected());
}

#[test]
fn backend_that_is_down_or_ejected_does_not_make_another_dispensable() {
    let (pool, backends) = alike(&[(1, None), (1, None), (1, None)]);
    pool.set_state(&backends[1], down());
    for _ in 0..3 {
        backends[2].stats.note_failed(Moment::now());
    }
    suspect(&pool, &backends[0]);
    assert!(!backends[0].is_ejected() && !pool.back_off(&backends[0], MINUTE));
    pool.set_state(&backends[1], up(&["m"]));
    assert!(pool.back_off(&backends[0], MINUTE));
    assert!(backends[0].is_ejected());
}

#[test]
fn last_backend_of_any_model_or_alias_is_never_ejected_by_evidence() {
    let (pool, a, b) = pool();
    suspect(&pool, &a);
    assert!(!a.is_ejected(), "no other backend serves `one`");
    suspect(&pool, &b);
    assert!(b.is_ejected());
    let config = PoolConfig {
        aliases: vec![Alias {
            name: "m".to_owned(),
            models: vec!["n".to_owned()],
        }],
        ..pool_config()
    };
    let pool = Pool::new(config, [backend("a"), backend("b")]);
    let backends = pool.table().backends.clone();
    pool.set_state(&backends[0], up(&["m", "n"]));
    pool.set_state(&backends[1], up(&["m"]));
    suspect(&pool, &backends[0]);
    assert!(!backends[0].is_ejected(), "the alias hides the model `m`");
    suspect(&pool, &backends[1]);
    assert!(backends[1].is_ejected(), "no request can name it");
}

#[test]
fn two_threads_never_eject_both_backends() {
    for _ in 0..300 {
        let (pool, backends) = alike(&[(1, None), (1, None)]);
        for backend in &backends {
            pool.suspect(backend, evidence(1, 1));
            pool.suspect(backend, evidence(2, 1));
        }
        let start = Barrier::new(2);
        thread::scope(|scope| {
            for backend in &backends {
                let (pool, start) = (&pool, &start);
                scope.spawn(move || {
                    start.wait();
                    pool.suspect(backend, evidence(3, 1));
                });
            }
        });
        let ejected = backends.iter().filter(|one| one.is_ejected()).count();
        assert_eq!(ejected, 1);
    }
}

#[test]
fn insufficient_evidence_does_not_keep_a_backend_on_trial() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    let stats = &backends[0].stats;
    // The failures are long past, so a trial is due.
    for _ in 0..3 {
        stats.note_failed(Moment(0));
    }
    let later = Moment(10_000);
    assert!(stats.claim_trial(later) && !stats.claim_trial(later));
    pool.suspect(&backends[0], evidence(1, 1));
    assert!(stats.claim_trial(later), "the next trial");
}

#[test]
fn success_clears_evidence() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    for round in 0..10 {
        pool.suspect(&backends[0], evidence(1, round));
        pool.suspect(&backends[0], evidence(2, round));
        backends[0].learned.suspicion.clear();
    }
    assert!(!backends[0].is_ejected());
}

fn wanting(endpoint: EndpointKey) -> SelectHints<'static> {
    SelectHints {
        endpoint: Some(endpoint),
        ..SelectHints::default()
    }
}

#[test]
fn backend_that_lacks_an_endpoint_is_used_only_if_no_other_is_left() {
    let (pool, backends) = alike(&[(1, None), (1, Some(1)), (1, None)]);
    let messages = EndpointKey::new("messages", true);
    let hints = wanting(messages);
    for lacking in [&backends[0], &backends[2]] {
        lacking.note_missing(messages, StatusCode::NOT_FOUND, "/v1/messages");
    }
    let held = slot(choose(&pool, Some("m"), &hints, &[]));
    assert_eq!(held.backend().id, backends[1].id);
    assert!(
        matches!(choose(&pool, Some("m"), &hints, &[]), Choice::Busy),
        "the request waits for the backend that serves it"
    );
    assert_ne!(
        chosen(&pool, Some("m")).backend().id,
        backends[1].id,
        "any other endpoint"
    );
    let tried = [backends[1].id];
    let other = choose(&pool, Some("m"), &hints, &tried);
    assert!(
        matches!(other, Choice::Down),
        "the others would respond 404"
    );
    drop(held);
    pool.set_state(&backends[1], down());
    let lacking = slot(choose(&pool, Some("m"), &hints, &[]));
    assert_ne!(lacking.backend().id, backends[1].id);
    drop(lacking);
    // Requests without a model go to the first backend that serves the endpoint.
    pool.set_state(&backends[1], up(&["m"]));
    let first = slot(choose(&pool, None, &hints, &[]));
    assert_eq!(first.backend().id, backends[1].id);
}

#[test]
fn endpoint_is_tried_again_when_the_backend_comes_up_or_serves_it() {
    let (pool, backends) = alike(&[(1, None)]);
    let messages = EndpointKey::new("messages", true);
    let lacks = || backends[0].lacks(messages, Moment::now());
    let missing = || backends[0].note_missing(messages, StatusCode::NOT_FOUND, "/v1/messages");
    missing();
    assert!(lacks());
    pool.set_state(&backends[0], down());
    pool.set_state(&backends[0], up(&["m"]));
    assert!(!lacks());
    backends[0].note_served(messages);
    missing();
    assert!(!lacks() && !backends[0].may_lack(messages));
}

#[test]
fn websocket_goes_to_a_backend_that_accepted_one_until_that_backend_was_down() {
    let (pool, backends) = alike(&[(1, None), (1, None)]);
    let websocket = EndpointKey::websocket("/v1/responses");
    let accepts = |route: &str| {
        let route = pool.route(Some(route)).unwrap();
        route.accepts_websocket(websocket)
    };
    assert!(!accepts("m") && !pool.table().accepts_websocket(websocket));
    // A successful ordinary request to the same path is no proof of support for WebSockets.
    backends[1].note_served(EndpointKey::new("/v1/responses", true));
    assert!(!accepts("m"));
    backends[1].note_served(websocket);
    assert!(accepts("m") && pool.table().accepts_websocket(websocket));
    for _ in 0..20 {
        let slot = slot(choose(&pool, Some("m"), &wanting(websocket), &[]));
        assert_eq!(slot.backend().id, backends[1].id);
    }
    pool.set_state(&backends[1], down());
    pool.set_state(&backends[1], up(&["m"]));
    assert!(!accepts("m"));
}
