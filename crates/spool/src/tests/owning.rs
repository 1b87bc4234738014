//! The lock of a staging directory, and what is deleted with it. (S3, S4, S8)

use std::fs;
use std::sync::Arc;

use super::place::{Place, names, record};
use crate::consolidate::{Options, consolidate};
use crate::manager::{BatchStore, SpoolManager};
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::staging::{Durability, Staging};
use crate::staging_lock::{LockError, StagingLock};

fn own(place: &Place, consumed: &[String]) -> Result<StagingLock, LockError> {
    StagingLock::acquire(&place.data().staging, "pod-7", consumed)
}

#[test]
fn a_second_owner_is_told_of_the_first() {
    let place = Place::new();
    let lock = own(&place, &[]).unwrap();
    let refused = own(&place, &[]).unwrap_err();
    assert!(matches!(
        &refused,
        LockError::InUse { pid: Some(pid), pod_name: Some(pod) }
            if *pid == std::process::id() && pod == "pod-7"
    ));
    let busy = consolidate(place.path(), &Options::default()).unwrap_err();
    assert!(matches!(busy, LockError::InUse { .. }));
    lock.release_only().unwrap();
    assert_eq!(names(&place.data().staging), [""; 0]);
}

#[test]
fn dropping_the_lock_leaves_its_record_for_the_next_owner() {
    let place = Place::new();
    place.single();
    let set = names(&place.data().staging);
    drop(own(&place, &set).unwrap());
    let next = own(&place, &[]).unwrap();
    assert_eq!(next.record().consumed_ids, set);
    assert_eq!(next.record().pid, std::process::id());
    next.release_only().unwrap();
    assert_eq!(names(&place.data().staging), set, "the entries stay");
}

/// A consolidator deletes the entries and the set, and crashes before it updates its lock record.
#[test]
fn lock_record_does_not_bring_back_entries_that_were_consolidated() {
    let place = Place::new();
    let set = ["x", "y"].map(|_| format!("{}.jsonl", crate::time::new_id()));
    fs::write(place.data().staging.join(&set[1]), "").unwrap();
    let lock = own(&place, &set).unwrap();
    for path in Snapshot::paths(&place.data().staging) {
        let _ = fs::remove_file(path);
    }
    drop(lock);
    let next = own(&place, &[]).unwrap();
    assert_eq!(next.record().consumed_ids, set[1..], "this one is there");
}

#[test]
fn cleaning_up_deletes_exactly_the_set() {
    let place = Place::new();
    place.single();
    let mut set = names(&place.data().staging);
    set.push("01890a5d-ac96-774b-bcce-b302099a8057.json".to_owned());
    let lock = own(&place, &set).unwrap();
    place.single();
    lock.release_with_cleanup().unwrap();
    let left = names(&place.data().staging);
    assert_eq!(left.len(), 1);
    assert!(!set.contains(&left[0]));
}

#[test]
fn an_entry_that_cannot_be_deleted_keeps_the_record_in_place() {
    let place = Place::new();
    let staging = place.data().staging;
    // A directory cannot be removed as a file is.
    let stubborn = "01890a5d-ac96-774b-bcce-b302099a8057.json".to_owned();
    fs::create_dir(staging.join(&stubborn)).unwrap();
    let lock = own(&place, std::slice::from_ref(&stubborn)).unwrap();
    assert!(matches!(
        lock.release_with_cleanup(),
        Err(LockError::Disk(_))
    ));
    fs::remove_dir(staging.join(&stubborn)).unwrap();
    let next = own(&place, &[]).unwrap();
    assert_eq!(next.record().consumed_ids, [stubborn]);
}

#[test]
fn a_lock_file_that_makes_no_sense_is_taken_over() {
    for content in ["", "garbage", "{\"pid\":1}", "[]", "\0\0"] {
        let place = Place::new();
        let expected = place.single().id();
        fs::write(place.data().staging.join(".consolidation.lock"), content).unwrap();
        let done = consolidate(place.path(), &Options::default()).unwrap();
        assert_eq!(done.records, 1, "{content:?}");
        assert!(place.batched().contains_key(&expected));
        assert_eq!(names(&place.data().staging), [""; 0]);
    }
}

#[test]
fn the_same_record_staged_twice_is_delivered_once() {
    let place = Place::new();
    let staging = Staging::open(&place.data().staging).unwrap();
    let record = record();
    for _ in 0..3 {
        staging.stage(&record, Durability::Power).unwrap();
        staging.seal().unwrap();
    }
    staging.close().unwrap();
    let done = consolidate(place.path(), &Options::default()).unwrap();
    assert_eq!((done.entries, done.records, done.repeated), (3, 1, 2));
    assert_eq!(place.batched().get(&record.id()), Some(&1));
}

#[test]
fn an_entry_that_is_being_written_waits_for_its_seal() {
    let place = Place::new();
    let staging = Staging::open(&place.data().staging).unwrap();
    staging.stage(&record(), Durability::Power).unwrap();
    let done = consolidate(place.path(), &Options::default()).unwrap();
    assert_eq!(done.entries, 0);
    staging.seal().unwrap();
    let done = consolidate(place.path(), &Options::default()).unwrap();
    assert_eq!((done.entries, done.records), (1, 1));
}

#[test]
fn files_that_are_none_of_ours_are_left_alone() {
    let place = Place::new();
    let data = place.data();
    for dir in [&data.staging, &data.spool] {
        for name in ["notes.txt", "x.json", ".hidden", "a-b-c.json"] {
            fs::write(dir.join(name), "mine").unwrap();
        }
    }
    place.single();
    consolidate(place.path(), &Options::default()).unwrap();
    assert_eq!(names(&data.staging).len(), 4);
    let spool = SpoolManager::new(place.path());
    let pending = spool.pending(None, 10).unwrap();
    assert_eq!(pending.len(), 1);
    spool.load(&pending[0]).unwrap();
}

#[test]
fn a_bad_line_is_set_aside_and_its_neighbours_are_kept() {
    let place = Place::new();
    let records = place.entry(3, true);
    let data = place.data();
    let path = data.staging.join(&names(&data.staging)[0]);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen(r#""n":2"#, r#""n":9"#, 1)).unwrap();
    consolidate(place.path(), &Options::default()).unwrap();
    let batched = place.batched();
    let kept: Vec<_> = [&records[0], &records[2]].map(Record::id).into();
    assert_eq!(batched.into_keys().collect::<Vec<_>>(), kept);
    let aside = names(&data.failed);
    assert_eq!(aside.len(), 2, "{aside:?}");
    assert!(aside[0].ends_with(".jsonl.lines"));
    let reason = fs::read_to_string(data.failed.join(&aside[1])).unwrap();
    assert!(reason.contains("checksum"), "{reason}");
}

#[test]
fn many_threads_consolidate_and_each_record_is_in_one_batch() {
    let place = Place::new();
    let mut expected: Vec<_> = (0..20)
        .flat_map(|_| place.entry(7, true))
        .map(|record| record.id())
        .collect();
    let options = Arc::new(Options {
        max_entries: 3,
        ..Options::default()
    });
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    match consolidate(place.path(), &options) {
                        Ok(done) if done.entries == 0 => return,
                        Ok(_) => {}
                        Err(LockError::InUse { .. }) => std::thread::yield_now(),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    expected.sort();
    let batched = place.batched();
    assert!(batched.values().all(|count| *count == 1));
    assert_eq!(batched.into_keys().collect::<Vec<_>>(), expected);
}

#[test]
fn a_file_that_is_no_entry_is_set_aside_whole_and_never_replaces_another() {
    let place = Place::new();
    let data = place.data();
    let good = place.single();
    let name = format!("{}.jsonl", uuid::Uuid::now_v7());
    for round in 0..3 {
        let text = format!("{{\"round\":{round}}}\n").repeat(1000);
        fs::write(data.staging.join(&name), text).unwrap();
        consolidate(place.path(), &Options::default()).unwrap();
    }
    let aside = names(&data.failed);
    assert_eq!(aside.len(), 6, "each with a reason: {aside:?}");
    assert_eq!(place.batched().get(&good.id()), Some(&1));
    for (round, name) in aside
        .iter()
        .filter(|name| !name.contains("reason"))
        .enumerate()
    {
        let text = fs::read_to_string(data.failed.join(name)).unwrap();
        assert_eq!(text.lines().count(), 1000);
        assert!(text.contains(&format!("\"round\":{round}")), "{name}");
    }
}

#[test]
fn the_same_bad_file_dropped_again_with_other_content_is_kept_too() {
    let place = Place::new();
    let data = place.data();
    let name = format!("{}.json", uuid::Uuid::now_v7());
    for content in ["one", "two", "two"] {
        fs::write(data.staging.join(&name), content).unwrap();
        consolidate(place.path(), &Options::default()).unwrap();
    }
    let aside = names(&data.failed);
    let kept: Vec<_> = aside
        .iter()
        .filter(|name| !name.contains("reason"))
        .collect();
    assert_eq!(kept.len(), 2, "{aside:?}");
}

#[test]
fn a_snapshot_that_cannot_be_read_is_not_taken_for_written() {
    for snapshot in ["\"x\"", "7", "null"] {
        let place = Place::new();
        let record = place.single();
        let name = names(&place.data().staging).remove(0);
        let lock = format!(
            r#"{{"pid":999999,"consumed_ids":["{name}","../spool"],"batch_size":100,"snapshot":{snapshot}}}"#
        );
        fs::write(place.data().staging.join(".consolidation.lock"), lock).unwrap();
        consolidate(place.path(), &Options::default()).unwrap();
        assert_eq!(place.batched().get(&record.id()), Some(&1), "{snapshot}");
        assert!(place.data().spool.exists());
    }
}

#[test]
fn an_entry_of_a_version_to_come_is_left_in_place_and_reported() {
    for ending in ["jsonl", "jsonl.open"] {
        let place = Place::new();
        let id = uuid::Uuid::now_v7();
        let text = format!(r#"{{"entry":"{id}","version":2"#).into_bytes();
        let mut text = crate::line::with_checksum(text);
        text.extend(b"something else\n");
        let path = place.data().staging.join(format!("{id}.{ending}"));
        fs::write(&path, &text).unwrap();
        let record = place.single();
        let done = consolidate(place.path(), &Options::default()).unwrap();
        assert_eq!((done.entries, done.unreadable), (1, 1));
        assert_eq!(fs::read(&path).unwrap(), text);
        assert_eq!(
            place.batched().get(&record.id()),
            Some(&1),
            "the others go on"
        );
        let staged = crate::staged(place.path()).unwrap();
        let error = staged.errors[0].to_string();
        assert!(
            error.contains("its version is 2, this program knows 1"),
            "{error}"
        );
        let books = crate::verify(place.path(), &crate::Watch::silent()).unwrap();
        assert_eq!(books.problems[0].path, path);
    }
}

#[test]
fn an_entry_whose_first_line_is_damaged_keeps_its_records() {
    for sealed in [true, false] {
        let place = Place::new();
        let records = place.entry(3, sealed);
        let path = place.data().staging.join(&names(&place.data().staging)[0]);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen("entry", "antry", 1)).unwrap();
        consolidate(place.path(), &Options::default()).unwrap();
        let batched = place.batched();
        assert!(
            records
                .iter()
                .all(|record| batched.contains_key(&record.id()))
        );
    }
}

#[test]
fn a_file_that_only_has_the_name_of_a_book_is_set_aside() {
    let place = Place::new();
    let data = place.data();
    let record = place.single();
    fs::write(data.sent.join("sent-00000007.jsonl"), "junk\n").unwrap();
    fs::write(data.usage.join("taken-00000003.jsonl"), "junk").unwrap();
    consolidate(place.path(), &Options::default()).unwrap();
    place.deliver_all();
    let books = crate::verify(place.path(), &crate::Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!((books.staged, books.delivered), (1, 1));
    assert_eq!(place.batched().get(&record.id()), Some(&1));
    assert_eq!(names(&data.failed).len(), 4);
}

#[test]
fn the_same_file_dropped_again_leaves_the_books_in_balance() {
    let place = Place::new();
    let data = place.data();
    let name = format!("{}.json", uuid::Uuid::now_v7());
    let other = record();
    // Again, then another record under the same name, then a bad one.
    let contents = [r#"{"t":1}"#, r#"{"t":1}"#, other.json(), "bad"];
    for content in contents {
        fs::write(data.staging.join(&name), content).unwrap();
        consolidate(place.path(), &Options::default()).unwrap();
        place.deliver_all();
        let books = crate::verify(place.path(), &crate::Watch::silent()).unwrap();
        assert!(books.balance(), "{content}: {:?}", books.problems);
    }
}
