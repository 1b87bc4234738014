//! Concurrent selections, waits and changes on many threads.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use tokio::task::yield_now;
use tokio_util::task::TaskTracker;

use super::*;

const THREADS: u64 = 4;
const TASKS: u64 = 40;
const REQUESTS: usize = 100;

/// Runs `REQUESTS` requests in each of `TASKS` tasks on each of `THREADS` threads.
fn storm(run: impl Fn(u64, u64, usize) -> Pin + Send + Sync + Clone + 'static) {
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let run = run.clone();
            scope.spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_time()
                    .build()
                    .unwrap();
                runtime.block_on(async {
                    let tasks = TaskTracker::new();
                    for task in 0..TASKS {
                        let run = run.clone();
                        tasks.spawn(async move {
                            for request in 0..REQUESTS {
                                run(thread, task, request).await;
                            }
                        });
                    }
                    tasks.close();
                    tasks.wait().await;
                });
            });
        }
    });
}

type Pin = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

async fn hold(slot: &Slot, turns: u64) {
    for _ in 0..turns {
        let backend = slot.backend();
        let limit = backend.settings.limit.unwrap_or(u32::MAX) as usize;
        assert!((1..=limit).contains(&backend.outstanding()));
        yield_now().await;
    }
}

fn assert_idle(pool: &Pool) {
    assert_eq!(pool.waiting(), 0);
    for backend in &pool.table().backends {
        assert_eq!(backend.outstanding(), 0, "{}", backend.name);
    }
}

#[test]
fn all_requests_are_served_within_the_limits_and_all_slots_are_released() {
    let (pool, backends) = alike(&[(1, Some(1)), (2, Some(3)), (1, Some(2))]);
    let pool = Arc::new(pool);
    pool.set_state(&backends[0], up(&["m", "n"]));
    pool.set_state(&backends[1], up(&["m", "n"]));
    let (served, waited) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (Arc::clone(&served), Arc::clone(&waited));
    let shared = Arc::clone(&pool);
    storm(move |thread, task, request| {
        let pool = Arc::clone(&shared);
        let (served, waited) = (Arc::clone(&counts.0), Arc::clone(&counts.1));
        Box::pin(async move {
            let block = [task % 7, task];
            let model = if task % 3 == 0 { "n" } else { "m" };
            let hints = SelectHints {
                client: address(thread),
                blocks: &block,
                ..SelectHints::default()
            };
            let route = pool.route(Some(model)).unwrap();
            let slot = match pool.choose(&route, &hints, &[]) {
                Choice::Slot(slot) => slot,
                Choice::Busy => {
                    waited.fetch_add(1, Ordering::Relaxed);
                    pool.wait(&route, &hints, &[]).await.unwrap()
                }
                Choice::Down => panic!("all are up"),
            };
            hold(&slot, (task + request as u64) % 4).await;
            served.fetch_add(1, Ordering::Relaxed);
        })
    });
    let all = usize::try_from(THREADS * TASKS).unwrap() * REQUESTS;
    assert_eq!(served.load(Ordering::Relaxed), all);
    assert!(
        waited.load(Ordering::Relaxed) > all / 10,
        "too few requests waited"
    );
    let sent: u64 = backends.iter().map(|one| one.requests()).sum();
    assert_eq!(sent, all as u64);
    assert_idle(&pool);
}

#[test]
fn no_slot_is_lost_when_clients_disconnect_and_backends_come_and_go() {
    let (pool, backends) = alike(&[(1, Some(2)), (1, Some(2)), (1, Some(1))]);
    let pool = Arc::new(pool);
    let over = Arc::new(AtomicBool::new(false));
    let changing = {
        let (pool, over) = (Arc::clone(&pool), Arc::clone(&over));
        thread::spawn(move || {
            // The first backend stays up, so that no request fails.
            while !over.load(Ordering::Relaxed) {
                for backend in &backends[1..] {
                    pool.set_state(backend, down());
                    pool.set_state(backend, up(&["other"]));
                    thread::yield_now();
                    pool.set_state(backend, up(&["m"]));
                    for _ in 0..3 {
                        backend.stats.note_failed(Moment::now());
                    }
                }
            }
        })
    };
    let shared = Arc::clone(&pool);
    storm(move |thread, task, request| {
        let pool = Arc::clone(&shared);
        Box::pin(async move {
            let hints = SelectHints {
                client: address(thread * 100 + task % 5),
                ..SelectHints::default()
            };
            let route = pool.route(Some("m")).unwrap();
            let mut slot = match pool.choose(&route, &hints, &[]) {
                Choice::Slot(slot) => slot,
                Choice::Busy if (task + request as u64).is_multiple_of(5) => {
                    // Every fifth client disconnects while its request waits.
                    tokio::select! {
                        biased;
                        slot = pool.wait(&route, &hints, &[]) => slot.unwrap(),
                        () = yield_now() => return,
                    }
                }
                Choice::Busy => pool.wait(&route, &hints, &[]).await.unwrap(),
                Choice::Down => panic!("one is always up"),
            };
            hold(&slot, task % 3).await;
            if request % 7 == 0 {
                slot.note_began(Some(Duration::from_micros(task)));
                slot.note_ended();
            }
        })
    });
    over.store(true, Ordering::Relaxed);
    changing.join().unwrap();
    assert_idle(&pool);
}
