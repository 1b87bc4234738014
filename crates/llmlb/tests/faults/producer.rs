//! Producers, which stage records with the library, with the program, or as files.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use spool::{Durability, Record, Staging};

use crate::sample::Sample;
use testkit::{
    append,
    random::{Random, mix},
};

const DATA: &str = "FAULTS_DATA";
const ACKS: &str = "FAULTS_ACKS";
const POISON: &str = "FAULTS_POISON";

static CREATED: AtomicU64 = AtomicU64::new(0);

/// Returns a new record. `poison` of a thousand records are poisoned.
pub(crate) fn fresh(poison: u64) -> Sample {
    let number = (u64::from(std::process::id()) << 28) + CREATED.fetch_add(1, Ordering::Relaxed);
    Sample::new(number, mix(number) % 1000 < poison)
}

/// Returns the command of a producer that stages with the library, record by record, until it is killed. The
/// producer appends the id of each acknowledged record to a file under `acks`.
pub(crate) fn library_producer(data: &Path, acks: &Path, poison: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "producer::run_as_producer",
            "--ignored",
            "--nocapture",
        ])
        .env(DATA, data)
        .env(ACKS, acks)
        .env(POISON, poison.to_string());
    command
}

#[test]
#[ignore = "the program of producers: other tests start it"]
fn run_as_producer() {
    let path = |name| PathBuf::from(std::env::var_os(name).unwrap());
    let poison = std::env::var(POISON).unwrap().parse().unwrap();
    let pid = std::process::id();
    let mut acks = append(&path(ACKS).join(pid.to_string())).unwrap();
    let mut random = Random::of_run(pid.into());
    let staging = Staging::open(path(DATA).join("_staging")).unwrap();
    loop {
        let sample = fresh(poison);
        let durability = if sample.number.is_multiple_of(2) {
            Durability::Process
        } else {
            Durability::Power
        };
        let record = Record::parse(&sample.text()).unwrap();
        while let Err(error) = staging.stage(&record, durability) {
            // After an error on a full disk it is unknown if the record is staged. The producer
            // stages the same record again; its id prevents that it counts twice.
            assert!(error.is_full(), "{error}");
            thread::sleep(Duration::from_millis(10));
        }
        note(&mut acks, &[sample]);
        // The rate is low enough for delivery to keep up, so that failed batches are retried in the storm.
        thread::sleep(Duration::from_micros(random.below(30_000)));
    }
}

/// Appends the ids of acknowledged records to the file `acks` in one write, so that a killed
/// producer leaves at most one incomplete line.
pub(crate) fn note(acks: &mut fs::File, samples: &[Sample]) {
    let mark = |sample: &Sample| if sample.is_poisoned { " poisoned" } else { "" };
    let lines = samples
        .iter()
        .map(|sample| format!("{}{}\n", sample.id, mark(sample)));
    acks.write_all(lines.collect::<String>().as_bytes())
        .unwrap();
}

/// Returns the acknowledged records in the files under `acks`: the id, and true if the record is poisoned.
pub(crate) fn noted(acks: &Path) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for file in fs::read_dir(acks).unwrap().map(Result::unwrap) {
        let text = fs::read_to_string(file.path()).unwrap();
        // The producer may be killed within a write. A last line without a line end is ignored.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        found.extend(whole.lines().map(|line| match line.split_once(' ') {
            Some((id, _)) => (id.to_owned(), true),
            None => (line.to_owned(), false),
        }));
    }
    found
}

pub(crate) fn lines(samples: &[Sample]) -> Vec<u8> {
    let lines = samples.iter().map(|sample| sample.text() + "\n");
    lines.collect::<String>().into_bytes()
}

/// Writes lines to the input of a program and kills it after a pause.
pub(crate) fn feed_and_kill(command: &mut Command, lines: &[u8], pause: Duration) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let _ = pipe.write_all(lines);
    thread::sleep(pause);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Stages a record as a file, which is written under another name first, as by other programs.
pub(crate) fn drop_file(staging: &Path, sample: &Sample) -> io::Result<()> {
    let temporary = staging.join(format!("{}.being-written", sample.id));
    let text = if sample.number.is_multiple_of(2) {
        sample.text()
    } else {
        sample.text_without_id()
    };
    if let Err(error) = fs::write(&temporary, text) {
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    fs::rename(&temporary, staging.join(format!("{}.json", sample.id)))
}
