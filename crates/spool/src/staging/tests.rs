//! Tests that acknowledged records are in the staging directory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::data_dir::DataDir;
use crate::entry::{EntryKind, EntryName};
use crate::line::{self, Line};
use crate::recover::seal_abandoned;

/// Limits for tests in which no entry may be sealed because of its age: one hour is longer than any
/// test.
const NO_AGE_LIMIT: Limits = Limits {
    records: 64 * 1024,
    bytes: 16 << 20,
    age: Duration::from_secs(3600),
    reserve: 0,
};

/// A real disk that counts syncs and can be made to fail.
#[derive(Debug, Default)]
struct FaultyDisk {
    syncs: AtomicUsize,
    is_full: AtomicBool,
    fails_syncs: AtomicBool,
    /// Number of syncs that succeed; all later ones fail. 0: no limit.
    max_syncs: AtomicUsize,
    /// Number of new files that are removed right after their creation.
    to_remove: AtomicUsize,
}

impl FaultyDisk {
    fn check_space(&self) -> io::Result<()> {
        if self.is_full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Disk for FaultyDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.make_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.check_space()?;
        let file = RealDisk.create(path)?;
        let left = self.to_remove.load(Ordering::SeqCst);
        if left > 0 {
            self.to_remove.store(left - 1, Ordering::SeqCst);
            RealDisk.remove(path)?;
        }
        Ok(file)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.check_space() {
            // A full disk may still store a part of a write. Half of the text is stored here before
            // the error.
            let half = bytes.trim_ascii_end().len() / 2;
            RealDisk.write_at(file, at, &bytes[..half])?;
            return Err(error);
        }
        RealDisk.write_at(file, at, bytes)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.check_space()?;
        RealDisk.append(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let earlier = self.syncs.fetch_add(1, Ordering::SeqCst);
        let max = self.max_syncs.load(Ordering::SeqCst);
        if self.fails_syncs.load(Ordering::SeqCst) || (max > 0 && earlier >= max) {
            return Err(io::Error::other("input/output error"));
        }
        RealDisk.sync(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        RealDisk.truncate(file, length)
    }
}

fn record(number: usize) -> Record {
    Record::parse(&format!(r#"{{"number":{number}}}"#)).unwrap()
}

/// Returns every entry in a directory, by kind and id, with its valid lines.
fn entries(dir: &Path) -> BTreeMap<EntryName, Vec<Line>> {
    loop {
        let files = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
        let found: io::Result<_> = files
            .filter_map(|file| Some((EntryName::parse(&file.file_name())?, file.path())))
            .map(|(name, path)| {
                let bytes = std::fs::read(path)?;
                let lines = bytes.split(|byte| *byte == b'\n');
                let good = lines.map_while(|line| line::read(line).ok()).collect();
                Ok((name, good))
            })
            .collect();
        match found {
            Ok(found) => return found,
            // An entry may be sealed, and thereby renamed, after the directory was listed. List the
            // directory again then.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    }
}

/// Checks the lines of each entry against its name, and returns the texts of all records.
fn records(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for (name, lines) in entries(dir) {
        let mut count = 0;
        for (index, line) in lines.iter().enumerate() {
            match line {
                Line::Entry { id, version } => {
                    assert_eq!((*id, *version, index), (name.id, 1, 0));
                }
                Line::Record { number, record } => {
                    count += 1;
                    assert_eq!(*number, count, "numbers of lines have a gap");
                    all.push(record.json().to_owned());
                }
                Line::Sealed { records } => {
                    assert_eq!((*records, index), (count, lines.len() - 1));
                }
            }
        }
        // A sealed entry must end with the seal line. An open entry may end with that line too,
        // because the background thread writes the line before it renames the file.
        let is_sealed = matches!(lines.last(), Some(Line::Sealed { .. }));
        assert!(is_sealed || name.kind == EntryKind::Open, "{name:?}");
    }
    all
}

#[test]
fn record_is_in_the_file_when_stage_returns() {
    let dir = tempfile::tempdir().unwrap();
    for durability in [Durability::Power, Durability::Process] {
        let staging = Staging::open_on(Arc::new(RealDisk), dir.path(), NO_AGE_LIMIT).unwrap();
        for number in 0..5 {
            let record = record(number);
            staging.stage(&record, durability).unwrap();
            assert!(records(dir.path()).contains(&record.json().to_owned()));
        }
        staging.close().unwrap();
    }
    assert_eq!(records(dir.path()).len(), 10);
}

#[test]
fn closing_seals_the_entry_and_leaves_an_unused_directory_empty() {
    let dir = tempfile::tempdir().unwrap();
    let staging_dir = dir.path().join("a/_staging");
    Staging::open(&staging_dir).unwrap().close().unwrap();
    assert_eq!(entries(&staging_dir).len(), 0);
    let staging = Staging::open(&staging_dir).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    drop(staging);
    let kinds: Vec<_> = entries(&staging_dir).keys().map(|name| name.kind).collect();
    assert_eq!(kinds, [EntryKind::Sealed]);
}

#[test]
fn producers_share_syncs_and_each_record_is_staged_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let limits = Limits {
        records: 100,
        ..NO_AGE_LIMIT
    };
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), limits).unwrap();
    let (producers, each) = (16, 100);
    thread::scope(|scope| {
        for producer in 0..producers {
            let staging = &staging;
            scope.spawn(move || {
                for number in 0..each {
                    let durability = if number % 10 == 0 {
                        Durability::Process
                    } else {
                        Durability::Power
                    };
                    let record = record(producer * each + number);
                    staging.stage(&record, durability).unwrap();
                }
            });
        }
    });
    staging.close().unwrap();
    let mut staged = records(dir.path());
    staged.sort();
    staged.dedup();
    assert_eq!(staged.len(), producers * each);
    assert!(entries(dir.path()).len() >= producers * each / (100 + producers));
    let syncs = disk.syncs.load(Ordering::SeqCst);
    assert!(syncs < producers * each, "{syncs} syncs");
}

#[test]
fn stage_all_needs_one_sync_and_fills_several_entries() {
    let all: Vec<_> = (0..25).map(record).collect();
    for durability in [Durability::Power, Durability::Process] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(FaultyDisk::default());
        let limits = Limits {
            records: 10,
            ..NO_AGE_LIMIT
        };
        let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), limits).unwrap();
        staging.stage_all(&[], durability).unwrap();
        assert_eq!(entries(dir.path()).len(), 0);
        staging.stage_all(&all[..5], durability).unwrap();
        assert_eq!(records(dir.path()).len(), 5);
        if durability == Durability::Power {
            assert_eq!(disk.syncs.load(Ordering::SeqCst), 1);
        }
        staging.stage_all(&all[5..], durability).unwrap();
        let texts: Vec<_> = all.iter().map(|record| record.json().to_owned()).collect();
        assert_eq!(records(dir.path()), texts);
        assert!(entries(dir.path()).len() > 1);
    }
}

#[test]
fn entry_is_sealed_when_it_is_full_or_old() {
    let by_records = Limits {
        records: 3,
        ..NO_AGE_LIMIT
    };
    let by_bytes = Limits {
        bytes: 500,
        ..NO_AGE_LIMIT
    };
    let by_age = Limits {
        age: Duration::from_millis(1),
        ..NO_AGE_LIMIT
    };
    for limits in [by_records, by_bytes, by_age] {
        let dir = tempfile::tempdir().unwrap();
        let staging = Staging::open_on(Arc::new(RealDisk), dir.path(), limits).unwrap();
        for durability in [Durability::Power, Durability::Process] {
            for number in 0..6 {
                staging.stage(&record(number), durability).unwrap();
            }
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        while !entries(dir.path())
            .keys()
            .any(|name| name.kind == EntryKind::Sealed)
        {
            assert!(Instant::now() < deadline, "{limits:?}");
            thread::sleep(Duration::from_millis(1));
        }
        staging.close().unwrap();
        assert_eq!(records(dir.path()).len(), 12);
    }
}

/// Returns the number of different records in a staging directory: a record that was staged twice
/// counts once.
fn distinct_records(dir: &Path) -> usize {
    let mut records = records(dir);
    records.sort();
    records.dedup();
    records.len()
}

#[test]
fn full_disk_is_reported_at_once_and_staging_resumes_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), NO_AGE_LIMIT).unwrap();
    for durability in [Durability::Power, Durability::Process] {
        let before = distinct_records(dir.path());
        staging.stage(&record(1), durability).unwrap();
        disk.is_full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            let error = staging.stage(&record(2), durability).unwrap_err();
            assert!(error.is_full(), "{error}");
            assert!(error.to_string().contains(".jsonl.open: "), "{error}");
        }
        disk.is_full.store(false, Ordering::SeqCst);
        staging.stage(&record(3), durability).unwrap();
        // Acknowledged records are staged, perhaps twice if the background thread has written them
        // again. Records that were not acknowledged left incomplete lines, which do not count.
        assert_eq!(distinct_records(dir.path()), before + 2);
    }
}

#[test]
fn failed_sync_ends_writing_to_that_file() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), NO_AGE_LIMIT).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    disk.fails_syncs.store(true, Ordering::SeqCst);
    thread::scope(|scope| {
        for number in 0..8 {
            let staging = &staging;
            scope.spawn(move || {
                staging
                    .stage(&record(number), Durability::Power)
                    .unwrap_err();
            });
        }
    });
    let old_files: Vec<_> = entries(dir.path()).into_keys().collect();
    disk.fails_syncs.store(false, Ordering::SeqCst);
    staging.stage(&record(9), Durability::Power).unwrap();
    let after = entries(dir.path());
    let new: Vec<_> = after
        .keys()
        .filter(|name| !old_files.contains(name))
        .collect();
    assert_eq!(new.len(), 1);
    assert_eq!(after[new[0]].len(), 2, "a first line and one record");
}

/// All records of the entry are synced, so that no record is written again. Another process can
/// recover the entry only if its writer unlocks it.
#[test]
fn entry_is_unlocked_if_the_sync_of_its_seal_fails() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    disk.max_syncs.store(1, Ordering::SeqCst);
    let limits = Limits {
        age: Duration::from_millis(1),
        ..NO_AGE_LIMIT
    };
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), limits).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    let name = *entries(dir.path()).keys().next().unwrap();
    assert_eq!(name.kind, EntryKind::Open);
    let file = File::open(name.path_in(dir.path())).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !tenure::file::try_lock(&file).unwrap() {
        assert!(Instant::now() < deadline, "the entry stays locked");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(records(dir.path()).len(), 1);
    drop(staging);
}

#[test]
fn open_entry_is_locked_until_it_is_sealed() {
    let dir = tempfile::tempdir().unwrap();
    let staging = Staging::open_on(Arc::new(RealDisk), dir.path(), NO_AGE_LIMIT).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    let name = *entries(dir.path()).keys().next().unwrap();
    let open = || File::open(name.path_in(dir.path())).unwrap();
    assert_eq!(name.kind, EntryKind::Open);
    assert!(!tenure::file::try_lock(&open()).unwrap());
    let file = open();
    staging.close().unwrap();
    assert!(tenure::file::try_lock(&file).unwrap());
}

#[test]
fn space_allocated_ahead_is_removed_from_sealed_and_recovered_entries() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::new(dir.path());
    data.make(&RealDisk).unwrap();
    let other_dir = tempfile::tempdir().unwrap();
    let staging = Staging::open_on(Arc::new(RealDisk), other_dir.path(), NO_AGE_LIMIT).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    let name = *entries(other_dir.path()).keys().next().unwrap();
    let bytes = std::fs::read(name.path_in(other_dir.path())).unwrap();
    assert!(bytes.ends_with(b" "), "no space is allocated ahead");
    staging.close().unwrap();
    let sealed = records(other_dir.path());
    // Write the bytes of the open entry again, as a killed writer leaves them: complete lines, then
    // also a torn line. Recovery must give the same records as sealing.
    for torn in ["", "{\"n\":2,"] {
        let mut bytes = bytes.clone();
        let end = bytes.trim_ascii_end().len() + 1;
        bytes[end..end + torn.len()].copy_from_slice(torn.as_bytes());
        std::fs::write(name.path_in(&data.staging), bytes).unwrap();
        assert!(seal_abandoned(&RealDisk, &data, name).unwrap());
        assert_eq!(records(&data.staging), sealed);
        let aside = data.failed.join(format!("{}.torn", name.id));
        assert_eq!(std::fs::read_to_string(aside).unwrap_or_default(), torn);
    }
}

#[test]
fn entry_file_removed_before_its_lock_is_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    // A consolidator removes the first files before their writer has locked them.
    disk.to_remove.store(2, Ordering::SeqCst);
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), NO_AGE_LIMIT).unwrap();
    let record = record(1);
    staging.stage(&record, Durability::Power).unwrap();
    staging.close().unwrap();
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
    let text = std::fs::read_to_string(names[0].as_ref().unwrap().path()).unwrap();
    assert!(text.contains(&record.id().to_string()));
}

#[test]
fn full_disk_is_not_filled_with_incomplete_lines() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), NO_AGE_LIMIT).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    disk.is_full.store(true, Ordering::SeqCst);
    for durability in [Durability::Power, Durability::Process] {
        for _ in 0..10 {
            let error = staging.stage(&record(1), durability).unwrap_err();
            assert!(error.is_full(), "{error}");
        }
    }
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "only the file with the first record");
    let text = std::fs::read_to_string(files[0].as_ref().unwrap().path()).unwrap();
    assert_eq!(
        text.trim_end().lines().count(),
        2,
        "the head and the first record"
    );
    assert!(text.ends_with('\n'), "no incomplete line");
    disk.is_full.store(false, Ordering::SeqCst);
    staging.stage(&record(1), Durability::Power).unwrap();
}

#[test]
fn staging_fails_without_the_reserve_and_resumes_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        reserve: 64 * 1024,
        ..NO_AGE_LIMIT
    };
    let disk = Arc::new(FaultyDisk::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), limits).unwrap();
    let reserve = dir.path().join(".reserve");
    assert_eq!(reserve.metadata().unwrap().len(), 64 * 1024);
    staging.stage(&record(1), Durability::Power).unwrap();
    // The reserve is missing, and the full disk has no space to create it.
    disk.is_full.store(true, Ordering::SeqCst);
    std::fs::remove_file(&reserve).unwrap();
    for _ in 0..2 {
        staging.stage(&record(1), Durability::Power).unwrap_err();
    }
    disk.is_full.store(false, Ordering::SeqCst);
    // The reserve is not created again within RESERVE_PAUSE of a failure.
    let error = staging.stage(&record(1), Durability::Power).unwrap_err();
    assert!(error.is_full(), "{error}");
    staging.shared.lock().reserve_failed_at = None;
    staging.stage(&record(1), Durability::Power).unwrap();
    assert!(reserve.exists());
}

#[test]
fn failed_background_sync_is_visible_until_the_records_are_in_a_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let shared_disk = Arc::clone(&disk) as Arc<dyn Disk>;
    let staging = Staging::open_without_keeper(shared_disk, dir.path(), NO_AGE_LIMIT).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    staging.stage(&record(2), Durability::Process).unwrap();
    let old_files: Vec<_> = entries(dir.path()).into_keys().collect();
    disk.fails_syncs.store(true, Ordering::SeqCst);
    let later = |seconds| Instant::now() + Duration::from_secs(seconds);
    staging.run_due_tasks(later(1));
    for seconds in [2, 4, 6] {
        let error = staging.trouble().unwrap();
        assert!(error.to_string().contains("input/output error"), "{error}");
        assert!(staging.check().is_err(), "a failed sync is reported");
        // Records can be staged while syncs fail, and are on the disk in the end.
        staging.stage(&record(3), Durability::Process).unwrap();
        staging.run_due_tasks(later(seconds));
    }
    assert!(
        entries(dir.path()).len() <= 4,
        "failed attempts leave too many files"
    );
    disk.fails_syncs.store(false, Ordering::SeqCst);
    staging.run_due_tasks(later(10));
    assert!(staging.trouble().is_none());
    staging.check().unwrap();
    let after = entries(dir.path());
    let records = |lines: &[Line]| {
        lines
            .iter()
            .filter(|line| matches!(line, Line::Record { .. }))
            .count()
    };
    assert_eq!(
        records(&after[&old_files[0]]),
        1,
        "the old file has only synced records"
    );
    let sealed: Vec<_> = after
        .iter()
        .filter(|(name, _)| name.kind == EntryKind::Sealed)
        .collect();
    assert_eq!(sealed.len(), 1, "{after:?}");
    assert_eq!(
        records(sealed[0].1),
        1,
        "the acknowledged record is in a new file"
    );
    staging.close().unwrap();
    assert_eq!(records_of_all(dir.path()), 5);
}

fn records_of_all(dir: &Path) -> usize {
    let all = entries(dir).into_values().flatten();
    all.filter(|line| matches!(line, Line::Record { .. }))
        .count()
}

#[test]
fn process_durability_leaves_the_sync_to_the_keeper() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let limits = Limits {
        records: 3,
        ..NO_AGE_LIMIT
    };
    let shared_disk = Arc::clone(&disk) as Arc<dyn Disk>;
    let staging = Staging::open_without_keeper(shared_disk, dir.path(), limits).unwrap();
    for number in 0..20 {
        staging.stage(&record(number), Durability::Process).unwrap();
    }
    let syncs = || disk.syncs.load(Ordering::SeqCst);
    assert_eq!(syncs(), 0, "full entries are left to the keeper");
    assert!(
        entries(dir.path())
            .keys()
            .all(|name| name.kind == EntryKind::Open)
    );
    staging.run_due_tasks(Instant::now() + Duration::from_secs(1));
    assert!(syncs() > 0);
    staging.close().unwrap();
    assert_eq!(records(dir.path()).len(), 20);
}
