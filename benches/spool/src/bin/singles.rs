//! Consolidation of files with one record each, as other programs stage them: once with a tenth of the
//! files and once with all, so that the ratio shows whether the cost grows faster than their number.
//!
//! `singles COUNT [DIRECTORY]` works below a directory on the disk to measure. Each measurement is a new
//! process, so that its peak memory is measured alone.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use spool::{Consolidator, Watch, verify};
use spool_bench::backlog::peak_memory;
use spool_bench::{directory, options, record};
use uuid::Uuid;

fn main() {
    let words: Vec<_> = std::env::args().skip(1).collect();
    if let [word, data] = &*words
        && word == "from"
    {
        return consolidate(Path::new(data));
    }
    let count = words.first().and_then(|word| word.parse().ok());
    let count: usize = count.unwrap_or(1_000_000);
    println!("| files | s | CPU s | us/file | memory, MB |");
    println!("|--:|--:|--:|--:|--:|");
    let (few, many) = (measure(count / 10), measure(count));
    println!(
        "ten times the files took {:.1} times the time and {:.1} times the CPU time",
        many.0 / few.0,
        many.1 / few.1
    );
}

/// Returns the elapsed and the CPU seconds in which a new process consolidates `count` files.
fn measure(count: usize) -> (f64, f64) {
    let dir = directory();
    let staging = dir.path().join("_staging");
    fs::create_dir(&staging).expect("a staging directory");
    for _ in 0..count {
        let (name, record) = (Uuid::now_v7(), record());
        fs::write(staging.join(format!("{name}.json")), record.json()).expect("an entry");
    }
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own).arg("from").arg(dir.path()).output();
    let output = output.expect("a process");
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).expect("numbers");
    let mut numbers = text
        .split_whitespace()
        .map(|word| word.parse().expect("a number"));
    let mut next = || numbers.next().expect("a number");
    let [records, seconds, cpu, memory]: [f64; 4] = [next(), next(), next(), next()];
    #[expect(clippy::cast_precision_loss, reason = "a rate needs no more precision")]
    let files = count as f64;
    assert!(
        (records - files).abs() < 0.5,
        "{records} of {count} records"
    );
    let each = seconds * 1e6 / files;
    println!("| {count} | {seconds:.1} | {cpu:.1} | {each:.1} | {memory:.0} |");
    let books = verify(dir.path(), &Watch::silent()).expect("the books");
    assert!(books.balance(), "{:?}", books.problems);
    (seconds, cpu)
}

/// Returns the user and system time of this process. The kernel counts in hundredths of a second.
fn cpu_time() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default();
    let ticks = fields.split(' ').skip(11).take(2);
    ticks
        .filter_map(|word| word.parse::<f64>().ok())
        .sum::<f64>()
        / 100.0
}

fn consolidate(data: &Path) {
    let (mut consolidator, mut records) = (Consolidator::new(data), 0);
    let options = options();
    let began = Instant::now();
    loop {
        let done = consolidator.next(&options).expect("a snapshot");
        if done.entries == 0 {
            break;
        }
        records += done.records;
    }
    let took = began.elapsed().as_secs_f64();
    let memory = peak_memory().unwrap_or_default();
    println!("{records} {took} {} {memory}", cpu_time());
}
