//! A crash at every act: nothing is lost, nothing is there twice. (S2, S4, S5)

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crashing_disk::{CRASHES, Crash, CrashingDisk};
use super::place::{Place, names, record};
use crate::consolidate::{ConsolidatorState, Options, consolidate, consolidate_on};
use crate::delivery::Watch;
use crate::disk::Disk;
use crate::record::Record;
use crate::staging::{Durability, Limits, Staging};
use crate::verify::verify;

pub(super) fn options() -> Options {
    Options {
        batch_size: 4,
        ..Options::default()
    }
}

/// Entries of every kind; what must be in batches in the end.
pub(super) fn fill(place: &Place) -> BTreeSet<Uuid> {
    let mut records = place.entry(4, true);
    records.extend(place.entry(2, true));
    records.push(place.single());
    records.extend(place.entry(2, false));
    place.junk("json", "no record");
    place.junk("jsonl.open", "");
    records.iter().map(Record::id).collect()
}

pub(super) fn crash(place: &Place, crash: Crash, at: usize) -> bool {
    let disk = Arc::new(CrashingDisk::new(crash, at));
    let outcome = consolidate_on(
        &(Arc::clone(&disk) as Arc<dyn Disk>),
        place.path(),
        &options(),
        &mut ConsolidatorState::default(),
    );
    assert_eq!(
        outcome.is_err(),
        disk.has_crashed(),
        "{crash:?} {at}: {outcome:?}"
    );
    disk.has_crashed()
}

/// Recovers, and checks that each record is in exactly one batch.
fn recover(place: &Place, expected: &BTreeSet<Uuid>, what: &str) {
    while consolidate(place.path(), &options()).unwrap().entries > 0 {}
    let batched = place.batched();
    for (id, count) in &batched {
        assert_eq!(*count, 1, "{what}: {id} is there {count} times");
    }
    let found: BTreeSet<_> = batched.into_keys().collect();
    assert_eq!(&found, expected, "{what}");
    assert_eq!(
        names(&place.data().staging),
        [""; 0],
        "{what}: all was consumed"
    );
    let (records, tokens) = place.totals();
    let count = expected.len() as u64;
    assert_eq!((records, tokens), (count, count), "{what}: totals");
    let books = verify(place.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{what}: {:?}", books.problems);
    assert_eq!(books.staged, books.delivered + books.pending + books.failed);
    let mut failed = names(&place.data().failed);
    // Half of a seal is a piece of its own.
    failed.retain(|name| !name.contains(".torn.1"));
    let torn = failed
        .iter()
        .filter(|name| name.strip_suffix(".torn").is_some());
    let torn: Vec<_> = torn.filter(|name| !name.starts_with("taken-")).collect();
    assert_eq!(torn.len(), 1, "{what}: what was torn is kept: {failed:?}");
    // A journal that was torn leaves a piece of itself there, too.
    let junk = failed.iter().filter(|name| !name.starts_with("taken-"));
    assert_eq!(
        junk.count(),
        4,
        "{what}: and the junk, each with a reason: {failed:?}"
    );
}

#[test]
fn consolidation_is_exact_whatever_act_it_crashes_at() {
    for kind in CRASHES {
        for at in 0.. {
            let place = Place::new();
            let expected = fill(&place);
            let has_crashed = crash(&place, kind, at);
            recover(&place, &expected, &format!("{kind:?} at {at}"));
            if !has_crashed {
                assert!(at > 30, "there are acts to crash at");
                break;
            }
        }
    }
}

#[test]
fn consolidation_is_exact_if_the_recovery_crashes_too() {
    for (first, second) in [(Crash::After, Crash::Before), (Crash::Power, Crash::Power)] {
        for at in (0..).step_by(3) {
            let place = Place::new();
            let expected = fill(&place);
            if !crash(&place, first, at) {
                break;
            }
            for again in (0..40).step_by(7) {
                crash(&place, second, again);
            }
            recover(
                &place,
                &expected,
                &format!("{first:?} at {at}, then {second:?}"),
            );
        }
    }
}

#[test]
fn batches_that_are_delivered_before_the_recovery_are_not_made_again() {
    for kind in CRASHES {
        for at in 0.. {
            let place = Place::new();
            let mut expected = fill(&place);
            let has_crashed = crash(&place, kind, at);
            place.deliver_all();
            // What is staged meanwhile waits for its own turn.
            expected.extend(place.entry(5, true).iter().map(Record::id));
            recover(&place, &expected, &format!("{kind:?} at {at}, delivered"));
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn what_was_acknowledged_is_there_whatever_act_staging_crashes_at() {
    for kind in CRASHES {
        for durability in [Durability::Power, Durability::Process] {
            let is_process_alone = matches!(kind, Crash::Before | Crash::After);
            if !is_process_alone && durability == Durability::Process {
                continue; // Not promised.
            }
            for at in 0.. {
                let place = Place::new();
                let disk = Arc::new(CrashingDisk::new(kind, at));
                let limits = Limits {
                    records: 4,
                    age: Duration::from_secs(3600),
                    reserve: 0,
                    ..Limits::default()
                };
                let staging = place.data().staging;
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
                consolidate(place.path(), &options()).unwrap();
                let batched = place.batched();
                let what = format!("{kind:?} at {at}, {durability:?}");
                assert!(batched.values().all(|count| *count == 1), "{what}");
                let found: BTreeSet<_> = batched.into_keys().collect();
                let lost: Vec<_> = safe.difference(&found).collect();
                assert!(lost.is_empty(), "{what}: lost {lost:?}");
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
