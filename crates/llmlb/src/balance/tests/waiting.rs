//! Waiting for a slot.

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::*;

/// A future that a test polls by hand.
struct Watched<'a>(Pin<Box<dyn Future<Output = Result<Slot, WaitError>> + 'a>>);

impl Watched<'_> {
    fn look(&mut self) -> Poll<Result<Slot, WaitError>> {
        let mut context = Context::from_waker(Waker::noop());
        self.0.as_mut().poll(&mut context)
    }

    #[track_caller]
    fn expect_slot(&mut self) -> Slot {
        match self.look() {
            Poll::Ready(Ok(slot)) => slot,
            other => panic!("no slot: {other:?}"),
        }
    }

    fn is_waiting(&mut self) -> bool {
        self.look().is_pending()
    }
}

fn wait_for<'a>(
    pool: &'a Pool,
    model: Option<&str>,
    hints: SelectHints<'a>,
    tried: &'a [BackendId],
) -> Watched<'a> {
    let route = pool.route(model).unwrap();
    let mut waiting = Watched(Box::pin(
        async move { pool.wait(&route, &hints, tried).await },
    ));
    if let Poll::Ready(outcome) = waiting.look() {
        return Watched(Box::pin(std::future::ready(outcome)));
    }
    waiting
}

fn wait(pool: &Pool, client: u64) -> Watched<'_> {
    let hints = SelectHints {
        client: address(client),
        ..SelectHints::default()
    };
    wait_for(pool, Some("m"), hints, &[])
}

#[tokio::test(start_paused = true)]
async fn freed_slot_is_given_to_a_waiting_request() {
    let (pool, backends) = alike(&[(1, Some(1))]);
    let held = chosen(&pool, Some("m"));
    let (mut first, mut second) = (wait(&pool, 1), wait(&pool, 1));
    assert_eq!(pool.waiting(), 2);
    assert!(first.is_waiting() && second.is_waiting());
    drop(held);
    let held = first.expect_slot();
    assert!(second.is_waiting());
    assert!(
        matches!(
            choose(&pool, Some("m"), &SelectHints::default(), &[]),
            Choice::Busy
        ),
        "a new request does not overtake"
    );
    drop(held);
    drop(second.expect_slot());
    assert_eq!((pool.waiting(), backends[0].outstanding()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn slot_freed_before_the_wait_is_not_missed() {
    let (pool, _) = alike(&[(1, Some(1))]);
    let route = pool.route(Some("m")).unwrap();
    let held = chosen(&pool, Some("m"));
    assert!(matches!(
        choose(&pool, Some("m"), &SelectHints::default(), &[]),
        Choice::Busy
    ));
    drop(held);
    assert!(
        pool.wait(&route, &SelectHints::default(), &[])
            .await
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn client_with_a_thousand_requests_delays_another_client_by_one() {
    let (pool, _) = alike(&[(1, Some(2))]);
    let mut held = vec![chosen(&pool, Some("m")), chosen(&pool, Some("m"))];
    let mut many: Vec<_> = (0..1000).map(|_| wait(&pool, 1)).collect();
    let mut single = wait(&pool, 2);
    let mut served = 0;
    let mut round = 0;
    let place = loop {
        held.pop();
        if let Poll::Ready(slot) = single.look() {
            break slot.unwrap();
        }
        served += 1;
        held.push(many[round].expect_slot());
        round += 1;
    };
    assert_eq!(served, 1, "one request of the first client came first");
    // Afterwards, requests of the first client and of a third client are served in turn.
    let mut others: Vec<_> = (0..10).map(|_| wait(&pool, 3)).collect();
    drop(place);
    for other in &mut others {
        let one = many[round].expect_slot();
        round += 1;
        drop(one);
        drop(other.expect_slot());
    }
}

#[tokio::test(start_paused = true)]
async fn freed_slot_is_given_to_a_request_that_can_use_it() {
    let mut limited = [config("a"), config("b")];
    for one in &mut limited {
        one.max_concurrent = Some(1);
    }
    let pool = Pool::new(pool_config(), limited.map(Backend::new));
    let backends = pool.table().backends.clone();
    pool.set_state(&backends[0], up(&["m", "x"]));
    pool.set_state(&backends[1], up(&["x"]));
    let on_a = chosen(&pool, Some("m"));
    let on_b = chosen(&pool, Some("x"));
    let mut for_m = wait(&pool, 1);
    let hints = SelectHints {
        client: address(2),
        ..SelectHints::default()
    };
    let b = [backends[1].id];
    let mut for_x_but_b = wait_for(&pool, Some("x"), hints, &b);
    let mut for_x = wait_for(&pool, Some("x"), hints, &[]);
    drop(on_b);
    assert!(for_m.is_waiting() && for_x_but_b.is_waiting());
    let on_b = for_x.expect_slot();
    assert_eq!(on_b.backend().name, "b");
    drop(on_a);
    assert_eq!(for_m.expect_slot().backend().name, "a");
    assert_eq!(for_x_but_b.expect_slot().backend().name, "a");
}

#[tokio::test(start_paused = true)]
async fn request_that_left_gets_no_slot() {
    let (pool, backends) = alike(&[(1, Some(1))]);
    let held = chosen(&pool, Some("m"));
    let (left, mut stays) = (wait(&pool, 1), wait(&pool, 2));
    drop(left);
    assert_eq!(pool.waiting(), 1);
    drop(held);
    // The slot was sent to the waiting request already, although its future was not polled yet. A
    // later request must wait.
    let mut late = wait(&pool, 3);
    drop(stays.expect_slot());
    assert_eq!(pool.waiting(), 0);
    drop(late);
    late = wait(&pool, 4);
    drop(late.expect_slot());
    assert_eq!(backends[0].outstanding(), 0);
}

#[tokio::test(start_paused = true)]
async fn queue_is_limited_in_length_and_time() {
    let config = PoolConfig {
        queue: 1,
        ..pool_config()
    };
    let (pool, _) = alike_with(config, &[(1, Some(1))]);
    let route = pool.route(Some("m")).unwrap();
    let hints = SelectHints::default();
    let held = chosen(&pool, Some("m"));
    let start = tokio::time::Instant::now();
    let (first, second) = tokio::join!(
        pool.wait(&route, &hints, &[]),
        pool.wait(&route, &hints, &[])
    );
    assert_eq!(first.unwrap_err(), WaitError::TimedOut);
    assert_eq!(second.unwrap_err(), WaitError::Full);
    assert_eq!(start.elapsed().as_secs(), 60);
    assert_eq!(pool.waiting(), 0);
    drop(held);
    drop(chosen(&pool, Some("m")));
}

#[tokio::test(start_paused = true)]
async fn backend_that_comes_up_or_is_added_serves_waiting_requests() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, Some(2))]);
    pool.set_state(&backends[1], down());
    let held = chosen(&pool, Some("m"));
    let mut waiting = [1, 2, 3, 4].map(|client| wait(&pool, client));
    pool.set_state(&backends[1], up(&["m"]));
    let slots = [waiting[0].expect_slot(), waiting[1].expect_slot()];
    assert!(waiting[2].is_waiting());
    let added = pool.add(backend("new")).unwrap();
    assert!(waiting[2].is_waiting());
    pool.set_state(&added, up(&["m"]));
    assert_eq!(waiting[2].expect_slot().backend().name, "new");
    assert_eq!(waiting[3].expect_slot().backend().name, "new");
    drop((held, slots));
}

#[tokio::test(start_paused = true)]
async fn request_with_an_old_route_waits_for_the_current_backends() {
    let (pool, _) = alike(&[(1, Some(1))]);
    let held = chosen(&pool, Some("m"));
    let before = pool.route(Some("m")).unwrap();
    let added = pool.add(backend("new")).unwrap();
    pool.set_state(&added, up(&["m"]));
    let slot = pool
        .wait(&before, &SelectHints::default(), &[])
        .await
        .unwrap();
    assert_eq!(slot.backend().name, "new");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn waiting_requests_fail_at_once_when_no_backend_serves_the_model_any_more() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, Some(1))]);
    let held = [chosen(&pool, Some("m")), chosen(&pool, Some("m"))];
    let (mut one, mut two) = (wait(&pool, 1), wait(&pool, 1));
    pool.set_state(&backends[0], down());
    assert!(one.is_waiting() && two.is_waiting());
    pool.set_state(&backends[1], up(&["other"]));
    assert!(matches!(one.look(), Poll::Ready(Err(WaitError::Down))));
    assert!(matches!(two.look(), Poll::Ready(Err(WaitError::Down))));
    assert_eq!(pool.waiting(), 0);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn waiting_request_is_the_trial_as_soon_as_it_is_due() {
    let (pool, backends) = alike(&[(1, Some(2)), (1, Some(1))]);
    for _ in 0..3 {
        backends[0].stats.note_failed(Moment::now());
    }
    let held = chosen(&pool, Some("m"));
    assert_eq!(held.backend().id, backends[1].id);
    let start = tokio::time::Instant::now();
    let hints = SelectHints::default();
    let route = pool.route(Some("m")).unwrap();
    let (trial, rest) = tokio::join!(pool.wait(&route, &hints, &[]), async {
        tokio::time::sleep(Duration::from_millis(1010)).await;
        let mut rest = wait(&pool, 9);
        assert!(rest.is_waiting(), "one trial at a time");
        rest
    });
    let (mut trial, mut rest) = (trial.unwrap(), rest);
    assert!(
        start.elapsed() < Duration::from_millis(1020),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(trial.backend().id, backends[0].id);
    trial.note_began(Some(Duration::from_millis(1)));
    assert_eq!(rest.expect_slot().backend().id, backends[0].id);
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn waiting_request_uses_the_trial_of_a_later_ejection() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, Some(1))]);
    let held = [chosen(&pool, Some("m")), chosen(&pool, Some("m"))];
    let (bad, good) = if held[0].backend().id == backends[0].id {
        (&held[0], &held[1])
    } else {
        (&held[1], &held[0])
    };
    let route = pool.route(Some("m")).unwrap();
    let hints = SelectHints::default();
    let start = tokio::time::Instant::now();
    let waiting = pool.wait(&route, &hints, &[]);
    let failing = async {
        tokio::task::yield_now().await;
        (0..3).for_each(|_| bad.note_failed());
        bad.backend().stats.release(); // The failed request ends.
        std::future::pending::<()>().await;
    };
    let slot = tokio::select! {
        slot = waiting => slot.unwrap(),
        () = failing => unreachable!(),
    };
    assert_eq!(slot.backend().id, bad.backend().id);
    assert!(
        start.elapsed() < Duration::from_millis(1010),
        "{:?}",
        start.elapsed()
    );
    // When the healthy backend is ejected too, the waiting request uses an ejected backend at once.
    let mut last = wait(&pool, 1);
    assert!(last.is_waiting());
    drop(slot);
    assert!(last.is_waiting(), "the trial is running");
    (0..3).for_each(|_| good.note_failed());
    assert_eq!(last.expect_slot().backend().id, bad.backend().id);
    bad.backend().stats.try_acquire(9); // `held` releases this slot.
}

#[tokio::test(start_paused = true)]
async fn request_with_an_issued_id_waits_for_its_issuer() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, Some(1))]);
    pool.note_issued(IdHash(5), &backends[1]);
    let issued = SelectHints {
        issued: Some(IdHash(5)),
        ..SelectHints::default()
    };
    for model in [None, Some("m")] {
        let held = slot(choose(&pool, model, &issued, &[]));
        let mut waiting = wait_for(&pool, model, issued, &[]);
        let other = chosen(&pool, Some("m"));
        assert_eq!(other.backend().id, backends[0].id);
        drop(other);
        assert!(waiting.is_waiting());
        drop(held);
        assert_eq!(waiting.expect_slot().backend().id, backends[1].id);
    }
}

#[tokio::test(start_paused = true)]
async fn request_without_a_model_waits_for_the_first_backend() {
    let (pool, backends) = alike(&[(1, Some(1)), (1, Some(1))]);
    let first = chosen(&pool, None);
    let second = chosen(&pool, Some("m"));
    let mut waiting = wait_for(&pool, None, SelectHints::default(), &[]);
    drop(second);
    assert!(waiting.is_waiting());
    drop(first);
    assert_eq!(waiting.expect_slot().backend().id, backends[0].id);
}
