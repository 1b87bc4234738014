//! Those who stage: with the library, through the program, and by dropping files.

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

static MADE: AtomicU64 = AtomicU64::new(0);

/// A record that nobody made before. Of a thousand, so many are poisoned.
pub(crate) fn fresh(poison: u64) -> Sample {
    let number = (u64::from(std::process::id()) << 28) + MADE.fetch_add(1, Ordering::Relaxed);
    Sample::new(number, mix(number) % 1000 < poison)
}

/// A process that stages with the library, record by record, until it is killed. Those that were
/// acknowledged are noted in a file under `acks`.
pub(crate) fn with_the_library(data: &Path, acks: &Path, poison: u64) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "producer::produces", "--ignored", "--nocapture"])
        .env(DATA, data)
        .env(ACKS, acks)
        .env(POISON, poison.to_string());
    command
}

#[test]
#[ignore = "other tests run it as a process"]
fn produces() {
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
            // Unknown: the same record again.
            assert!(error.is_full(), "{error}");
            thread::sleep(Duration::from_millis(10));
        }
        note(&mut acks, &[sample]);
        // No more than can be delivered meanwhile, so that what failed is tried again in the storm.
        thread::sleep(Duration::from_micros(random.below(30_000)));
    }
}

/// Notes what was acknowledged, in one write.
pub(crate) fn note(acks: &mut fs::File, samples: &[Sample]) {
    let mark = |sample: &Sample| if sample.is_poisoned { " poisoned" } else { "" };
    let lines = samples
        .iter()
        .map(|sample| format!("{}{}\n", sample.id, mark(sample)));
    acks.write_all(lines.collect::<String>().as_bytes())
        .unwrap();
}

/// Everything that was noted under `acks`: id, and whether it is poisoned.
pub(crate) fn noted(acks: &Path) -> Vec<(String, bool)> {
    let mut found = Vec::new();
    for file in fs::read_dir(acks).unwrap().map(Result::unwrap) {
        let text = fs::read_to_string(file.path()).unwrap();
        // A note that was cut was not made.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        found.extend(whole.lines().map(|line| match line.split_once(' ') {
            Some((id, _)) => (id.to_owned(), true),
            None => (line.to_owned(), false),
        }));
    }
    found
}

/// The records as lines.
pub(crate) fn lines(samples: &[Sample]) -> Vec<u8> {
    let lines = samples.iter().map(|sample| sample.text() + "\n");
    lines.collect::<String>().into_bytes()
}

/// Feeds a program some of the lines, and kills it.
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

/// Drops a record as a file, as any program may: under another name first.
pub(crate) fn drop_file(staging: &Path, sample: &Sample) -> io::Result<()> {
    let half = staging.join(format!("{}.being-written", sample.id));
    let text = if sample.number.is_multiple_of(2) {
        sample.text()
    } else {
        sample.text_without_id()
    };
    if let Err(error) = fs::write(&half, text) {
        let _ = fs::remove_file(&half);
        return Err(error);
    }
    fs::rename(&half, staging.join(format!("{}.json", sample.id)))
}
