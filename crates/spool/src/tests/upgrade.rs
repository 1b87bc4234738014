//! A data directory that the first release wrote and left by a crash: each record is delivered once.
//! Files of a future version are refused and kept.
//!
//! `tests/fixtures/version-1` was written by a build of commit 6ef6b32: sealed and open entries, files
//! of one record, a started snapshot with one of its two batches, batches with state files, a pause,
//! journals, totals, an archived batch, and failed batches with their reasons.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use super::test_data_dir::{TestDataDir, batches_of, each_once, names, real_disk};
use crate::consolidate::{Options, consolidate};
use crate::delivery::{Watch, archive};
use crate::line;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::verify::verify;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1")
}

/// Copies the fixture, the data directory that the first release wrote, to a temporary directory.
fn copy_of_fixture() -> TestDataDir {
    let test_dir = TestDataDir::new();
    for dir in test_dir.data().all() {
        let from = fixture().join(dir.file_name().unwrap());
        for name in names(&from) {
            fs::copy(from.join(&name), dir.join(&name)).unwrap();
        }
    }
    test_dir
}

fn billed_before() -> BTreeSet<Uuid> {
    let text = fs::read_to_string(fixture().join("billed.txt")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Ids of the records in the files of a directory.
fn ids_in(dir: &Path) -> BTreeSet<Uuid> {
    let mut ids = BTreeSet::new();
    for name in names(dir) {
        let text = String::from_utf8(fs::read(dir.join(&name)).unwrap()).unwrap();
        let found = text.match_indices(r#"{"id":""#);
        ids.extend(found.filter_map(|(at, mark)| {
            text.get(at + mark.len()..at + mark.len() + 36)?
                .parse::<Uuid>()
                .ok()
        }));
        // A file of one record without an id: the name of the file is the id.
        if let Some(id) = name.strip_suffix(".json").and_then(|id| id.parse().ok())
            && Record::parse(&text).is_ok()
        {
            ids.insert(id);
        }
    }
    ids
}

#[test]
fn data_directory_of_the_first_release_is_delivered_and_its_books_balance() {
    let test_dir = copy_of_fixture();
    let data = test_dir.data();
    let books = test_dir.assert_balanced("as copied");
    assert_eq!((books.staged, books.delivered), (23, 10));
    assert_eq!((books.pending, books.failed, books.archived), (10, 2, 1));
    let pending = &ids_in(&data.staging) | &ids_in(&data.spool);
    assert_eq!(pending.len(), 10);
    let (archived, failed) = (ids_in(&data.archive), ids_in(&data.failed));
    let options = batches_of(3);
    while consolidate(test_dir.path(), &options).unwrap().entries > 0 {}
    // The fixture contains a pause of one hour, during which no batch is sent. The clock is
    // advanced past its end.
    test_dir.receiver.clock.forward(Duration::from_secs(7200));
    test_dir.deliver_all();
    let billed = each_once(test_dir.receiver.billed(), "delivered");
    assert_eq!(billed, pending);
    assert!(billed.is_disjoint(&billed_before()));
    assert_eq!(names(&data.staging), [""; 0]);
    assert_eq!(ids_in(&data.spool), BTreeSet::new());
    assert_eq!(ids_in(&data.archive), archived);
    assert!(ids_in(&data.failed).is_superset(&failed));
    assert_eq!(test_dir.totals(), (22, 22), "one line is not a record");
    let books = test_dir.assert_balanced("delivered");
    assert_eq!((books.staged, books.delivered), (23, 20));
    assert_eq!((books.pending, books.failed, books.archived), (0, 2, 1));
}

/// Returns the file with version 9 and a valid checksum, or `None` if it has no version.
fn as_of_version_9(bytes: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(bytes).ok()?;
    let is_batch = text.contains(r#""records":["#) && text.contains(r#""checks":["#);
    let (first, rest) = if is_batch {
        (text.strip_suffix('\n')?, "")
    } else {
        text.split_once('\n')?
    };
    let first = first.replacen(r#""version":1"#, r#""version":9"#, 1);
    let end = first.rfind(r#","crc":""#)?;
    let mut changed = line::with_checksum(first.as_bytes()[..end].to_vec());
    changed.extend(rest.as_bytes());
    (changed != bytes).then_some(changed)
}

#[test]
fn files_of_a_future_version_are_refused_and_kept() {
    let mut kinds = BTreeSet::new();
    let test_dir = copy_of_fixture();
    for dir in test_dir.data().all().map(Path::to_owned) {
        for name in names(&dir) {
            let Some(newer) = as_of_version_9(&fs::read(dir.join(&name)).unwrap()) else {
                continue;
            };
            let test_dir = copy_of_fixture();
            let copied_dir = test_dir.path().join(dir.file_name().unwrap());
            let path = copied_dir.join(&name);
            fs::write(&path, &newer).unwrap();
            let mut messages = Vec::new();
            let options = Options::default();
            for _ in 0..3 {
                if let Err(error) = consolidate(test_dir.path(), &options) {
                    messages.push(error.to_string());
                }
                let store = SpoolManager::new(test_dir.path());
                messages.extend(
                    archive(&store, &Watch::silent())
                        .err()
                        .map(|error| error.to_string()),
                );
                let delivered = test_dir.deliver(&real_disk());
                messages.extend(delivered.err().map(|error| error.to_string()));
            }
            match verify(test_dir.path(), &Watch::silent()) {
                Ok(books) => messages.extend(books.problems.iter().map(ToString::to_string)),
                Err(error) => messages.push(error.to_string()),
            }
            let staged = crate::staged(test_dir.path()).unwrap();
            messages.extend(staged.errors.iter().map(ToString::to_string));
            let case = format!("{}/{name}", copied_dir.file_name().unwrap().display());
            assert_eq!(fs::read(&path).ok(), Some(newer), "{case}: {messages:?}");
            let is_named = messages.iter().any(|message| message.contains("version 9"));
            assert!(is_named, "{case}: {messages:?}");
            kinds.insert(case.split('/').next().unwrap().to_owned());
        }
    }
    let expected = ["_staging", "archive", "failed", "sent", "spool", "usage"];
    assert_eq!(kinds, expected.map(str::to_owned).into());
}
