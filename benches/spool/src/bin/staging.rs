//! Durable staging compared with the raw disk and SQLite, in interleaved rounds.
//!
//! `staging [DIRECTORY]` works below a directory on the disk to measure, by default the current one.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use spool::{Durability, Staging};
use spool_bench::sqlite::Grouped;
use spool_bench::{Measured, directory, median, produce, record};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(1);

fn main() {
    let dir = directory();
    println!("durable records of 305 bytes, median of {ROUNDS} interleaved rounds");
    println!("| producers | | records/s | p50 us | p99 us | x raw | x SQLite | x with ids |");
    println!("|--:|---|--:|--:|--:|--:|--:|--:|");
    for producers in [1, 8, 64, 256] {
        let mut rounds: [Vec<Measured>; 4] = Default::default();
        for round in 0..ROUNDS {
            let round_dir = dir.path().join(format!("{producers}-{round}"));
            std::fs::create_dir(&round_dir).expect("a directory");
            rounds[0].push(raw(&round_dir));
            rounds[1].push(sqlite(&round_dir.join("rows"), producers, false));
            rounds[2].push(sqlite(&round_dir.join("ids"), producers, true));
            rounds[3].push(staged(&round_dir, producers));
        }
        let medians = rounds.map(|rounds| median(&rounds));
        let [raw, rows, ids, _] = medians;
        for (name, one) in NAMES.iter().zip(medians) {
            println!(
                "| {producers} | {name} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} |",
                one.rate,
                one.p50,
                one.p99,
                one.rate / raw.rate,
                one.rate / rows.rate,
                one.rate / ids.rate,
            );
        }
    }
}

const NAMES: [&str; 4] = [
    "raw disk, 1 thread",
    "SQLite, grouped, bare rows",
    "SQLite, grouped, with ids",
    "**spool**",
];

/// One thread that appends and syncs each record by itself.
fn raw(round_dir: &Path) -> Measured {
    let file = File::create(round_dir.join("raw")).expect("a file");
    let line = format!("{}\n", record().json());
    produce(1, ROUND, |_| {
        (&file).write_all(line.as_bytes()).expect("a write");
        file.sync_data().expect("a sync");
    })
}

fn sqlite(path: &Path, producers: usize, with_ids: bool) -> Measured {
    let database = Grouped::open(path, with_ids);
    produce(producers, ROUND, |record| database.add(record.clone()))
}

fn staged(round_dir: &Path, producers: usize) -> Measured {
    let staging = Staging::open(round_dir.join("_staging")).expect("a staging directory");
    produce(producers, ROUND, |record| {
        staging
            .stage(record, Durability::Power)
            .expect("a staged record");
    })
}
