//! Backends that an operator has drained.

use super::*;

#[test]
fn drained_backend_gets_no_requests_and_finishes_those_in_flight() {
    let (pool, a, _) = pool();
    let old = pool.route(Some("both")).unwrap();
    let held = chosen(&pool, Some("one"));
    let (drained, was_drained) = pool.set_drained("a", true).unwrap();
    assert_eq!((drained.id, was_drained), (a.id, false));
    assert!(a.is_drained() && !a.is_up() && a.responds());
    assert_eq!(a.outstanding(), 1, "the request in flight keeps its slot");
    for _ in 0..50 {
        for route in [&old, &pool.route(Some("both")).unwrap()] {
            let slot = slot(pool.choose(route, &SelectHints::default(), &[]));
            assert_eq!(slot.backend().name, "b");
        }
    }
    drop(held);
    assert_eq!(
        serving(&pool, Some("one")),
        "all down",
        "the model stays known"
    );
    let listed = String::from_utf8(pool.table().list().to_vec()).unwrap();
    assert!(!listed.contains("\"one\""), "{listed}");
    assert_eq!(pool.table().up(), 1);
    // Not even as the last resort, when no other backend is left.
    a.set_refuses_connections(true);
    let hints = SelectHints::default();
    assert!(pool.last_resort(&old, &hints, &[]).is_none());
    a.set_refuses_connections(false);

    assert!(pool.set_drained("a", false).unwrap().1);
    assert_eq!(serving(&pool, Some("one")), "a");
    assert_eq!(serving(&pool, Some("both")), "a b");
    assert!(pool.set_drained("c", true).is_none());
}

#[test]
fn drain_survives_a_state_change_and_a_reload_that_keeps_the_backend() {
    let (pool, a, _) = pool();
    pool.set_drained("a", true);
    pool.set_state(&a, down());
    pool.set_state(&a, up(&["both", "one"]));
    assert_eq!(serving(&pool, Some("one")), "all down");
    let keep = |names: &[&str]| {
        let backends = names.iter().map(|name| {
            Backend::new(config::Backend {
                weight: 7,
                ..config(name)
            })
        });
        pool.reconfigure(Reconfigured {
            backends: pool.plan(backends),
            keeps_discovered: false,
            aliases: Vec::new(),
            settings: RequestSettings::default_for_tests(),
            queue: 10,
            queue_timeout: Duration::from_secs(60),
        });
    };
    keep(&["a", "b"]);
    assert!(pool.table().backends[0].is_drained());
    assert_eq!(serving(&pool, Some("both")), "b");
    keep(&["b"]);
    keep(&["a", "b"]);
    assert!(!pool.table().backends[0].is_drained(), "it was removed");
    assert_eq!(serving(&pool, Some("both")), "a b");
}

#[tokio::test]
async fn waiting_request_of_a_drained_backend_is_routed_anew() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, Some(1))]);
    let route = pool.route(Some("m")).unwrap();
    let held = [chosen(&pool, Some("m")), chosen(&pool, Some("m"))];
    let hints = SelectHints::default();
    let waiting = pool.wait(&route, &hints, &[]);
    tokio::pin!(waiting);
    assert!(futures_poll(waiting.as_mut()).is_none());
    for backend in &backends {
        pool.set_drained(&backend.name, true);
    }
    assert!(matches!(waiting.await, Err(WaitError::Down)));
    drop(held);
}

/// Polls a future once.
fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut cx) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}
