//! A snapshot whose batches are partly written when the process crashes, and one of whose entries is
//! damaged or unreadable afterwards. No record is billed twice, and the records of the other entries
//! are billed once. (promises S5, S9, S12)

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use uuid::Uuid;

use super::crashing_disk::{Crash, CrashingDisk};
use super::test_data_dir::{TestDataDir, batches_of, each_once, names};
use crate::consolidate::{ConsolidatorState, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{Watch, archive};
use crate::disk::{Disk, RealDisk};
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::staging_lock::LockError;
use crate::verify::{Problem, verify, verify_in};

/// Distance between the operations at which the tests crash, unless `FAULT_ALL` is set.
const STEP: usize = 5;

/// Damage to an entry between the crash and the recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Damage {
    Removed,
    /// The second half of the entry is missing.
    Truncated,
    Emptied,
    /// Some bytes of the entry are overwritten.
    Garbled,
}

const DAMAGES: [Damage; 4] = [
    Damage::Removed,
    Damage::Truncated,
    Damage::Emptied,
    Damage::Garbled,
];

/// Fate of the batches between the crash and the recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BatchFate {
    Nothing,
    Delivered,
    Archived,
}

/// Stages entries A to E, whose batches are `A A A A`, `B B B B`, `B B C D`, `E E E E` and `E`. Returns
/// the file and the records of each entry.
fn fill(test_dir: &TestDataDir) -> Vec<(PathBuf, Vec<Record>)> {
    let stages: [&dyn Fn() -> Vec<Record>; 5] = [
        &|| test_dir.entry(4, true),
        &|| test_dir.entry(6, true),
        &|| vec![test_dir.record_file()],
        &|| vec![test_dir.record_file()],
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

impl BatchFate {
    /// Does to the pending batches what this fate says: nothing, delivery or archiving.
    fn apply(self, test_dir: &TestDataDir, disk: &Arc<dyn Disk>) {
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

/// Crashes at an operation, damages an entry and recovers. Returns true if the operation was reached.
fn crash_and_damage(crash: Crash, at: usize, entry: usize, how: Damage, fate: BatchFate) -> bool {
    let case = format!("{crash:?} at {at}, entry {entry} {how:?}, {fate:?}");
    let test_dir = TestDataDir::new();
    let mut entries = fill(&test_dir);
    entries.push((
        test_dir.data().staging.join(".consolidation.set"),
        Vec::new(),
    ));
    let disk = Arc::new(CrashingDisk::new(crash, at));
    let dyn_disk: Arc<dyn Disk> = Arc::clone(&disk) as _;
    let _ = test_dir.consolidate_on(&dyn_disk);
    let has_crashed = disk.has_crashed();
    let (path, damaged) = &entries[entry];
    if path.exists() {
        damage(path, how);
    }
    let disk = Arc::new(CrashingDisk::with(Vec::new()));
    fate.apply(&test_dir, &(Arc::clone(&disk) as _));
    // Stage records after the crash. They belong to a later snapshot and must be batched once
    // although the unfinished snapshot has damage.
    let later = test_dir.entry(3, true);
    let done = consolidate_all(&test_dir, &disk);
    assert!(done.is_ok(), "{case}: {done:?}");
    let others = entries.iter().filter(|(other, _)| other != path);
    let others = others.flat_map(|(_, records)| records).chain(&later);
    let found = check_records(&test_dir, others, &case);
    let mut left = names(&test_dir.data().staging);
    left.retain(|name| name != ".consolidation.damaged");
    assert_eq!(left, [""; 0], "{case}");
    let (in_batches, billed) = (found.len() as u64, test_dir.receiver.billed().len() as u64);
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    let has_all_records = damaged.iter().all(|record| found.contains(&record.id()));
    if books.balance() {
        assert_eq!(books.delivered, billed, "{case}");
        let sum = books.delivered + books.archived + books.pending;
        assert_eq!(sum, in_batches, "{case}");
        assert_eq!(books.staged, sum + books.failed, "{case}");
        assert_eq!(test_dir.totals().0, in_batches, "{case}: totals");
    } else {
        // The books may not balance if the snapshot file is damaged: the totals then lack its
        // records.
        let is_snapshot_file = damaged.is_empty();
        let is_expected = is_snapshot_file || fate == BatchFate::Delivered || !has_all_records;
        assert!(is_expected, "{case}: {:?}", books.problems);
    }
    has_crashed
}

/// Calls `crash` with the numbers of operations until it returns false: with every number if `FAULT_ALL`
/// is set, else with every [`STEP`]th number from `first` on. Returns the last number.
fn each_operation(first: usize, crash: impl Fn(usize) -> bool) -> usize {
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

/// Tests each kind of damage to an entry, with a crash at each tested operation.
fn crash_with_each_damage(crash: Crash, entry: usize, fate: BatchFate) {
    for (number, how) in DAMAGES.into_iter().enumerate() {
        let last = each_operation(entry + number, |at| {
            crash_and_damage(crash, at, entry, how, fate)
        });
        assert!(last > 30, "too few operations to crash at");
    }
}

#[test]
fn half_written_snapshot_bills_no_record_twice_if_an_entry_is_damaged_after_the_crash() {
    for crash in [Crash::After, Crash::PowerLosesEven, Crash::PowerLosesOdd] {
        for fate in [BatchFate::Nothing, BatchFate::Archived] {
            (0..5).for_each(|entry| crash_with_each_damage(crash, entry, fate));
        }
    }
}

#[test]
fn half_written_snapshot_bills_no_record_twice_if_an_entry_is_damaged_after_delivery() {
    for crash in [Crash::After, Crash::PowerLosesEven, Crash::PowerLosesOdd] {
        (0..5).for_each(|entry| crash_with_each_damage(crash, entry, BatchFate::Delivered));
    }
}

#[test]
fn half_written_snapshot_bills_no_record_twice_if_its_file_is_damaged_after_the_crash() {
    for fate in [
        BatchFate::Nothing,
        BatchFate::Archived,
        BatchFate::Delivered,
    ] {
        crash_with_each_damage(Crash::After, 5, fate);
    }
}

/// Consolidates until no entry is left that the disk can read.
fn consolidate_all(test_dir: &TestDataDir, disk: &Arc<CrashingDisk>) -> Result<(), LockError> {
    let dyn_disk: Arc<dyn Disk> = Arc::clone(disk) as _;
    let mut state = ConsolidatorState::default();
    while consolidate_on(&dyn_disk, test_dir.path(), &batches_of(4), &mut state)?.entries > 0 {}
    Ok(())
}

/// Returns the records in all batches. Panics if a record is in two batches or one of `records` is lost.
fn check_records<'a>(
    test_dir: &TestDataDir,
    records: impl Iterator<Item = &'a Record>,
    case: &str,
) -> BTreeSet<Uuid> {
    let found = each_once(test_dir.record_counts(), case);
    for record in records {
        assert!(found.contains(&record.id()), "{case}: lost");
    }
    found
}

/// Crashes at an operation, makes an entry unreadable, and crashes the recovery at operation `again`.
/// Returns true if both operations were reached and the entry existed.
fn crash_with_unreadable_entry(
    at: usize,
    again: Option<usize>,
    entry: usize,
    fate: BatchFate,
) -> bool {
    let case = format!("crash at {at}, then at {again:?}, entry {entry}, {fate:?}");
    let test_dir = TestDataDir::new();
    let entries = fill(&test_dir);
    let all = || entries.iter().flat_map(|(_, records)| records);
    let disk = Arc::new(CrashingDisk::new(Crash::After, at));
    let _ = consolidate_all(&test_dir, &disk);
    let mut has_crashed = disk.has_crashed();
    fate.apply(&test_dir, &(Arc::new(CrashingDisk::with(Vec::new())) as _));
    let (path, _) = &entries[entry];
    let exists = path.exists();
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
    // A delivered batch has no file any more, so it is unknown which records of the unreadable
    // entry were delivered. Only then may consolidation fail until the entry can be read.
    assert!(
        done.is_ok() || fate == BatchFate::Delivered,
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
    let books = test_dir.assert_balanced(&case);
    let count = all().count() as u64 + 3;
    assert_eq!(books.staged, count, "{case}: {books:?}");
    assert_eq!(test_dir.totals(), (count, count), "{case}: totals");
    has_crashed && exists
}

#[test]
fn unreadable_entry_of_a_half_written_snapshot_stays_and_blocks_no_other_entry() {
    for fate in [
        BatchFate::Nothing,
        BatchFate::Archived,
        BatchFate::Delivered,
    ] {
        for entry in 0..5 {
            let last = each_operation(entry, |at| {
                crash_with_unreadable_entry(at, None, entry, fate)
            });
            assert!(last > 30, "too few operations to crash at");
        }
    }
}

#[test]
fn unreadable_entry_of_a_half_written_snapshot_stays_if_the_recovery_crashes() {
    for entry in 0..5 {
        for at in (12..45).step_by(8) {
            each_operation(entry + at, |again| {
                crash_with_unreadable_entry(at, Some(again), entry, BatchFate::Nothing)
            });
        }
    }
}

#[test]
fn unreadable_batch_of_a_half_written_snapshot_blocks_it_only_if_an_entry_is_missing() {
    let (mut cases, mut blocked) = (0, 0);
    for (at, is_missing) in (0..60).flat_map(|at| [(at, false), (at, true)]) {
        let case = format!("crash at {at}, an entry is missing: {is_missing}");
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
        if is_missing && path.exists() {
            fs::remove_file(path).unwrap();
        }
        let done = consolidate_all(&test_dir, &disk);
        assert!(done.is_ok() || is_missing, "{case}: {done:?}");
        (cases, blocked) = (cases + 1, blocked + usize::from(done.is_err()));
        disk.clear_faults();
        consolidate_all(&test_dir, &disk).unwrap();
        let others = entries
            .iter()
            .filter(|(other, _)| other != path || !is_missing);
        check_records(&test_dir, others.flat_map(|(_, records)| records), &case);
    }
    assert!(cases > 10 && blocked > 3, "{cases} {blocked}");
}

/// The journal keeps a bounded number of ids, and an entry may be unreadable for longer than that.
#[test]
fn lines_of_an_excluded_entry_are_not_billed_again_after_their_ids_are_forgotten() {
    let crash_and_exclude = |at: usize| {
        let test_dir = TestDataDir::new();
        let entries = fill(&test_dir);
        let _ = consolidate_all(&test_dir, &Arc::new(CrashingDisk::new(Crash::After, at)));
        let disk = Arc::new(CrashingDisk::with(Vec::new()));
        let (path, records) = &entries[1];
        disk.fail_open(path);
        consolidate_all(&test_dir, &disk).unwrap();
        let is_excluded = test_dir.data().staging.join(".left-out.json").exists();
        for name in names(&test_dir.data().usage) {
            if name.starts_with("taken-") {
                fs::remove_file(test_dir.data().usage.join(name)).unwrap();
            }
        }
        disk.clear_faults();
        consolidate_all(&test_dir, &disk).unwrap();
        check_records(&test_dir, records.iter(), &format!("crash at {at}"));
        assert_eq!(names(&test_dir.data().staging), [""; 0]);
        is_excluded
    };
    assert!((0..60).filter(|at| crash_and_exclude(*at)).count() > 3);
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
