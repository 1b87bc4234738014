//! Crashes at every disk operation lose no record and put none into two batches. (promises S2, S4, S5)

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crashing_disk::{CRASHES, Crash, CrashingDisk};
use super::test_data_dir::{TestDataDir, batches_of, each_once, names, record};
use crate::consolidate::consolidate;
use crate::disk::Disk;
use crate::record::Record;
use crate::staging::{Durability, Limits, Staging};

/// Stages entries of every kind. Returns the records that must be batched.
pub(super) fn fill(test_dir: &TestDataDir) -> BTreeSet<Uuid> {
    let mut records = test_dir.entry(4, true);
    records.extend(test_dir.entry(2, true));
    records.push(test_dir.record_file());
    records.extend(test_dir.entry(2, false));
    test_dir.raw_file("json", "no record");
    test_dir.raw_file("jsonl.open", "");
    records.iter().map(Record::id).collect()
}

/// Consolidates on a disk that crashes. Returns true if the operation `at` was reached.
pub(super) fn crash(test_dir: &TestDataDir, crash: Crash, at: usize) -> bool {
    let disk = Arc::new(CrashingDisk::new(crash, at));
    let outcome = test_dir.consolidate_on(&(Arc::clone(&disk) as Arc<dyn Disk>));
    assert_eq!(
        outcome.is_err(),
        disk.has_crashed(),
        "{crash:?} {at}: {outcome:?}"
    );
    disk.has_crashed()
}

/// Consolidates until no entry is left. Panics unless each record is in exactly one batch.
fn recover(test_dir: &TestDataDir, expected: &BTreeSet<Uuid>, case: &str) {
    while consolidate(test_dir.path(), &batches_of(4))
        .unwrap()
        .entries
        > 0
    {}
    let found = each_once(test_dir.batched(), case);
    assert_eq!(&found, expected, "{case}");
    assert_eq!(
        names(&test_dir.data().staging),
        [""; 0],
        "{case}: entries are left"
    );
    let (records, tokens) = test_dir.totals();
    let count = expected.len() as u64;
    assert_eq!((records, tokens), (count, count), "{case}: totals");
    test_dir.assert_balanced(case);
    let mut failed = names(&test_dir.data().failed);
    // A crash while recovery seals the open entry tears the seal, the last line of the entry. The
    // torn seal goes to a second file in `failed/`, which is not counted here.
    failed.retain(|name| !name.contains(".torn.1"));
    let torn = failed
        .iter()
        .filter(|name| name.strip_suffix(".torn").is_some());
    let torn: Vec<_> = torn.filter(|name| !name.starts_with("taken-")).collect();
    assert_eq!(torn.len(), 1, "{case}: torn part of the entry: {failed:?}");
    // A crash may also move the torn end of a journal (`taken-*`) to `failed/`, which is not
    // counted here.
    let junk = failed.iter().filter(|name| !name.starts_with("taken-"));
    assert_eq!(
        junk.count(),
        4,
        "{case}: malformed files, each with a reason: {failed:?}"
    );
}

#[test]
fn consolidation_batches_each_record_once_after_a_crash_at_any_operation() {
    for kind in CRASHES {
        for at in 0.. {
            let test_dir = TestDataDir::new();
            let expected = fill(&test_dir);
            let has_crashed = crash(&test_dir, kind, at);
            recover(&test_dir, &expected, &format!("{kind:?} at {at}"));
            if !has_crashed {
                assert!(at > 30, "too few operations to crash at");
                break;
            }
        }
    }
}

#[test]
fn consolidation_batches_each_record_once_if_the_recovery_crashes_too() {
    for (first, second) in [(Crash::After, Crash::Before), (Crash::Power, Crash::Power)] {
        for at in (0..).step_by(3) {
            let test_dir = TestDataDir::new();
            let expected = fill(&test_dir);
            if !crash(&test_dir, first, at) {
                break;
            }
            for again in (0..40).step_by(7) {
                crash(&test_dir, second, again);
            }
            recover(
                &test_dir,
                &expected,
                &format!("{first:?} at {at}, then {second:?}"),
            );
        }
    }
}

#[test]
fn recovery_does_not_repeat_batches_that_are_already_delivered() {
    for kind in CRASHES {
        for at in 0.. {
            let test_dir = TestDataDir::new();
            let mut expected = fill(&test_dir);
            let has_crashed = crash(&test_dir, kind, at);
            test_dir.deliver_all();
            // Stage an entry after the crash. It belongs to a later snapshot and must not change
            // the batches of the unfinished one.
            expected.extend(test_dir.entry(5, true).iter().map(Record::id));
            recover(
                &test_dir,
                &expected,
                &format!("{kind:?} at {at}, delivered"),
            );
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn acknowledged_records_survive_a_crash_of_staging_at_any_operation() {
    for kind in CRASHES {
        for durability in [Durability::Power, Durability::Process] {
            let is_process_alone = matches!(kind, Crash::Before | Crash::After);
            if !is_process_alone && durability == Durability::Process {
                continue; // Records of this level may be lost in a power failure.
            }
            for at in 0.. {
                let test_dir = TestDataDir::new();
                let disk = Arc::new(CrashingDisk::new(kind, at));
                let limits = Limits {
                    records: 4,
                    age: Duration::from_secs(3600),
                    reserve: 0,
                    ..Limits::default()
                };
                let staging = test_dir.data().staging;
                let Ok(staging) = Staging::open_on(Arc::clone(&disk) as _, &staging, limits) else {
                    continue;
                };
                let (mut safe, mut unknown) = (BTreeSet::new(), BTreeSet::new());
                for _ in 0..10 {
                    let record = record();
                    match staging.stage(&record, durability) {
                        Ok(()) => safe.insert(record.id()),
                        Err(_) => unknown.insert(record.id()),
                    };
                }
                drop(staging);
                consolidate(test_dir.path(), &batches_of(4)).unwrap();
                let case = format!("{kind:?} at {at}, {durability:?}");
                let found = each_once(test_dir.batched(), &case);
                let lost: Vec<_> = safe.difference(&found).collect();
                assert!(lost.is_empty(), "{case}: lost {lost:?}");
                assert!(
                    found
                        .iter()
                        .all(|id| safe.contains(id) || unknown.contains(id))
                );
                if !disk.has_crashed() {
                    assert_eq!(found.len(), 10);
                    break;
                }
            }
        }
    }
}
