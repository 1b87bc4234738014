//! Time from a restart with a million staged records until the next record is acknowledged.
//!
//! `restart [DIRECTORY]` stages the records below a directory on the disk to measure, and starts itself
//! again, so that time and memory are those of a new process.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use spool::{Durability, Staging};
use spool_bench::backlog::{self, RECORDS, peak_memory};
use spool_bench::{directory, record};

const ROUNDS: usize = 5;

fn main() {
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some("on") {
        return restart(Path::new(&words.next().expect("a data directory")));
    }
    let dir = directory();
    let began = Instant::now();
    let data = backlog::make(dir.path());
    let took = began.elapsed().as_secs_f64();
    let memory = peak_memory().unwrap_or_default();
    println!("{RECORDS} records staged with process durability: {took:.1} s, {memory:.0} MB");
    println!("restart, {ROUNDS} times:");
    println!("| next record durable, ms | memory, MB |");
    println!("|--:|--:|");
    let own = std::env::current_exe().expect("this program");
    for _ in 0..ROUNDS {
        let status = Command::new(&own).arg("on").arg(&data).status();
        assert!(status.expect("a process").success());
    }
}

fn restart(data: &Path) {
    let record = record();
    let began = Instant::now();
    let staging = Staging::open(data.join("_staging")).expect("a staging directory");
    staging
        .stage(&record, Durability::Power)
        .expect("a staged record");
    let took = began.elapsed().as_secs_f64() * 1e3;
    println!("| {took:.2} | {:.1} |", peak_memory().unwrap_or_default());
}
