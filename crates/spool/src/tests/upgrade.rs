//! A data directory that the first release wrote, as a crash left it: nothing is lost and nothing is
//! there twice. Files of a version to come are refused and kept.
//!
//! `tests/fixtures/version-1` was written by a build of commit 6ef6b32: entries that are sealed, open
//! and single, a snapshot that was begun with one of its two batches, batches with notes about their
//! attempts, a pause, journals, totals, an archived batch, and what failed with its reasons.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use uuid::Uuid;

use super::test_data_dir::{TestDataDir, names};
use crate::consolidate::{Options, consolidate};
use crate::delivery::{Watch, archive};
use crate::line;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::verify::verify;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/version-1")
}

/// A copy of the directory in which the tests may work.
fn old() -> TestDataDir {
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

/// Every id in the files of a directory.
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
        // One record, which takes the id of its file.
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
    let test_dir = old();
    let data = test_dir.data();
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!((books.staged, books.delivered), (23, 10));
    assert_eq!((books.pending, books.failed, books.archived), (10, 2, 1));
    let waiting = &ids_in(&data.staging) | &ids_in(&data.spool);
    assert_eq!(waiting.len(), 10);
    let (archived, failed) = (ids_in(&data.archive), ids_in(&data.failed));
    let options = Options {
        batch_size: 3,
        ..Options::default()
    };
    while consolidate(test_dir.path(), &options).unwrap().entries > 0 {}
    // A destination had asked to wait for an hour.
    test_dir.receiver.clock.forward(Duration::from_secs(7200));
    test_dir.deliver_all();
    let billed = test_dir.receiver.billed();
    assert!(billed.values().all(|times| *times == 1), "{billed:?}");
    let billed: BTreeSet<_> = billed.into_keys().collect();
    assert_eq!(billed, waiting);
    assert!(billed.is_disjoint(&billed_before()));
    assert_eq!(names(&data.staging), [""; 0]);
    assert_eq!(ids_in(&data.spool), BTreeSet::new());
    assert_eq!(ids_in(&data.archive), archived);
    assert!(ids_in(&data.failed).is_superset(&failed));
    assert_eq!(test_dir.totals(), (22, 22), "one line was no record");
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!((books.staged, books.delivered), (23, 20));
    assert_eq!((books.pending, books.failed, books.archived), (0, 2, 1));
}

/// The same file as a later release may write it, with a checksum that matches.
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
    let test_dir = old();
    for dir in test_dir.data().all().map(Path::to_owned) {
        for name in names(&dir) {
            let Some(newer) = as_of_version_9(&fs::read(dir.join(&name)).unwrap()) else {
                continue;
            };
            let test_dir = old();
            let of = test_dir.path().join(dir.file_name().unwrap());
            let path = of.join(&name);
            fs::write(&path, &newer).unwrap();
            let mut said = Vec::new();
            let options = Options::default();
            for _ in 0..3 {
                if let Err(error) = consolidate(test_dir.path(), &options) {
                    said.push(error.to_string());
                }
                let store = SpoolManager::new(test_dir.path());
                said.extend(
                    archive(&store, &Watch::silent())
                        .err()
                        .map(|error| error.to_string()),
                );
                let delivered = test_dir.deliver(&(std::sync::Arc::new(crate::disk::RealDisk) as _));
                said.extend(delivered.err().map(|error| error.to_string()));
            }
            match verify(test_dir.path(), &Watch::silent()) {
                Ok(books) => said.extend(books.problems.iter().map(ToString::to_string)),
                Err(error) => said.push(error.to_string()),
            }
            let staged = crate::staged(test_dir.path()).unwrap();
            said.extend(staged.errors.iter().map(ToString::to_string));
            let case = format!("{}/{name}", of.file_name().unwrap().display());
            assert_eq!(fs::read(&path).ok(), Some(newer), "{case}: {said:?}");
            let is_named = said.iter().any(|said| said.contains("version is 9"));
            assert!(is_named, "{case}: {said:?}");
            kinds.insert(case.split('/').next().unwrap().to_owned());
        }
    }
    let expected = ["_staging", "archive", "failed", "sent", "spool", "usage"];
    assert_eq!(kinds, expected.map(str::to_owned).into());
}
