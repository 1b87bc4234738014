//! Bounds for `archive/` and `failed/`: no file is deleted without a bound, and the books balance after
//! deletions.

#![expect(clippy::unwrap_used, reason = "helpers fail the test that called them")]

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

use spool::{
    Answer, Batch, DeliveryLock, DeliveryOptions, Destination, Durability, FileTotals, Keep,
    KeptIn, Options, Record, Sink, SpoolManager, Staging, Watch, run, verify,
};

/// Rejects batches that contain a record with a `word` that starts with "bad".
struct RejectsBadWords;

impl Sink for RejectsBadWords {
    fn name(&self) -> &'static str {
        "rejects bad words"
    }

    fn send(&self, batch: &Batch) -> Answer {
        // Search for the field name together with the value: the body also has the ids of the
        // records, and a hexadecimal id may contain "bad".
        if String::from_utf8_lossy(&batch.body()).contains(r#""word":"bad"#) {
            Answer::rejected("no")
        } else {
            Answer::accepted("yes")
        }
    }
}

fn deliver(data: &Path, words: &[&str], to: Destination<'_>) {
    let staging = Staging::open(data.join("_staging")).unwrap();
    for word in words {
        let record = Record::parse(&format!(r#"{{"word":"{word}"}}"#)).unwrap();
        staging.stage(&record, Durability::Process).unwrap();
    }
    staging.close().unwrap();
    let mut options = Options::default();
    options.batch_size = 1;
    run(
        data,
        &options,
        &DeliveryOptions::default(),
        to,
        &Watch::silent(),
    )
    .unwrap();
}

fn prune(data: &Path, dir: KeptIn, keep: Keep) -> FileTotals {
    let _lock = DeliveryLock::acquire(data).unwrap();
    SpoolManager::new(data).prune(dir, &keep).unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Sets the ages of files by the order of their names: the last is one hour old, each other one an hour
/// older than the next.
fn set_ages(dir: &Path) {
    let names = names(dir);
    for (index, name) in names.iter().enumerate() {
        let hours = names.len() - index;
        let written = SystemTime::now() - Duration::from_secs(3600 * hours as u64);
        let file = File::options().write(true).open(dir.join(name)).unwrap();
        file.set_modified(written).unwrap();
    }
}

#[test]
fn archive_keeps_the_youngest_batches_within_its_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let (data, archive) = (dir.path(), dir.path().join("archive"));
    deliver(data, &["a", "b", "c", "d"], Destination::Archive);
    fs::write(archive.join("notes.txt"), "mine").unwrap();
    set_ages(&archive);
    let all = names(&archive);
    assert_eq!(prune(data, KeptIn::Archive, Keep::default()).files, 0);
    assert_eq!(names(&archive), all, "deleted without a bound");

    let kept = SpoolManager::new(data).kept(KeptIn::Archive).unwrap();
    assert_eq!(kept.files, 5);
    let keep = Keep {
        max_bytes: Some(kept.bytes - 1),
        ..Keep::default()
    };
    assert_eq!(prune(data, KeptIn::Archive, keep).files, 1);
    assert_eq!(names(&archive), all[1..], "the oldest batch is deleted");
    // The deleted batch was 5 h old, the others are 4, 3 and 2 h old.
    let keep = Keep {
        max_age: Some(Duration::from_secs(3600 * 5 / 2)),
        ..Keep::default()
    };
    assert_eq!(prune(data, KeptIn::Archive, keep).files, 2);
    assert_eq!(
        names(&archive),
        all[3..],
        "the youngest batch and the foreign file"
    );

    let books = verify(data, &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!((books.staged, books.archived), (4, 4));
}

#[test]
fn failed_batches_that_are_deleted_still_count_as_failed() {
    let dir = tempfile::tempdir().unwrap();
    let (data, failed) = (dir.path(), dir.path().join("failed"));
    deliver(
        data,
        &["good", "bad one", "good", "bad two"],
        Destination::To(&RejectsBadWords),
    );
    fs::write(failed.join("notes.txt"), "mine").unwrap();
    let before = verify(data, &Watch::silent()).unwrap();
    assert_eq!((before.staged, before.delivered, before.failed), (4, 2, 2));
    let keep = Keep {
        max_bytes: Some(0),
        ..Keep::default()
    };
    assert_eq!(prune(data, KeptIn::Failed, keep).files, 2);
    assert_eq!(
        names(&failed),
        ["notes.txt"],
        "batches are deleted with their reasons"
    );
    // The deleted batches must still count as failed after later deliveries.
    deliver(data, &["good"], Destination::To(&RejectsBadWords));
    let after = verify(data, &Watch::silent()).unwrap();
    assert!(after.balance(), "{:?}", after.problems);
    assert_eq!((after.staged, after.delivered, after.failed), (5, 3, 2));
}

#[test]
fn failed_batches_are_deleted_only_until_the_bound_is_respected() {
    let dir = tempfile::tempdir().unwrap();
    let (data, failed) = (dir.path(), dir.path().join("failed"));
    let words = ["good", "bad one", "good", "bad two", "good", "bad three"];
    deliver(data, &words, Destination::To(&RejectsBadWords));
    set_ages(&failed);
    let all = names(&failed);
    assert_eq!(all.len(), 6, "{all:?}");
    let size = |name: &String| fs::metadata(failed.join(name)).unwrap().len();
    // The bound equals the size of all files except the oldest batch and its reason, so only these
    // two are deleted.
    let keep = Keep {
        max_bytes: Some(all[2..].iter().map(size).sum()),
        ..Keep::default()
    };
    let expected = all[..2].iter().map(size).sum::<u64>();
    let deleted = prune(data, KeptIn::Failed, keep);
    assert_eq!((deleted.files, deleted.bytes), (1, expected));
    assert_eq!(names(&failed), all[2..]);
}
