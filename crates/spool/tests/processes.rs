//! Processes that share a data directory and are killed at random, and the order of their system calls.
//! (promises S1, S3, S5)

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use spool::{Durability, LockError, Options, Record, SpoolManager, Staging, consolidate};

/// Environment variable with the data directory of a child process.
const DATA: &str = "SPOOL_TEST_DATA";

fn data() -> PathBuf {
    std::env::var_os(DATA).unwrap().into()
}

/// Returns a command that runs one of the ignored tests below as a process.
fn command(role: &str, data: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", role, "--ignored", "--nocapture"])
        .env(DATA, data)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

fn record() -> Record {
    Record::parse(r#"{"tokens":1}"#).unwrap()
}

#[test]
#[ignore = "run by another test as a process"]
fn producer() {
    let acks = data().join(format!("acks-{}", std::process::id()));
    let mut acks = OpenOptions::new()
        .append(true)
        .create(true)
        .open(acks)
        .unwrap();
    let staging = Staging::open(data().join("_staging")).unwrap();
    for number in 0.. {
        let record = record();
        let durability = if number % 2 == 0 {
            Durability::Process
        } else {
            Durability::Power
        };
        staging.stage(&record, durability).unwrap();
        // The id is written only after `stage` has returned, so every id in the file is an
        // acknowledged record. One write tears at most the last line.
        acks.write_all(format!("{}\n", record.id()).as_bytes())
            .unwrap();
    }
}

#[test]
#[ignore = "run by another test as a process"]
fn consolidator() {
    let mut options = Options::default();
    options.batch_size = 7;
    options.max_entries = 2;
    loop {
        match consolidate(&data(), &options) {
            Ok(done) if done.entries == 0 => thread::sleep(Duration::from_millis(1)),
            Ok(_) | Err(LockError::InUse { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Child processes, killed on drop.
struct Children(Vec<(&'static str, Child)>);

impl Children {
    fn kill(&mut self, index: usize) -> &'static str {
        let (role, mut child) = self.0.swap_remove(index);
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{role} ended by itself: {ended:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        role
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn acknowledged_records_are_batched_once_under_kill_nine() {
    let dir = tempfile::tempdir().unwrap();
    let start = |role: &'static str| (role, command(role, dir.path()).spawn().unwrap());
    let mut children = Children(Vec::new());
    for role in ["producer", "consolidator"] {
        children.0.extend((0..4).map(|_| start(role)));
    }
    // The seed is fixed, so that every run kills the processes in the same order.
    let mut seed = 0x9e37_79b9_u32;
    for _ in 0..100 {
        seed ^= seed << 13;
        seed ^= seed >> 17;
        seed ^= seed << 5;
        thread::sleep(Duration::from_millis(u64::from(seed % 20)));
        let victim = seed as usize % children.0.len();
        let role = children.kill(victim);
        children.0.push(start(role));
    }
    while !children.0.is_empty() {
        children.kill(0);
    }
    while consolidate(dir.path(), &Options::default())
        .unwrap()
        .entries
        > 0
    {}

    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let spool = SpoolManager::new(dir.path());
    for name in spool.pending(None, usize::MAX).unwrap() {
        for record in spool.load(&name).unwrap().records() {
            *counts.entry(record.id().to_string()).or_default() += 1;
        }
    }
    let repeated = counts.values().filter(|count| **count > 1).count();
    assert_eq!(repeated, 0, "of {} records", counts.len());
    let mut acknowledged = 0;
    for file in fs::read_dir(dir.path()).unwrap().map(Result::unwrap) {
        if !file.file_name().to_string_lossy().starts_with("acks-") {
            continue;
        }
        let acks = fs::read_to_string(file.path()).unwrap();
        // The kill may have torn the last line of the file of acknowledged ids. A line without a
        // newline is ignored.
        for id in acks
            .split_inclusive('\n')
            .filter_map(|line| line.strip_suffix('\n'))
        {
            acknowledged += 1;
            assert!(counts.contains_key(id), "{id} was acknowledged and is lost");
        }
    }
    assert!(
        acknowledged > 100,
        "only {acknowledged} acknowledged records"
    );
    let left = fs::read_dir(dir.path().join("_staging")).unwrap();
    let left: Vec<_> = left.map(|file| file.unwrap().file_name()).collect();
    assert!(
        left.iter()
            .all(|name| name == ".reserve" || name == ".consolidation.lock"),
        "{left:?}"
    );
}

#[test]
#[ignore = "run by another test under strace"]
fn traced_producer() {
    // The path has several missing directories: `open` must sync the parent of each one that it
    // creates.
    let staging = Staging::open(data().join("new/deep/_staging")).unwrap();
    let mut acks = fs::File::create(data().join("acknowledgements")).unwrap();
    for _ in 0..3 {
        staging.stage(&record(), Durability::Power).unwrap();
        acks.write_all(b"acknowledged").unwrap();
    }
}

#[test]
fn stage_returns_only_after_data_and_directory_entry_are_synced() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let role = command("traced_producer", dir.path());
    let status = Command::new("strace")
        .args([
            "-f",
            "-y",
            "-e",
            "trace=write,pwrite64,fdatasync,fsync,openat",
            "-o",
        ])
        .arg(&trace)
        .arg(role.get_program())
        .args(role.get_args())
        .env(DATA, dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success());
    let (mut data_synced, mut name_synced, mut acknowledged) = (false, false, 0);
    let above = dir.path().canonicalize().unwrap();
    let above = ["", "/new", "/new/deep"].map(|name| format!("<{}{name}>", above.display()));
    let mut parents = HashSet::new();
    let trace = fs::read_to_string(&trace).unwrap();
    for line in trace.lines() {
        let entry = line.contains(".jsonl.open");
        if line.contains("openat(") && entry && line.contains("O_CREAT") {
            name_synced = false;
        } else if line.contains(" pwrite64(") && entry {
            data_synced = false;
        } else if line.contains("fdatasync(") && entry {
            data_synced = true;
        } else if line.contains("fsync(") && line.contains("_staging>") {
            name_synced = true;
        } else if let Some(parent) = above.iter().find(|parent| line.contains(&***parent)) {
            if line.contains("fsync(") {
                parents.insert(parent);
            }
        } else if line.contains("\"acknowledged\"") {
            acknowledged += 1;
            assert!(
                data_synced,
                "data is not synced before acknowledgement {acknowledged}:\n{trace}"
            );
            assert!(
                name_synced,
                "name is not synced before acknowledgement {acknowledged}:\n{trace}"
            );
            assert_eq!(parents.len(), 3, "parents of new directories:\n{trace}");
        }
    }
    assert_eq!(acknowledged, 3, "{trace}");
}
