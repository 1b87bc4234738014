//! Files that cannot be read stay, are reported and retried, and block no other file. (promises S8, S9)

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use uuid::Uuid;

use super::failing_disk::{FailingDisk, ReadFault};
use super::grouping::{tally, tally_in};
use super::test_data_dir::{TestDataDir, batches_of, each_once, names, record};
use crate::consolidate::{ConsolidatorState, consolidate, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::Watch;
use crate::disk::Disk;
use crate::line;
use crate::manager::{DeliveryState, Keep, KeptIn, SpoolManager};
use crate::record::Record;
use crate::run::{Destination, Runner};
use crate::staged::{staged, staged_in};
use crate::verify::{verify, verify_in};

/// Returns the only file in the staging directory whose name ends in `ending`.
fn staged_file(test_dir: &TestDataDir, ending: &str) -> PathBuf {
    let staging = test_dir.data().staging;
    let mut names = names(&staging).into_iter();
    let name = names.find(|name| name.ends_with(ending)).unwrap();
    staging.join(name)
}

fn ids(records: &[Record]) -> BTreeSet<Uuid> {
    records.iter().map(Record::id).collect()
}

/// Returns the batched records. Panics if a record is in two batches.
fn batched(test_dir: &TestDataDir) -> BTreeSet<Uuid> {
    each_once(test_dir.batched(), "batched")
}

/// Consolidates one entry that cannot be read and one that can, until both are readable.
fn check_unreadable_entry(
    ending: &str,
    fault: ReadFault,
    make: impl Fn(&TestDataDir) -> Vec<Record>,
) {
    let test_dir = TestDataDir::new();
    let bad = make(&test_dir);
    let path = staged_file(&test_dir, ending);
    let good = test_dir.entry(5, true);
    let disk = Arc::new(FailingDisk::default());
    let dyn_disk: Arc<dyn Disk> = Arc::clone(&disk) as _;
    disk.fail(&path, fault);
    let mut state = ConsolidatorState::default();
    for round in 0..3 {
        let done = consolidate_on(&dyn_disk, test_dir.path(), &batches_of(4), &mut state).unwrap();
        assert_eq!(done.unreadable, 1, "{ending} {fault:?}");
        assert_eq!(done.entries, usize::from(round == 0));
        let errors: Vec<_> = state.unreadable.errors();
        assert_eq!(errors.len(), 1);
        assert_eq!(errors[0].path(), path);
        assert_eq!(batched(&test_dir), ids(&good), "{ending} {fault:?}");
    }
    let data = DataDir::on(Arc::clone(&dyn_disk), test_dir.path());
    let found = staged_in(&data).unwrap();
    assert_eq!((found.entries, found.unreadable), (1, 1));
    assert!(found.errors[0].to_string().contains("input/output error"));
    let books = verify_in(&data, &Watch::silent()).unwrap();
    assert_eq!(books.problems.len(), 1, "{:?}", books.problems);
    assert_eq!(books.problems[0].path, path);
    let report = tally_in(&data, None, None).unwrap();
    assert_eq!(report.problems.len(), 1);
    let sum: u64 = report.rows.iter().map(|row| row.records).sum();
    assert_eq!(sum, good.len() as u64, "records of the readable entry");
    disk.clear_faults();
    let done = consolidate_on(&dyn_disk, test_dir.path(), &batches_of(4), &mut state).unwrap();
    assert_eq!((done.entries, done.unreadable), (1, 0));
    assert_eq!(batched(&test_dir), &ids(&good) | &ids(&bad));
    test_dir.assert_balanced("at the end");
}

#[test]
fn unreadable_entry_blocks_no_other_entry_and_is_consolidated_once_readable() {
    for fault in [
        ReadFault::Open,
        ReadFault::AfterByte(0),
        ReadFault::AfterByte(200),
    ] {
        check_unreadable_entry(".jsonl", fault, |test_dir| test_dir.entry(3, true));
        check_unreadable_entry(".jsonl.open", fault, |test_dir| test_dir.entry(3, false));
    }
    for fault in [
        ReadFault::Open,
        ReadFault::AfterByte(0),
        ReadFault::AfterByte(20),
    ] {
        check_unreadable_entry(".json", fault, |test_dir| vec![test_dir.record_file()]);
    }
}

#[test]
fn entry_unreadable_after_the_snapshot_blocks_nothing_if_no_batch_is_written() {
    use super::crashing_disk::{Crash, CrashingDisk};
    let test_dir = TestDataDir::new();
    let bad = test_dir.entry(3, true);
    let path = staged_file(&test_dir, ".jsonl");
    let good = test_dir.entry(5, true);
    // Crash the consolidation when the snapshot file is on the disk and no batch is written yet.
    let set = test_dir.data().staging.join(".consolidation.set");
    for at in 0.. {
        let disk: Arc<dyn Disk> = Arc::new(CrashingDisk::new(Crash::Before, at));
        let mut state = ConsolidatorState::default();
        consolidate_on(&disk, test_dir.path(), &batches_of(4), &mut state).unwrap_err();
        if set.exists() {
            break;
        }
    }
    assert!(batched(&test_dir).is_empty());
    let disk = Arc::new(FailingDisk::default());
    disk.fail(&path, ReadFault::Open);
    let dyn_disk: Arc<dyn Disk> = Arc::clone(&disk) as _;
    let mut state = ConsolidatorState::default();
    let done = consolidate_on(&dyn_disk, test_dir.path(), &batches_of(4), &mut state).unwrap();
    assert_eq!((done.entries, done.unreadable), (1, 1));
    assert_eq!(batched(&test_dir), ids(&good));
    disk.clear_faults();
    consolidate_on(&dyn_disk, test_dir.path(), &batches_of(4), &mut state).unwrap();
    assert_eq!(batched(&test_dir), &ids(&good) | &ids(&bad));
}

/// Replaces a file by something that is not a regular file.
fn replace_by(path: &Path, kind: &str) {
    let _ = fs::remove_file(path);
    match kind {
        "fifo" => {
            let made = Command::new("mkfifo").arg(path).status().unwrap();
            assert!(made.success());
        }
        "directory" => fs::create_dir(path).unwrap(),
        "socket" => drop(std::os::unix::net::UnixListener::bind(path).unwrap()),
        _ => symlink("/dev/zero", path).unwrap(),
    }
}

fn remove(path: &Path) {
    let _ = fs::remove_file(path);
    let _ = fs::remove_dir(path);
}

#[test]
fn special_file_in_place_of_a_file_is_neither_waited_for_nor_followed() {
    for kind in ["fifo", "directory", "socket", "link"] {
        let test_dir = TestDataDir::new();
        let mut all = test_dir.entry(4, true);
        let run = || {
            let (options, delivery) = (batches_of(4), crate::DeliveryOptions::default());
            let to = Destination::To(&test_dir.receiver);
            Runner::new(test_dir.path()).run(&options, &delivery, to, &Watch::silent())
        };
        run().unwrap();
        all.extend(test_dir.entry(4, true));
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
        let data = test_dir.data();
        let batch = SpoolManager::new(test_dir.path()).pending(None, 1).unwrap();
        let state = data.spool.join(crate::manager::state_name(&batch[0]));
        let mut paths = vec![
            data.staging.join(format!("{}.json", Uuid::now_v7())),
            data.staging.join(format!("{}.jsonl", Uuid::now_v7())),
            data.staging.join(format!("{}.jsonl.open", Uuid::now_v7())),
            data.staging.join(".consolidation.set"),
            data.staging.join(".consolidation.written"),
            data.usage.join("taken-00000002.jsonl"),
            data.sent.join("sent-00000002.jsonl"),
            data.spool.join(".pause.json"),
            state,
        ];
        paths.extend([&data.failed, &data.archive].map(|dir| dir.join(&batch[0])));
        for path in &paths {
            replace_by(path, kind);
            // Some of these calls may fail while a FIFO, a link or a directory is in place of the
            // file. None may block or change what a link leads to.
            let _ = run();
            let _ = verify(test_dir.path(), &Watch::silent());
            let _ = tally(test_dir.path(), None, None);
            let _ = staged(test_dir.path());
            let metadata = path.symlink_metadata().unwrap();
            assert!(!metadata.is_file(), "{kind}: {}", path.display());
            remove(path);
            all.push(test_dir.record_file());
        }
        run().unwrap();
        assert_eq!(batched(&test_dir), ids(&all), "{kind}");
        assert_eq!(
            SpoolManager::new(test_dir.path()).count().unwrap(),
            0,
            "{kind}"
        );
    }
}

#[test]
fn file_is_an_entry_only_if_its_name_is_a_lower_case_uuid_v7() {
    let test_dir = TestDataDir::new();
    let good = test_dir.record_file();
    let (upper, other) = (
        Uuid::now_v7().to_string().to_uppercase(),
        "936da01f-9abd-4d9d-80c7-02af85c822a8",
    );
    let foreign = [
        format!("{upper}.json"),
        format!("{other}.json"),
        format!("{}.jsonl", Uuid::now_v7().simple()),
        "mine.json".to_owned(),
    ];
    for name in &foreign {
        fs::write(test_dir.data().staging.join(name), record().json()).unwrap();
    }
    for entries in [1, 0] {
        let found = staged(test_dir.path()).unwrap();
        assert_eq!((found.entries, found.foreign), (entries, 4));
        assert_eq!(
            BTreeSet::from_iter(found.foreign_names),
            BTreeSet::from(foreign.clone())
        );
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
    }
    assert_eq!(batched(&test_dir), BTreeSet::from([good.id()]));
    assert_eq!(
        names(&test_dir.data().staging).len(),
        4,
        "foreign files were removed"
    );
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    assert_eq!((books.staged, books.pending), (1, 1));
}

/// Writes an entry with forged lines that have valid checksums.
fn forged_entry(test_dir: &TestDataDir, lines: &[Vec<u8>]) -> Vec<u8> {
    let id = Uuid::now_v7();
    let mut bytes = Vec::new();
    line::write_entry(&mut bytes, id);
    bytes.extend(lines.concat());
    fs::write(test_dir.data().staging.join(format!("{id}.jsonl")), &bytes).unwrap();
    bytes
}

fn numbered(record: &Record, number: u64) -> Vec<u8> {
    let mut line = Vec::new();
    line::PreparedLine::new(record).write(&mut line, number);
    line
}

fn sealed(records: u64) -> Vec<u8> {
    let mut line = Vec::new();
    line::write_sealed(&mut line, records);
    line
}

#[test]
fn forged_line_numbers_are_quarantined_without_overflow() {
    let test_dir = TestDataDir::new();
    let good = [record(), record(), record()];
    for number in [u64::MAX, u64::MAX - 1, 1 << 40, 0] {
        forged_entry(&test_dir, &[numbered(&record(), number), sealed(1)]);
        forged_entry(&test_dir, &[sealed(number)]);
    }
    forged_entry(
        &test_dir,
        &[
            numbered(&good[0], 1),
            numbered(&record(), u64::MAX),
            numbered(&good[1], 2),
            sealed(2),
        ],
    );
    forged_entry(&test_dir, &[numbered(&good[2], 1), sealed(u64::MAX)]);
    verify(test_dir.path(), &Watch::silent()).unwrap();
    while consolidate(test_dir.path(), &batches_of(4))
        .unwrap()
        .entries
        > 0
    {}
    assert_eq!(batched(&test_dir), ids(&good));
    let failed = SpoolManager::new(test_dir.path()).failed().unwrap();
    assert!(
        failed
            .iter()
            .any(|one| one.reason.contains("is above the maximum of an entry")),
        "{failed:?}"
    );
    let books = test_dir.assert_balanced("at the end");
    assert_eq!(books.staged, books.pending + books.failed);
}

/// Appends a forged line with a valid checksum to a journal.
fn add_line(path: &Path, json: &str) {
    let mut bytes = fs::read(path).unwrap();
    let json = json.strip_suffix('}').unwrap();
    bytes.extend(line::with_checksum(json.as_bytes().to_vec()));
    fs::write(path, bytes).unwrap();
}

#[test]
fn forged_numbers_in_journals_are_reported_without_overflow() {
    let (id, other) = (Uuid::now_v7(), Uuid::now_v7());
    let max = u64::MAX;
    let taken = [
        format!(
            r#"{{"snapshot":"{id}","entry":"{other}.jsonl","lines":{max},"records":{max},"ids":[]}}"#
        ),
        format!(
            r#"{{"snapshot":"{id}","entry":"{other}.jsonl","lines":1,"aside":[[9,1]],"records":0,"ids":[]}}"#
        ),
        format!(
            r#"{{"snapshot":"{id}","entry":"{other}.jsonl","lines":1,"aside":[[1,{max}]],"records":0,"ids":[]}}"#
        ),
        format!(
            r#"{{"snapshot":"{id}","entry":"{other}.jsonl","lines":1,"repeated":[{max}],"records":1,"ids":[]}}"#
        ),
    ];
    let sent = [(9, 1), (0, max), (1, max)].map(|(from, to)| {
        let parts = format!(r#"[{{"name":"{other}.jsonl","from":{from},"to":{to}}}]"#);
        format!(
            r#"{{"batch":"x","outcome":"delivered","records":{max},"entries":{parts},"at":"2026-11-16T00:00:00Z","said":""}}"#
        )
    });
    let all = taken
        .iter()
        .map(|line| ("usage/taken-00000001.jsonl", line));
    for (journal, line) in all.chain(sent.iter().map(|line| ("sent/sent-00000001.jsonl", line))) {
        let test_dir = TestDataDir::new();
        let mut records = test_dir.entry(4, true);
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
        test_dir.deliver_all();
        let path = test_dir.path().join(journal);
        add_line(&path, line);
        add_line(&path, line);
        records.extend(test_dir.entry(4, true));
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
        test_dir.deliver_all();
        assert_eq!(batched(&test_dir), ids(&records), "{line}");
        let books = verify(test_dir.path(), &Watch::silent()).unwrap();
        assert!(
            books.problems.iter().any(|problem| problem.path == path),
            "{line}: {books:?}"
        );
    }
}

#[test]
fn prune_keeps_unreadable_failed_batches_and_deletes_the_others() {
    let test_dir = TestDataDir::new();
    for _ in 0..7 {
        test_dir.record_file();
        consolidate(test_dir.path(), &batches_of(4)).unwrap();
    }
    let store = SpoolManager::new(test_dir.path());
    for name in store.pending(None, 7).unwrap() {
        let batch = store.load(&name).unwrap();
        store.fail(&batch, &DeliveryState::default(), "no").unwrap();
    }
    let failed = test_dir.data().failed;
    let batches = || {
        let mut names = names(&failed);
        names.retain(|name| !name.ends_with(".reason.json"));
        names
    };
    let all = batches();
    assert_eq!(all.len(), 7, "{all:?}");
    let disk = Arc::new(FailingDisk::default());
    // The unreadable batches are the oldest, and more than `prune` examines at a time.
    for name in &all[..3] {
        disk.fail(&failed.join(name), ReadFault::Open);
    }
    let store = SpoolManager::on(Arc::clone(&disk) as _, test_dir.path());
    let keep = Keep {
        max_bytes: Some(0),
        ..Keep::default()
    };
    let deleted = store.prune(KeptIn::Failed, &keep).unwrap();
    assert_eq!(deleted.files, 4);
    assert_eq!(batches(), all[..3]);
    disk.clear_faults();
    assert_eq!(store.prune(KeptIn::Failed, &keep).unwrap().files, 3);
    let books = test_dir.assert_balanced("at the end");
    assert_eq!(books.failed, 7);
}

/// Returns the totals files whose period is wanted.
fn totals_files(test_dir: &TestDataDir, is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let usage = test_dir.data().usage;
    let mut names = names(&usage);
    names.retain(|name| crate::totals::period_of(name).is_some_and(&is_wanted));
    assert!(!names.is_empty());
    names.iter().map(|name| usage.join(name)).collect()
}

#[test]
fn unreadable_totals_block_no_delivery_and_are_complete_once_readable() {
    type IsWanted = fn(&str) -> bool;
    let kinds: [(&str, IsWanted); 2] = [
        ("day", |period| !crate::totals::is_hour(period)),
        ("hour", crate::totals::is_hour),
    ];
    for (kind, is_wanted) in kinds {
        for fault in [
            ReadFault::Open,
            ReadFault::AfterByte(0),
            ReadFault::AfterByte(20),
        ] {
            let test_dir = TestDataDir::new();
            let mut all = test_dir.entry(3, true);
            consolidate(test_dir.path(), &batches_of(4)).unwrap();
            let disk = Arc::new(FailingDisk::default());
            let unreadable = totals_files(&test_dir, is_wanted);
            for path in &unreadable {
                disk.fail(path, fault);
            }
            let dyn_disk: Arc<dyn Disk> = Arc::clone(&disk) as _;
            let mut runner = Runner::on(Arc::clone(&dyn_disk), test_dir.path());
            let mut run = || {
                let delivery = crate::DeliveryOptions::default();
                let to = Destination::To(&test_dir.receiver);
                runner
                    .run(&batches_of(4), &delivery, to, &Watch::silent())
                    .unwrap()
            };
            for _ in 0..2 {
                all.extend(test_dir.entry(3, true));
                let done = run();
                assert_eq!(
                    test_dir.receiver.billed().len(),
                    all.len(),
                    "{kind} {fault:?}"
                );
                let trouble = done.trouble.map(|trouble| trouble.to_string());
                assert!(trouble.is_some_and(|message| message.contains("input/output error")));
            }
            let data = DataDir::on(Arc::clone(&dyn_disk), test_dir.path());
            let books = verify_in(&data, &Watch::silent()).unwrap();
            assert!(
                books
                    .problems
                    .iter()
                    .any(|problem| problem.path == unreadable[0])
            );
            if kind == "day" {
                let report = tally_in(&data, None, None).unwrap();
                assert_eq!(report.problems.len(), 1, "{:?}", report.problems);
                assert_eq!(report.problems[0].path(), unreadable[0]);
            }
            disk.clear_faults();
            assert!(run().trouble.is_none(), "{kind} {fault:?}");
            test_dir.assert_balanced(&format!("{kind} {fault:?}"));
            let report = tally_in(&data, None, None).unwrap();
            assert!(report.problems.is_empty(), "{:?}", report.problems);
            let sum: u64 = report.rows.iter().map(|row| row.records).sum();
            assert_eq!(sum, all.len() as u64, "{kind} {fault:?}");
        }
    }
}
