//! Records that survive the end of the process: one `write` for each record, shared memory, and spool.
//!
//! `process [DIRECTORY]` works below a directory on the disk to measure, by default the current one.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spool::{Durability, Staging};
use spool_bench::segment::{Appended, LENGTH, Log, Mapped, Segment};
use spool_bench::{Measured, directory, median, produce, record};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(500);
/// Interval of syncs, as in spool.
const SYNC_EVERY: Duration = Duration::from_millis(5);

fn main() {
    let dir = directory();
    println!("records of 305 bytes with process durability, median of {ROUNDS} interleaved rounds");
    println!("| producers | | records/s | p50 us | p99 us | x append |");
    println!("|--:|---|--:|--:|--:|--:|");
    for producers in [1, 8, 64] {
        let mut rounds: [Vec<Measured>; 3] = Default::default();
        for round in 0..ROUNDS {
            let round_dir = dir.path().join(format!("{producers}-{round}"));
            std::fs::create_dir(&round_dir).expect("a directory");
            rounds[0].push(bare::<Appended>(&round_dir.join("appended"), producers));
            rounds[1].push(bare::<Mapped>(&round_dir.join("mapped"), producers));
            rounds[2].push(staged(&round_dir.join("_staging"), producers));
        }
        let medians = rounds.map(|rounds| median(&rounds));
        for (name, one) in ["bare append", "bare mapping", "**spool**"]
            .iter()
            .zip(medians)
        {
            println!(
                "| {producers} | {name} | {:.0} | {:.1} | {:.1} | {:.2} |",
                one.rate,
                one.p50,
                one.p99,
                one.rate / medians[0].rate,
            );
        }
    }
    println!();
    println!(
        "one entry of {} MiB, in ms, median of {ROUNDS}",
        LENGTH >> 20
    );
    println!("| | create | fill | truncate and sync |");
    println!("|---|--:|--:|--:|");
    let mut steps = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS {
        let path = |name| dir.path().join(format!("{name}-{round}"));
        steps[0].push(entry::<Appended>(&path("appended")));
        steps[1].push(entry::<Mapped>(&path("mapped")));
    }
    for (name, steps) in ["append", "mapping"].iter().zip(steps) {
        let of = |step: usize| {
            let mut all: Vec<_> = steps.iter().map(|steps: &[f64; 3]| steps[step]).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        println!("| {name} | {:.3} | {:.1} | {:.1} |", of(0), of(1), of(2));
    }
}

/// Producers that share one log under a mutex, and a keeper that syncs it periodically.
fn bare<S: Segment>(dir: &Path, producers: usize) -> Measured {
    let line = format!("{}\n", record().json());
    let log = Mutex::new(Log::<S>::new(dir));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(SYNC_EVERY);
                let file = log.lock().expect("the log").file();
                if let Some(file) = file {
                    file.sync_data().expect("a sync");
                }
            }
        });
        let seen = produce(producers, ROUND, |_| {
            log.lock().expect("the log").add(line.as_bytes());
        });
        is_over.store(true, Ordering::Relaxed);
        log.lock().expect("the log").seal();
        seen
    })
}

fn staged(dir: &Path, producers: usize) -> Measured {
    let staging = Staging::open(dir).expect("a staging directory");
    produce(producers, ROUND, |record| {
        staging
            .stage(record, Durability::Process)
            .expect("a staged record");
    })
}

/// Returns the milliseconds to create, fill and seal one segment, without other syncs.
fn entry<S: Segment>(path: &Path) -> [f64; 3] {
    let line = format!("{}\n", record().json());
    let began = Instant::now();
    let mut segment = S::create(path);
    let created = Instant::now();
    while segment.add(line.as_bytes()) {}
    let filled = Instant::now();
    segment.seal();
    [created - began, filled - created, filled.elapsed()].map(|step| step.as_secs_f64() * 1e3)
}
