//! The staging lock, the deletion of consumed entries, and malformed files. (promises S3, S4, S8)

use std::fs;
use std::sync::Arc;

use super::test_data_dir::{TestDataDir, names, record};
use crate::consolidate::{Options, consolidate};
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::snapshot::Snapshot;
use crate::staging::{Durability, Staging};
use crate::staging_lock::{LockError, StagingLock};

fn acquire(test_dir: &TestDataDir, consumed: &[String]) -> Result<StagingLock, LockError> {
    StagingLock::acquire(&test_dir.data().staging, "pod-7", consumed)
}

#[test]
fn second_consolidator_is_refused_with_the_pid_and_pod_of_the_first() {
    let test_dir = TestDataDir::new();
    let lock = acquire(&test_dir, &[]).unwrap();
    let refused = acquire(&test_dir, &[]).unwrap_err();
    assert!(matches!(
        &refused,
        LockError::InUse { pid: Some(pid), pod_name: Some(pod) }
            if *pid == std::process::id() && pod == "pod-7"
    ));
    let busy = consolidate(test_dir.path(), &Options::default()).unwrap_err();
    assert!(matches!(busy, LockError::InUse { .. }));
    lock.release_only().unwrap();
    assert_eq!(names(&test_dir.data().staging), [""; 0]);
}

#[test]
fn dropped_lock_leaves_its_lock_record_for_the_next_owner() {
    let test_dir = TestDataDir::new();
    test_dir.record_file();
    let set = names(&test_dir.data().staging);
    drop(acquire(&test_dir, &set).unwrap());
    let next = acquire(&test_dir, &[]).unwrap();
    assert_eq!(next.record().consumed_ids, set);
    assert_eq!(next.record().pid, std::process::id());
    next.release_only().unwrap();
    assert_eq!(names(&test_dir.data().staging), set, "entries were deleted");
}

/// A consolidator deletes entries and the snapshot, and crashes before it updates its lock record.
#[test]
fn next_lock_record_omits_consumed_entries_that_are_deleted() {
    let test_dir = TestDataDir::new();
    let set = ["x", "y"].map(|_| format!("{}.jsonl", crate::time::new_id()));
    fs::write(test_dir.data().staging.join(&set[1]), "").unwrap();
    let lock = acquire(&test_dir, &set).unwrap();
    for path in Snapshot::paths(&test_dir.data().staging) {
        let _ = fs::remove_file(path);
    }
    drop(lock);
    let next = acquire(&test_dir, &[]).unwrap();
    assert_eq!(
        next.record().consumed_ids,
        set[1..],
        "the entry that exists"
    );
}

#[test]
fn release_with_cleanup_deletes_exactly_the_snapshot() {
    let test_dir = TestDataDir::new();
    test_dir.record_file();
    let mut set = names(&test_dir.data().staging);
    set.push("01890a5d-ac96-774b-bcce-b302099a8057.json".to_owned());
    let lock = acquire(&test_dir, &set).unwrap();
    test_dir.record_file();
    lock.release_with_cleanup().unwrap();
    let left = names(&test_dir.data().staging);
    assert_eq!(left.len(), 1);
    assert!(!set.contains(&left[0]));
}

#[test]
fn entry_that_cannot_be_deleted_stays_in_the_lock_record() {
    let test_dir = TestDataDir::new();
    let staging = test_dir.data().staging;
    // A directory in place of the entry makes its deletion fail: `unlink` removes no directory, not
    // even for root.
    let directory = "01890a5d-ac96-774b-bcce-b302099a8057.json".to_owned();
    fs::create_dir(staging.join(&directory)).unwrap();
    let lock = acquire(&test_dir, std::slice::from_ref(&directory)).unwrap();
    assert!(matches!(
        lock.release_with_cleanup(),
        Err(LockError::Disk(_))
    ));
    fs::remove_dir(staging.join(&directory)).unwrap();
    let next = acquire(&test_dir, &[]).unwrap();
    assert_eq!(next.record().consumed_ids, [directory]);
}

#[test]
fn unparseable_lock_file_is_taken_over() {
    for content in ["", "garbage", "{\"pid\":1}", "[]", "\0\0"] {
        let test_dir = TestDataDir::new();
        let expected = test_dir.record_file().id();
        fs::write(test_dir.data().staging.join(".consolidation.lock"), content).unwrap();
        let done = consolidate(test_dir.path(), &Options::default()).unwrap();
        assert_eq!(done.records, 1, "{content:?}");
        assert!(test_dir.batched().contains_key(&expected));
        assert_eq!(names(&test_dir.data().staging), [""; 0]);
    }
}

#[test]
fn record_staged_repeatedly_is_batched_once() {
    let test_dir = TestDataDir::new();
    let staging = Staging::open(&test_dir.data().staging).unwrap();
    let record = record();
    for _ in 0..3 {
        staging.stage(&record, Durability::Power).unwrap();
        staging.seal().unwrap();
    }
    staging.close().unwrap();
    let done = consolidate(test_dir.path(), &Options::default()).unwrap();
    assert_eq!((done.entries, done.records, done.repeated), (3, 1, 2));
    assert_eq!(test_dir.batched().get(&record.id()), Some(&1));
}

#[test]
fn open_entry_is_consolidated_only_after_its_seal() {
    let test_dir = TestDataDir::new();
    let staging = Staging::open(&test_dir.data().staging).unwrap();
    staging.stage(&record(), Durability::Power).unwrap();
    let done = consolidate(test_dir.path(), &Options::default()).unwrap();
    assert_eq!(done.entries, 0);
    staging.seal().unwrap();
    let done = consolidate(test_dir.path(), &Options::default()).unwrap();
    assert_eq!((done.entries, done.records), (1, 1));
}

#[test]
fn foreign_files_are_left_alone() {
    let test_dir = TestDataDir::new();
    let data = test_dir.data();
    for dir in [&data.staging, &data.spool] {
        for name in ["notes.txt", "x.json", ".hidden", "a-b-c.json"] {
            fs::write(dir.join(name), "mine").unwrap();
        }
    }
    test_dir.record_file();
    consolidate(test_dir.path(), &Options::default()).unwrap();
    assert_eq!(names(&data.staging).len(), 4);
    let spool = SpoolManager::new(test_dir.path());
    let pending = spool.pending(None, 10).unwrap();
    assert_eq!(pending.len(), 1);
    spool.load(&pending[0]).unwrap();
}

#[test]
fn damaged_line_is_quarantined_and_the_other_lines_are_batched() {
    let test_dir = TestDataDir::new();
    let records = test_dir.entry(3, true);
    let data = test_dir.data();
    let path = data.staging.join(&names(&data.staging)[0]);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen(r#""n":2"#, r#""n":9"#, 1)).unwrap();
    consolidate(test_dir.path(), &Options::default()).unwrap();
    let batched = test_dir.batched();
    let kept: Vec<_> = [&records[0], &records[2]].map(Record::id).into();
    assert_eq!(batched.into_keys().collect::<Vec<_>>(), kept);
    let quarantined = names(&data.failed);
    assert_eq!(quarantined.len(), 2, "{quarantined:?}");
    assert!(quarantined[0].ends_with(".jsonl.lines"));
    let reason = fs::read_to_string(data.failed.join(&quarantined[1])).unwrap();
    assert!(reason.contains("checksum"), "{reason}");
}

#[test]
fn concurrent_consolidators_batch_each_record_once() {
    let test_dir = TestDataDir::new();
    let mut expected: Vec<_> = (0..20)
        .flat_map(|_| test_dir.entry(7, true))
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
                    match consolidate(test_dir.path(), &options) {
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
    let batched = test_dir.batched();
    assert!(batched.values().all(|count| *count == 1));
    assert_eq!(batched.into_keys().collect::<Vec<_>>(), expected);
}

#[test]
fn malformed_entry_is_quarantined_whole_without_replacing_an_earlier_one() {
    let test_dir = TestDataDir::new();
    let data = test_dir.data();
    let good = test_dir.record_file();
    let name = format!("{}.jsonl", uuid::Uuid::now_v7());
    for round in 0..3 {
        let text = format!("{{\"round\":{round}}}\n").repeat(1000);
        fs::write(data.staging.join(&name), text).unwrap();
        consolidate(test_dir.path(), &Options::default()).unwrap();
    }
    let quarantined = names(&data.failed);
    assert_eq!(quarantined.len(), 6, "files and reasons: {quarantined:?}");
    assert_eq!(test_dir.batched().get(&good.id()), Some(&1));
    for (round, name) in quarantined
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
fn malformed_file_with_a_known_name_and_new_content_is_quarantined_too() {
    let test_dir = TestDataDir::new();
    let data = test_dir.data();
    let name = format!("{}.json", uuid::Uuid::now_v7());
    for content in ["one", "two", "two"] {
        fs::write(data.staging.join(&name), content).unwrap();
        consolidate(test_dir.path(), &Options::default()).unwrap();
    }
    let quarantined = names(&data.failed);
    let kept: Vec<_> = quarantined
        .iter()
        .filter(|name| !name.contains("reason"))
        .collect();
    assert_eq!(kept.len(), 2, "{quarantined:?}");
}

#[test]
fn invalid_snapshot_in_the_lock_record_does_not_count_as_written() {
    for snapshot in ["\"x\"", "7", "null"] {
        let test_dir = TestDataDir::new();
        let record = test_dir.record_file();
        let name = names(&test_dir.data().staging).remove(0);
        let lock = format!(
            r#"{{"pid":999999,"consumed_ids":["{name}","../spool"],"batch_size":100,"snapshot":{snapshot}}}"#
        );
        fs::write(test_dir.data().staging.join(".consolidation.lock"), lock).unwrap();
        consolidate(test_dir.path(), &Options::default()).unwrap();
        assert_eq!(test_dir.batched().get(&record.id()), Some(&1), "{snapshot}");
        assert!(test_dir.data().spool.exists());
    }
}

#[test]
fn entry_of_a_future_version_stays_and_is_reported() {
    for ending in ["jsonl", "jsonl.open"] {
        let test_dir = TestDataDir::new();
        let id = uuid::Uuid::now_v7();
        let text = format!(r#"{{"entry":"{id}","version":2"#).into_bytes();
        let mut text = crate::line::with_checksum(text);
        text.extend(b"something else\n");
        let path = test_dir.data().staging.join(format!("{id}.{ending}"));
        fs::write(&path, &text).unwrap();
        let record = test_dir.record_file();
        let done = consolidate(test_dir.path(), &Options::default()).unwrap();
        assert_eq!((done.entries, done.unreadable), (1, 1));
        assert_eq!(fs::read(&path).unwrap(), text);
        assert_eq!(
            test_dir.batched().get(&record.id()),
            Some(&1),
            "the other entry is not batched"
        );
        let staged = crate::staged(test_dir.path()).unwrap();
        let error = staged.errors[0].to_string();
        assert!(
            error.contains("the file has version 2, this program knows 1"),
            "{error}"
        );
        let books = crate::verify(test_dir.path(), &crate::Watch::silent()).unwrap();
        assert_eq!(books.problems[0].path, path);
    }
}

#[test]
fn entry_with_a_damaged_first_line_keeps_its_records() {
    for sealed in [true, false] {
        let test_dir = TestDataDir::new();
        let records = test_dir.entry(3, sealed);
        let path = test_dir
            .data()
            .staging
            .join(&names(&test_dir.data().staging)[0]);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replacen("entry", "antry", 1)).unwrap();
        consolidate(test_dir.path(), &Options::default()).unwrap();
        let batched = test_dir.batched();
        assert!(
            records
                .iter()
                .all(|record| batched.contains_key(&record.id()))
        );
    }
}

#[test]
fn file_with_the_name_of_a_journal_and_other_content_is_quarantined() {
    let test_dir = TestDataDir::new();
    let data = test_dir.data();
    let record = test_dir.record_file();
    fs::write(data.sent.join("sent-00000007.jsonl"), "junk\n").unwrap();
    fs::write(data.usage.join("taken-00000003.jsonl"), "junk").unwrap();
    consolidate(test_dir.path(), &Options::default()).unwrap();
    test_dir.deliver_all();
    let books = test_dir.assert_balanced("at the end");
    assert_eq!((books.staged, books.delivered), (1, 1));
    assert_eq!(test_dir.batched().get(&record.id()), Some(&1));
    assert_eq!(names(&data.failed).len(), 4);
}

#[test]
fn books_balance_after_a_file_name_is_used_again() {
    let test_dir = TestDataDir::new();
    let data = test_dir.data();
    let name = format!("{}.json", uuid::Uuid::now_v7());
    let other = record();
    // Other programs may use a file name again, for the same record, for another record or for a
    // malformed file. The books must balance each time.
    let contents = [r#"{"t":1}"#, r#"{"t":1}"#, other.json(), "bad"];
    for content in contents {
        fs::write(data.staging.join(&name), content).unwrap();
        consolidate(test_dir.path(), &Options::default()).unwrap();
        test_dir.deliver_all();
        test_dir.assert_balanced(content);
    }
}
