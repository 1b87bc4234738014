//! Durable staging against the raw disk and SQLite, round by round in turn.
//!
//! `staging [DIRECTORY]`: a directory on the disk that matters; the default is this one.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use spool::{Durability, Staging};
use spool_bench::sqlite::Grouped;
use spool_bench::{Measured, directory, median, produce, record};

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(1);

fn main() {
    let dir = directory();
    println!("durable records of 305 bytes, median of {ROUNDS} rounds in turn");
    println!("| producers | | records/s | p50 us | p99 us | x raw disk | x SQLite |");
    println!("|--:|---|--:|--:|--:|--:|--:|");
    for producers in [1, 8, 64, 256] {
        let mut rounds: [Vec<Measured>; 3] = Default::default();
        for round in 0..ROUNDS {
            let place = dir.path().join(format!("{producers}-{round}"));
            std::fs::create_dir(&place).expect("a directory");
            rounds[0].push(raw(&place));
            rounds[1].push(sqlite(&place, producers));
            rounds[2].push(staged(&place, producers));
        }
        let medians = rounds.map(|rounds| median(&rounds));
        let [raw, sqlite, _] = medians;
        for (name, one) in ["raw disk, 1 thread", "SQLite, grouped", "**spool**"]
            .iter()
            .zip(medians)
        {
            println!(
                "| {producers} | {name} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} |",
                one.rate,
                one.p50,
                one.p99,
                one.rate / raw.rate,
                one.rate / sqlite.rate,
            );
        }
    }
}

/// One thread that appends a record and syncs, again and again: what a program does that shares
/// its syncs with nobody.
fn raw(place: &Path) -> Measured {
    let file = File::create(place.join("raw")).expect("a file");
    let line = format!("{}\n", record().json());
    produce(1, ROUND, |_| {
        (&file).write_all(line.as_bytes()).expect("a write");
        file.sync_data().expect("a sync");
    })
}

fn sqlite(place: &Path, producers: usize) -> Measured {
    thread_local! {
        static ROW: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
    }
    let database = Grouped::open(&place.join("database"));
    produce(producers, ROUND, |record| {
        let row = ROW
            .with_borrow_mut(|row| Arc::clone(row.get_or_insert_with(|| Arc::from(record.json()))));
        database.add(row);
    })
}

fn staged(place: &Path, producers: usize) -> Measured {
    let staging = Staging::open(place.join("_staging")).expect("a staging directory");
    produce(producers, ROUND, |record| {
        staging
            .stage(record, Durability::Power)
            .expect("it is staged");
    })
}
