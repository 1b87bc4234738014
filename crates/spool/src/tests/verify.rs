//! `verify` names every file with a flipped byte, and the lines of missing and repeated records.
//! (promise S12)

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::crashing_disk::{Crash, CrashingDisk};
use super::fake_receiver::ScriptedReply;
use super::test_data_dir::{TestDataDir, batches_of, record};
use crate::batch::is_batch_name;
use crate::consolidate::{ConsolidatorState, Options, consolidate, consolidate_on};
use crate::delivery::{Answer, Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::verify::{Books, verify, verify_changing};

fn books(test_dir: &TestDataDir) -> Books {
    verify(test_dir.path(), &Watch::silent()).unwrap()
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = file.path();
        if path.is_dir() {
            found.extend(all_files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Creates a data directory with a file of every kind.
fn dir_with_every_kind() -> TestDataDir {
    let test_dir = TestDataDir::new();
    let options = batches_of(3);
    let ids: Vec<_> = test_dir
        .entry(9, true)
        .iter()
        .map(crate::Record::id)
        .collect();
    test_dir.entry(2, false); // Its torn line is quarantined.
    test_dir.raw_file("json", "no record");
    consolidate(test_dir.path(), &options).unwrap();
    test_dir.receiver.poison.lock().unwrap().push(ids[1]);
    test_dir.deliver_all();
    // Status 429 leaves a pending batch with the state of its attempt, and a pause file.
    test_dir.entry(3, true);
    consolidate(test_dir.path(), &options).unwrap();
    let later = Answer::unknown("429", Some(std::time::Duration::from_secs(3600)));
    test_dir.receiver.push_reply(ScriptedReply::Refuse(later));
    test_dir.deliver_all();
    // Create a quarantined file, an archived batch and an unfinished snapshot, so that `verify` is
    // tested with every kind of file.
    fs::write(
        test_dir
            .data()
            .staging
            .join(format!("{}.jsonl", Uuid::now_v7())),
        "junk\n",
    )
    .unwrap();
    test_dir.entry(1, true);
    consolidate(test_dir.path(), &options).unwrap();
    let store = SpoolManager::new(test_dir.path());
    archive(&store, &Watch::silent()).unwrap();
    test_dir.entry(4, true);
    let set = test_dir.data().staging.join(".consolidation.set");
    for at in 0.. {
        let disk: Arc<dyn Disk> = Arc::new(CrashingDisk::new(Crash::Before, at));
        consolidate_on(
            &disk,
            test_dir.path(),
            &options,
            &mut ConsolidatorState::default(),
        )
        .unwrap_err();
        if set.exists() {
            break;
        }
    }
    test_dir.entry(2, false);
    test_dir
}

#[test]
fn verify_counts_records_by_state_with_every_kind_of_file() {
    let test_dir = dir_with_every_kind();
    let books = test_dir.assert_balanced("every kind");
    assert_eq!((books.staged, books.delivered), (22, 10));
    assert_eq!((books.pending, books.failed, books.archived), (9, 2, 1));
}

#[test]
fn verification_of_changing_files_skips_only_the_content_of_files_that_never_change() {
    let test_dir = dir_with_every_kind();
    let changing = || verify_changing(test_dir.path(), &Watch::silent()).unwrap();
    let all = books(&test_dir);
    let found = changing();
    assert!(found.balance(), "{:?}", found.problems);
    assert_eq!((found.staged, found.delivered), (all.staged, all.delivered));
    let batch_in = |dir: &Path| {
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        let mut batches = all_files(dir).into_iter();
        let batch = batches.find(|path| is_batch_name(&name(path)));
        batch.unwrap_or_else(|| panic!("no batch in {}", dir.display()))
    };
    let data = test_dir.data();
    for (dir, is_found) in [
        (&data.spool, true),
        (&data.failed, true),
        (&data.archive, false),
    ] {
        let path = batch_in(dir);
        let bytes = fs::read(&path).unwrap();
        let mut flipped = bytes.clone();
        flipped[bytes.len() / 2] ^= 1;
        fs::write(&path, flipped).unwrap();
        assert_eq!(!changing().balance(), is_found, "{}", path.display());
        assert!(!books(&test_dir).balance(), "{}", path.display());
        fs::write(&path, bytes).unwrap();
    }
    // A pending batch that is deleted is missed.
    fs::remove_file(batch_in(&data.spool)).unwrap();
    assert!(!changing().balance());
}

#[test]
fn verify_names_the_file_of_any_flipped_byte() {
    let test_dir = dir_with_every_kind();
    let files = all_files(test_dir.path());
    let kinds = [
        "_staging/",
        "spool/",
        "sent/",
        "failed/",
        "usage/",
        ".state.json",
        ".pause.json",
    ];
    for kind in kinds {
        let exists = files
            .iter()
            .any(|path| path.to_string_lossy().contains(kind));
        assert!(exists, "{kind}: {files:?}");
    }
    for path in files {
        if path.ends_with(".consolidation.lock") {
            continue; // The lock record is informational.
        }
        let bytes = fs::read(&path).unwrap();
        let torn = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        for at in (0..bytes.len()).step_by(5).chain([torn.saturating_sub(1)]) {
            if at >= torn && path.extension().is_some_and(|ending| ending == "open") {
                continue; // A torn line was never acknowledged.
            }
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, flipped).unwrap();
            let books = books(&test_dir);
            let named = books.problems.iter().any(|problem| problem.path == path);
            assert!(named, "{}: byte {at}: {:?}", path.display(), books.problems);
        }
        fs::write(&path, bytes).unwrap();
    }
    assert!(books(&test_dir).balance(), "restored files");
}

#[test]
fn verify_names_the_lines_of_a_missing_batch() {
    let test_dir = dir_with_every_kind();
    let batch = all_files(&test_dir.data().spool)
        .into_iter()
        .find(|path| is_batch_name(path.file_name().unwrap().to_str().unwrap()));
    fs::remove_file(batch.unwrap()).unwrap();
    let problems = books(&test_dir).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    let message = problems[0].to_string();
    assert!(
        message.ends_with(".jsonl: lines 1 to 3: in no batch"),
        "{message}"
    );
}

#[test]
fn verify_reports_a_record_in_two_batches() {
    let test_dir = dir_with_every_kind();
    let data = test_dir.data();
    let failed = all_files(&data.failed)
        .into_iter()
        .find(|path| is_batch_name(path.file_name().unwrap().to_str().unwrap()))
        .unwrap();
    let batch = crate::Batch::decode(&fs::read(&failed).unwrap()).unwrap();
    let part = crate::Part {
        from: 1,
        to: 2,
        ..batch.parts()[0].clone()
    };
    let records = vec![batch.records()[0].clone(), record()];
    let forged = crate::Batch::new(vec![part], records);
    fs::write(data.spool.join(forged.file_name()), forged.encode()).unwrap();
    let problems = books(&test_dir).problems;
    let messages: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(
        messages
            .iter()
            .any(|message| message.contains("in two batches")),
        "{messages:?}"
    );
}

#[test]
fn verify_holds_no_lock_while_it_reads_the_archive() {
    let test_dir = TestDataDir::new();
    test_dir.entry(9, true);
    consolidate(test_dir.path(), &Options::default()).unwrap();
    let store = SpoolManager::new(test_dir.path());
    archive(&store, &Watch::silent()).unwrap();
    // `verify` reads this staged entry, and reports progress, while it holds both locks. Without a
    // call under the locks, the test could not prove that it detects locks that are held.
    test_dir.entry(2, true);
    // `verify` acquires only locks whose files exist. The test creates both files, as a killed run
    // would leave them.
    let data = test_dir.data();
    let locks = [
        data.spool.join(".delivery.lock"),
        data.staging.join(".consolidation.lock"),
    ];
    for lock in &locks {
        fs::write(lock, "").unwrap();
    }
    let (free, busy) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let progress = |_| {
        let is_free = |lock: &PathBuf| tenure::file::try_lock(&fs::File::open(lock).unwrap());
        let is_free = locks.iter().all(|lock| is_free(lock).unwrap());
        let count = if is_free { &free } else { &busy };
        count.set(count.get() + 1);
    };
    let watch = Watch {
        cancel: crate::Cancel::new(),
        progress: &progress,
    };
    let books = verify(test_dir.path(), &watch).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!(free.get(), 1, "the archived batch");
    assert!(busy.get() > 0);
}

#[test]
fn batch_of_many_entries_has_a_short_journal_line_and_is_verified_to_the_line() {
    let test_dir = TestDataDir::new();
    let mut records: Vec<_> = (0..150).map(|_| test_dir.record_file()).collect();
    // Two entries add no record to a batch: a malformed file and a repeated record.
    test_dir.raw_file("json", "no record");
    test_dir.raw_file("json", records[7].json());
    records.extend((0..100).map(|_| test_dir.record_file()));
    records.extend(test_dir.entry(30, true));
    consolidate(test_dir.path(), &Options::default()).unwrap();
    test_dir
        .receiver
        .poison
        .lock()
        .unwrap()
        .push(records[220].id());
    test_dir.deliver_all();
    let sent = all_files(&test_dir.data().sent).remove(0);
    let text = fs::read_to_string(&sent).unwrap();
    let longest = text.lines().map(str::len).max().unwrap();
    assert!(longest < 600, "{longest}: {text}");
    let found = test_dir.assert_balanced("delivered");
    assert_eq!((found.delivered, found.failed), (279, 2));

    // If a line is missing in the journal, `verify` reports the records of its batch as missing.
    let removed = text.lines().nth(1).unwrap();
    assert!(removed.contains("delivered"), "{removed}");
    fs::write(&sent, text.replace(&format!("{removed}\n"), "")).unwrap();
    let problems = books(&test_dir).problems;
    let missing = problems.iter().filter(|one| one.what == "in no batch");
    assert_eq!(missing.count(), 100, "{problems:?}");
}
