//! Cost of a selection. A measurement, not a test:
//! `cargo test --release -p llmlb --lib -- --ignored --nocapture choosing_costs`

use std::hint::black_box;
use std::time::Instant;

use super::*;

/// Nanoseconds per run: the best average of five series, which other programs disturbed least.
fn nanoseconds(mut run: impl FnMut()) -> f64 {
    const RUNS: u32 = 200_000;
    let mut best = f64::MAX;
    for _ in 0..5 {
        let start = Instant::now();
        for _ in 0..RUNS {
            run();
        }
        best = best.min(start.elapsed().as_secs_f64() * 1e9 / f64::from(RUNS));
    }
    best
}

#[test]
#[ignore = "a measurement"]
fn choosing_costs_the_same_among_many() {
    let blocks: Vec<u64> = (0..64).map(|block| block * 7919).collect();
    let plain = SelectHints::default();
    let prompt = SelectHints {
        blocks: &blocks,
        ..SelectHints::default()
    };
    println!("ns for route, choose and drop: backends, plain, with 64 KiB of prompt, when busy");
    for count in [2, 100, 1000] {
        let (pool, backends) = alike(&vec![(1, Some(2)); count]);
        for backend in &backends {
            backend
                .stats
                .note_latency(Duration::from_millis(50), Moment::now());
        }
        let once = |hints: &SelectHints<'_>| {
            let route = pool.route(black_box(Some("m"))).unwrap();
            drop(black_box(pool.choose(&route, hints, &[])));
        };
        let (free, known) = (nanoseconds(|| once(&plain)), nanoseconds(|| once(&prompt)));
        let held: Vec<_> = (0..2 * count).map(|_| chosen(&pool, Some("m"))).collect();
        let busy = nanoseconds(|| once(&plain));
        drop(held);
        let start = Instant::now();
        pool.set_state(&backends[0], down());
        let change = start.elapsed().as_micros();
        println!("{count:>5} {free:>7.0} {known:>7.0} {busy:>7.0}   a change: {change} us");
    }
}
