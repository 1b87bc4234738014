//! Durable staging, held against the raw disk in the same run:
//!
//! `cargo bench -p spool --bench staging [DIRECTORY]`
//!
//! The directory should be on the disk that matters; the default is the current one.

#![expect(
    clippy::expect_used,
    clippy::print_stdout,
    reason = "a benchmark reports, and ends where it cannot go on"
)]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use spool::{Durability, Record, Staging};

const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(1500);

fn main() {
    let dir = std::env::args().skip(1).find(|word| !word.starts_with('-'));
    let dir = tempfile::tempdir_in(dir.unwrap_or_else(|| ".".to_owned())).expect("a directory");
    println!(
        "records per second, median of {ROUNDS} interleaved rounds; records of about 300 bytes"
    );
    println!(
        "{:>9} {:>12} {:>12} {:>12} {:>8}",
        "producers", "raw disk", "power", "process", "ratio"
    );
    for producers in [1, 8, 64, 256] {
        let mut rates: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            rates[0].push(raw(dir.path()));
            rates[1].push(staged(dir.path(), producers, Durability::Power));
            rates[2].push(staged(dir.path(), producers, Durability::Process));
        }
        let [raw, power, process] = rates.map(median);
        println!(
            "{producers:>9} {raw:>12.0} {power:>12.0} {process:>12.0} {:>7.1}x",
            power / raw
        );
    }
}

fn record() -> Record {
    let filler = "x".repeat(230);
    Record::parse(&format!(
        r#"{{"model":"llama3","tokens":123,"note":"{filler}"}}"#
    ))
    .expect("a record")
}

/// One thread that appends a record and syncs, again and again: what a program does that shares
/// its syncs with nobody.
fn raw(dir: &Path) -> f64 {
    let mut file = File::create(dir.join("raw")).expect("a file");
    let line = format!("{}\n", record().json());
    let (began, mut count) = (Instant::now(), 0.0);
    while began.elapsed() < ROUND {
        file.write_all(line.as_bytes()).expect("a write");
        file.sync_data().expect("a sync");
        count += 1.0;
    }
    count / began.elapsed().as_secs_f64()
}

fn staged(dir: &Path, producers: usize, durability: Durability) -> f64 {
    let place = tempfile::tempdir_in(dir).expect("a directory");
    let staging = Staging::open(place.path()).expect("a staging directory");
    let (stop, count) = (AtomicBool::new(false), AtomicU64::new(0));
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..producers {
            scope.spawn(|| {
                let mut own = 0;
                while !stop.load(Ordering::Relaxed) {
                    staging.stage(&record(), durability).expect("it is staged");
                    own += 1;
                }
                count.fetch_add(own, Ordering::Relaxed);
            });
        }
        thread::sleep(ROUND);
        stop.store(true, Ordering::Relaxed);
    });
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let count = count.load(Ordering::Relaxed) as f64;
    count / began.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}
