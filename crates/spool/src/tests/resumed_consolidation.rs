//! A set that a crash left half written, and an entry of it that is not what it was any more: no record
//! is billed twice, and those of the other entries are billed once. (S5, S9, S12)

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use uuid::Uuid;

use super::crash_recovery::options;
use super::crashing_disk::{Crash, CrashingDisk};
use super::test_data_dir::{TestDataDir, names};
use crate::consolidate::{ConsolidatorState, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{Watch, archive};
use crate::disk::{Disk, RealDisk};
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::staging_lock::LockError;
use crate::verify::{Problem, verify, verify_in};

/// Without `FAULT_ALL`, one of so many acts crashes.
const STEP: usize = 5;

/// Damage to an entry between the crash and the recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Removed,
    /// Its second half is gone.
    Truncated,
    Emptied,
    /// Some of its bytes are others.
    Garbled,
}

const DAMAGES: [Damage; 4] = [
    Damage::Removed,
    Damage::Truncated,
    Damage::Emptied,
    Damage::Garbled,
];

/// What happens to the batches between the crash and the recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meanwhile {
    Nothing,
    Delivered,
    Archived,
}

/// Stages entries of which the batches are `A A A A`, `B B B B`, `B B C D`, `E E E E`, `E`. Returns the
/// file and the records of each.
fn fill(test_dir: &TestDataDir) -> Vec<(PathBuf, Vec<Record>)> {
    let stages: [&dyn Fn() -> Vec<Record>; 5] = [
        &|| test_dir.entry(4, true),
        &|| test_dir.entry(6, true),
        &|| vec![test_dir.single()],
        &|| vec![test_dir.single()],
        &|| test_dir.entry(5, true),
    ];
    let (staging, mut known) = (test_dir.data().staging, Vec::new());
    let mut stage = |stage: &dyn Fn() -> Vec<Record>| {
        let records = stage();
        let mut now = names(&staging);
        now.retain(|name| !known.contains(name));
        known.extend(now.clone());
        (staging.join(&now[0]), records)
    };
    stages.into_iter().map(&mut stage).collect()
}

fn damage(path: &PathBuf, damage: Damage) {
    let mut bytes = fs::read(path).unwrap();
    match damage {
        Damage::Removed => return fs::remove_file(path).unwrap(),
        Damage::Truncated => bytes.truncate(bytes.len() / 2),
        Damage::Emptied => bytes.clear(),
        Damage::Garbled => {
            let middle = bytes.len() / 2;
            bytes[middle..middle + 9].copy_from_slice(b"\xff\xffgarbage");
        }
    }
    fs::write(path, bytes).unwrap();
}

impl Meanwhile {
    fn pass(self, test_dir: &TestDataDir, disk: &Arc<dyn Disk>) {
        match self {
            Self::Nothing => {}
            Self::Delivered => drop(test_dir.deliver(disk).unwrap()),
            Self::Archived => {
                let store = SpoolManager::on(Arc::clone(disk), test_dir.path());
                archive(&store, &Watch::silent()).unwrap();
            }
        }
    }
}

/// How often each record is in a batch, wherever that is.
fn everywhere(test_dir: &TestDataDir) -> BTreeMap<Uuid, usize> {
    let mut counts = test_dir.batched();
    let data = test_dir.data();
    for dir in [&data.archive, &data.failed] {
        for name in names(dir) {
            if crate::batch::is_batch_name(&name) {
                let batch = crate::batch::Batch::decode(&fs::read(dir.join(name)).unwrap());
                for record in batch.unwrap().records() {
                    *counts.entry(record.id()).or_default() += 1;
                }
            }
        }
    }
    counts
}

/// Crashes at an act, damages an entry, recovers. `false`: there was no such act.
fn crash_and_damage(
    crash: Crash,
    at: usize,
    entry: usize,
    how: Damage,
    meanwhile: Meanwhile,
) -> bool {
    let case = format!("{crash:?} at {at}, entry {entry} {how:?}, {meanwhile:?}");
    let test_dir = TestDataDir::new();
    let mut entries = fill(&test_dir);
    entries.push((test_dir.data().staging.join(".consolidation.set"), Vec::new()));
    let disk = Arc::new(CrashingDisk::new(crash, at));
    let on: Arc<dyn Disk> = Arc::clone(&disk) as _;
    let _ = consolidate_on(
        &on,
        test_dir.path(),
        &options(),
        &mut ConsolidatorState::default(),
    );
    let has_crashed = disk.has_crashed();
    let (path, damaged) = &entries[entry];
    if path.exists() {
        damage(path, how);
    }
    let disk = Arc::new(CrashingDisk::with(Vec::new()));
    meanwhile.pass(&test_dir, &(Arc::clone(&disk) as _));
    // Records that are staged meanwhile belong to a later set.
    let later = test_dir.entry(3, true);
    let done = consolidate_all(&test_dir, &disk);
    assert!(done.is_ok(), "{case}: {done:?}");
    let counts = everywhere(&test_dir);
    for (id, count) in &counts {
        assert_eq!(*count, 1, "{case}: {id} is there {count} times");
    }
    let others = entries.iter().filter(|(other, _)| other != path);
    for record in others.flat_map(|(_, records)| records).chain(&later) {
        assert!(counts.contains_key(&record.id()), "{case}: lost");
    }
    let mut left = names(&test_dir.data().staging);
    left.retain(|name| name != ".consolidation.damaged");
    assert_eq!(left, [""; 0], "{case}");
    let (in_batches, billed) = (counts.len() as u64, test_dir.receiver.billed().len() as u64);
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    let is_all_there = damaged
        .iter()
        .all(|record| counts.contains_key(&record.id()));
    if books.balance() {
        assert_eq!(books.delivered, billed, "{case}");
        let sum = books.delivered + books.archived + books.pending;
        assert_eq!(sum, in_batches, "{case}");
        assert_eq!(books.staged, sum + books.failed, "{case}");
        assert_eq!(test_dir.totals().0, in_batches, "{case}: totals");
    } else {
        // A set that cannot be told any more was not added up.
        let is_set = damaged.is_empty();
        let is_gone = is_set || meanwhile == Meanwhile::Delivered || !is_all_there;
        assert!(is_gone, "{case}: {:?}", books.problems);
    }
    has_crashed
}

/// Calls `crash` with the number of an act until there is none: with every act if `FAULT_ALL` is set, else
/// with some, beginning with one of one's choice. Returns the number of the last.
fn each_act(first: usize, crash: impl Fn(usize) -> bool) -> usize {
    let (first, step) = match std::env::var_os("FAULT_ALL") {
        Some(_) => (0, 1),
        None => (first % STEP, STEP),
    };
    let mut at = first;
    while crash(at) {
        at += step;
    }
    at
}

fn every_act(crash: Crash, entry: usize, meanwhile: Meanwhile) {
    for (number, how) in DAMAGES.into_iter().enumerate() {
        let last = each_act(entry + number, |at| {
            crash_and_damage(crash, at, entry, how, meanwhile)
        });
        assert!(last > 30, "too few operations to crash at");
    }
}

#[test]
fn half_written_snapshot_bills_no_record_twice_if_an_entry_is_damaged_after_the_crash() {
    for crash in [Crash::After, Crash::Some, Crash::Others] {
        for meanwhile in [Meanwhile::Nothing, Meanwhile::Archived] {
            (0..5).for_each(|entry| every_act(crash, entry, meanwhile));
        }
    }
}

#[test]
fn half_written_snapshot_bills_no_record_twice_if_an_entry_is_damaged_after_delivery() {
    for crash in [Crash::After, Crash::Some, Crash::Others] {
        (0..5).for_each(|entry| every_act(crash, entry, Meanwhile::Delivered));
    }
}

#[test]
fn half_written_snapshot_bills_no_record_twice_if_its_file_is_damaged_after_the_crash() {
    for meanwhile in [
        Meanwhile::Nothing,
        Meanwhile::Archived,
        Meanwhile::Delivered,
    ] {
        every_act(Crash::After, 5, meanwhile);
    }
}

/// Consolidates until nothing is left, on a disk that may not be able to read a file.
fn consolidate_all(test_dir: &TestDataDir, disk: &Arc<CrashingDisk>) -> Result<(), LockError> {
    let on: Arc<dyn Disk> = Arc::clone(disk) as _;
    let mut kept = ConsolidatorState::default();
    while consolidate_on(&on, test_dir.path(), &options(), &mut kept)?.entries > 0 {}
    Ok(())
}

/// No record is there twice, and all of these are there.
fn check_records<'a>(test_dir: &TestDataDir, records: impl Iterator<Item = &'a Record>, case: &str) {
    let counts = everywhere(test_dir);
    for (id, count) in &counts {
        assert_eq!(*count, 1, "{case}: {id} is there {count} times");
    }
    for record in records {
        assert!(counts.contains_key(&record.id()), "{case}: lost");
    }
}

/// Crashes at an act; then an entry cannot be read, and the recovery crashes at another act. `false`:
/// there was no such act of the first or, if it is to crash, of the second.
fn crash_and_sicken(at: usize, again: Option<usize>, entry: usize, meanwhile: Meanwhile) -> bool {
    let case = format!("crash at {at}, then at {again:?}, entry {entry}, {meanwhile:?}");
    let test_dir = TestDataDir::new();
    let entries = fill(&test_dir);
    let all = || entries.iter().flat_map(|(_, records)| records);
    let disk = Arc::new(CrashingDisk::new(Crash::After, at));
    let _ = consolidate_all(&test_dir, &disk);
    let mut has_crashed = disk.has_crashed();
    meanwhile.pass(&test_dir, &(Arc::new(CrashingDisk::with(Vec::new())) as _));
    let (path, _) = &entries[entry];
    let is_there = path.exists();
    if let Some(again) = again {
        let disk = Arc::new(CrashingDisk::new(Crash::After, again));
        disk.fail_open(path);
        let _ = consolidate_all(&test_dir, &disk);
        has_crashed &= disk.has_crashed();
    }
    let disk = Arc::new(CrashingDisk::with(Vec::new()));
    disk.fail_open(path);
    let later = test_dir.entry(3, true);
    let done = consolidate_all(&test_dir, &disk);
    // With its batches gone, nothing tells which of its records were in them.
    assert!(
        done.is_ok() || meanwhile == Meanwhile::Delivered,
        "{case}: {done:?}"
    );
    if done.is_ok() {
        let others = entries.iter().filter(|(other, _)| other != path);
        let others = others.flat_map(|(_, records)| records).chain(&later);
        check_records(&test_dir, others, &case);
        let data = DataDir::on(Arc::clone(&disk) as _, test_dir.path());
        let books = verify_in(&data, &Watch::silent()).unwrap();
        let is_named = |problem: &Problem| problem.path == *path;
        assert!(
            books.problems.iter().all(is_named),
            "{case}: {:?}",
            books.problems
        );
        assert_eq!(books.balance(), !path.exists(), "{case}");
    }
    disk.clear_faults();
    consolidate_all(&test_dir, &disk).unwrap();
    check_records(&test_dir, all().chain(&later), &case);
    assert_eq!(names(&test_dir.data().staging), [""; 0], "{case}");
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{case}: {:?}", books.problems);
    let count = all().count() as u64 + 3;
    assert_eq!(books.staged, count, "{case}: {books:?}");
    assert_eq!(test_dir.totals(), (count, count), "{case}: totals");
    has_crashed && is_there
}

#[test]
fn unreadable_entry_of_a_half_written_snapshot_stays_and_blocks_no_other_entry() {
    for meanwhile in [
        Meanwhile::Nothing,
        Meanwhile::Archived,
        Meanwhile::Delivered,
    ] {
        for entry in 0..5 {
            let last = each_act(entry, |at| crash_and_sicken(at, None, entry, meanwhile));
            assert!(last > 30, "too few operations to crash at");
        }
    }
}

#[test]
fn unreadable_entry_of_a_half_written_snapshot_stays_if_the_recovery_crashes() {
    for entry in 0..5 {
        for at in (12..45).step_by(8) {
            each_act(entry + at, |again| {
                crash_and_sicken(at, Some(again), entry, Meanwhile::Nothing)
            });
        }
    }
}

#[test]
fn unreadable_batch_of_a_half_written_snapshot_blocks_it_only_if_an_entry_is_missing() {
    let (mut sick, mut waits) = (0, 0);
    for (at, is_gone) in (0..60).flat_map(|at| [(at, false), (at, true)]) {
        let case = format!("crash at {at}, an entry is gone: {is_gone}");
        let test_dir = TestDataDir::new();
        let entries = fill(&test_dir);
        let _ = consolidate_all(&test_dir, &Arc::new(CrashingDisk::new(Crash::After, at)));
        let batches = names(&test_dir.data().spool);
        let Some(batch) = batches
            .get(1)
            .filter(|name| crate::batch::is_batch_name(name))
        else {
            continue;
        };
        let disk = Arc::new(CrashingDisk::with(Vec::new()));
        disk.fail_open(&test_dir.data().spool.join(batch));
        let (path, _) = &entries[1];
        if is_gone && path.exists() {
            fs::remove_file(path).unwrap();
        }
        let done = consolidate_all(&test_dir, &disk);
        assert!(done.is_ok() || is_gone, "{case}: {done:?}");
        (sick, waits) = (sick + 1, waits + usize::from(done.is_err()));
        disk.clear_faults();
        consolidate_all(&test_dir, &disk).unwrap();
        let others = entries
            .iter()
            .filter(|(other, _)| other != path || !is_gone);
        check_records(&test_dir, others.flat_map(|(_, records)| records), &case);
    }
    assert!(sick > 10 && waits > 3, "{sick} {waits}");
}

/// The journal remembers a bounded number of ids, and an entry may be unreadable for a long time.
#[test]
fn lines_of_an_excluded_entry_are_not_billed_again_after_their_ids_are_forgotten() {
    let is_left_out = |at: usize| {
        let test_dir = TestDataDir::new();
        let entries = fill(&test_dir);
        let _ = consolidate_all(&test_dir, &Arc::new(CrashingDisk::new(Crash::After, at)));
        let disk = Arc::new(CrashingDisk::with(Vec::new()));
        let (path, records) = &entries[1];
        disk.fail_open(path);
        consolidate_all(&test_dir, &disk).unwrap();
        let is_left_out = test_dir.data().staging.join(".left-out.json").exists();
        for name in names(&test_dir.data().usage) {
            if name.starts_with("taken-") {
                fs::remove_file(test_dir.data().usage.join(name)).unwrap();
            }
        }
        disk.clear_faults();
        consolidate_all(&test_dir, &disk).unwrap();
        check_records(&test_dir, records.iter(), &format!("crash at {at}"));
        assert_eq!(names(&test_dir.data().staging), [""; 0]);
        is_left_out
    };
    assert!((0..60).filter(|at| is_left_out(*at)).count() > 3);
}

#[test]
fn snapshot_file_with_an_excluded_entry_has_version_2() {
    let test_dir = TestDataDir::new();
    let staging = test_dir.data().staging;
    let names = ["a", "b"].map(|_| format!("{}.json", Uuid::now_v7()));
    let mut set = Snapshot::new(names.to_vec(), 4);
    set.begin(&RealDisk, &staging).unwrap();
    let version = || {
        let text = fs::read_to_string(staging.join(".consolidation.set")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["version"].clone()
    };
    assert_eq!(version(), 1);
    set.exclude(&RealDisk, &staging, vec![names[0].clone()])
        .unwrap();
    assert_eq!(version(), 2);
    let read = Snapshot::read(&RealDisk, &staging).unwrap().unwrap();
    assert_eq!(read, set);
    assert_eq!(read.consumed().collect::<Vec<_>>(), [&names[1]]);
}
