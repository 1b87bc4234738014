//! What is acknowledged is there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::data_dir::DataDir;
use crate::entry::{EntryKind, EntryName};
use crate::line::{self, Line};
use crate::recover::seal_abandoned;

/// Never by age.
const SLOW: Limits = Limits {
    records: 64 * 1024,
    bytes: 16 << 20,
    age: Duration::from_secs(3600),
    reserve: 0,
};

/// Counts what is done to a real disk, and fails when told to.
#[derive(Debug, Default)]
struct Watched {
    syncs: AtomicUsize,
    full: AtomicBool,
    broken: AtomicBool,
    /// How many new files are removed at once.
    to_remove: AtomicUsize,
}

impl Watched {
    fn room(&self) -> io::Result<()> {
        if self.full.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }
}

impl Disk for Watched {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.make_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.room()?;
        let file = RealDisk.create(path)?;
        let left = self.to_remove.load(Ordering::SeqCst);
        if left > 0 {
            self.to_remove.store(left - 1, Ordering::SeqCst);
            RealDisk.remove(path)?;
        }
        Ok(file)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.room() {
            // As a disk does that has a little room left.
            let half = bytes.trim_ascii_end().len() / 2;
            RealDisk.write_at(file, at, &bytes[..half])?;
            return Err(error);
        }
        RealDisk.write_at(file, at, bytes)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.room()?;
        RealDisk.append(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::SeqCst);
        if self.broken.load(Ordering::SeqCst) {
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

/// Every entry in a directory, by kind and id, with the good lines it has.
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
            // Sealed while we looked: it has another name now.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
        }
    }
}

/// Checks that each entry is what its name says, and returns its records' texts.
fn records(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    for (name, lines) in entries(dir) {
        let mut count = 0;
        for (place, line) in lines.iter().enumerate() {
            match line {
                Line::Entry { id, version } => {
                    assert_eq!((*id, *version, place), (name.id, 1, 0));
                }
                Line::Record { number, record } => {
                    count += 1;
                    assert_eq!(*number, count, "numbers have no gap");
                    all.push(record.json().to_owned());
                }
                Line::Sealed { records } => {
                    assert_eq!((*records, place), (count, lines.len() - 1));
                }
            }
        }
        // The keeper writes the last line before it changes the name, and may be between the two.
        let is_sealed = matches!(lines.last(), Some(Line::Sealed { .. }));
        assert!(is_sealed || name.kind == EntryKind::Open, "{name:?}");
    }
    all
}

#[test]
fn a_record_is_in_the_file_when_stage_returns() {
    let dir = tempfile::tempdir().unwrap();
    for durability in [Durability::Power, Durability::Process] {
        let staging = Staging::open_on(Arc::new(RealDisk), dir.path(), SLOW).unwrap();
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
fn what_is_closed_is_sealed_and_an_unused_directory_stays_empty() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("a/_staging");
    Staging::open(&place).unwrap().close().unwrap();
    assert_eq!(entries(&place).len(), 0);
    let staging = Staging::open(&place).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    drop(staging);
    let kinds: Vec<_> = entries(&place).keys().map(|name| name.kind).collect();
    assert_eq!(kinds, [EntryKind::Sealed]);
}

#[test]
fn producers_share_syncs_and_each_record_is_there_once() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched::default());
    let limits = Limits {
        records: 100,
        ..SLOW
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
fn many_records_share_one_sync_and_fill_as_many_entries_as_they_need() {
    let all: Vec<_> = (0..25).map(record).collect();
    for durability in [Durability::Power, Durability::Process] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(Watched::default());
        let limits = Limits {
            records: 10,
            ..SLOW
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
fn an_entry_is_sealed_when_it_is_full_or_old() {
    let by_records = Limits { records: 3, ..SLOW };
    let by_bytes = Limits { bytes: 500, ..SLOW };
    let by_age = Limits {
        age: Duration::from_millis(1),
        ..SLOW
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

/// How many different records there are.
fn different(dir: &Path) -> usize {
    let mut records = records(dir);
    records.sort();
    records.dedup();
    records.len()
}

#[test]
fn a_full_disk_is_said_at_once_and_staging_resumes_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), SLOW).unwrap();
    for durability in [Durability::Power, Durability::Process] {
        let before = different(dir.path());
        staging.stage(&record(1), durability).unwrap();
        disk.full.store(true, Ordering::SeqCst);
        for _ in 0..3 {
            let error = staging.stage(&record(2), durability).unwrap_err();
            assert!(error.is_full(), "{error}");
            assert!(error.to_string().contains(".jsonl.open: "), "{error}");
        }
        disk.full.store(false, Ordering::SeqCst);
        staging.stage(&record(3), durability).unwrap();
        // Acknowledged records are there, perhaps twice if the keeper has written them again; the
        // others end in the middle of a line.
        assert_eq!(different(dir.path()), before + 2);
    }
}

#[test]
fn after_a_failed_sync_nothing_more_goes_into_that_file() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), SLOW).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    disk.broken.store(true, Ordering::SeqCst);
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
    let broken: Vec<_> = entries(dir.path()).into_keys().collect();
    disk.broken.store(false, Ordering::SeqCst);
    staging.stage(&record(9), Durability::Power).unwrap();
    let after = entries(dir.path());
    let new: Vec<_> = after.keys().filter(|name| !broken.contains(name)).collect();
    assert_eq!(new.len(), 1);
    assert_eq!(after[new[0]].len(), 2, "a first line and one record");
}

#[test]
fn nobody_else_can_lock_an_entry_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let staging = Staging::open_on(Arc::new(RealDisk), dir.path(), SLOW).unwrap();
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
fn a_file_grows_ahead_of_its_lines_and_none_of_that_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let data = DataDir::new(dir.path());
    data.make(&RealDisk).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let staging = Staging::open_on(Arc::new(RealDisk), elsewhere.path(), SLOW).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    let name = *entries(elsewhere.path()).keys().next().unwrap();
    let bytes = std::fs::read(name.path_in(elsewhere.path())).unwrap();
    assert!(bytes.ends_with(b" "), "there is room ahead");
    staging.close().unwrap();
    let sealed = records(elsewhere.path());
    // The same entry, as a writer leaves it that is killed; then in the middle of a record, too.
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
fn nothing_is_written_to_a_file_that_was_removed_before_it_was_locked() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched::default());
    // A consolidator looks at the first files before their writer has locked them.
    disk.to_remove.store(2, Ordering::SeqCst);
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), SLOW).unwrap();
    let record = record(1);
    staging.stage(&record, Durability::Power).unwrap();
    staging.close().unwrap();
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(names.len(), 1);
    let text = std::fs::read_to_string(names[0].as_ref().unwrap().path()).unwrap();
    assert!(text.contains(&record.id().to_string()));
}

#[test]
fn a_full_disk_is_not_filled_with_halves() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), SLOW).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    disk.full.store(true, Ordering::SeqCst);
    for durability in [Durability::Power, Durability::Process] {
        for _ in 0..10 {
            let error = staging.stage(&record(1), durability).unwrap_err();
            assert!(error.is_full(), "{error}");
        }
    }
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(files.len(), 1, "the one with a good record");
    let text = std::fs::read_to_string(files[0].as_ref().unwrap().path()).unwrap();
    assert_eq!(
        text.trim_end().lines().count(),
        2,
        "its head and that record"
    );
    assert!(text.ends_with('\n'), "and no half of another");
    disk.full.store(false, Ordering::SeqCst);
    staging.stage(&record(1), Durability::Power).unwrap();
}

#[test]
fn nothing_is_staged_without_the_reserve_and_staging_resumes_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let limits = Limits {
        reserve: 64 * 1024,
        ..SLOW
    };
    let disk = Arc::new(Watched::default());
    let staging = Staging::open_on(Arc::clone(&disk) as _, dir.path(), limits).unwrap();
    let reserve = dir.path().join(".reserve");
    assert_eq!(reserve.metadata().unwrap().len(), 64 * 1024);
    staging.stage(&record(1), Durability::Power).unwrap();
    // A deliverer needs the room.
    disk.full.store(true, Ordering::SeqCst);
    std::fs::remove_file(&reserve).unwrap();
    for _ in 0..2 {
        staging.stage(&record(1), Durability::Power).unwrap_err();
    }
    disk.full.store(false, Ordering::SeqCst);
    // It was tried a moment ago, in vain.
    let error = staging.stage(&record(1), Durability::Power).unwrap_err();
    assert!(error.is_full(), "{error}");
    staging.shared.lock().full_since = None;
    staging.stage(&record(1), Durability::Power).unwrap();
    assert!(reserve.exists());
}

#[test]
fn a_failed_background_sync_is_visible_until_the_records_are_on_the_disk_in_a_new_file() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched::default());
    let on = Arc::clone(&disk) as Arc<dyn Disk>;
    let staging = Staging::open_without_keeper(on, dir.path(), SLOW).unwrap();
    staging.stage(&record(1), Durability::Power).unwrap();
    staging.stage(&record(2), Durability::Process).unwrap();
    let broken: Vec<_> = entries(dir.path()).into_keys().collect();
    disk.broken.store(true, Ordering::SeqCst);
    let later = |seconds| Instant::now() + Duration::from_secs(seconds);
    staging.work(later(1));
    for seconds in [2, 4, 6] {
        let error = staging.trouble().unwrap();
        assert!(error.to_string().contains("input/output error"), "{error}");
        assert!(
            staging.check().is_err(),
            "a server that must record refuses"
        );
        // The kernel still takes records meanwhile, and they are not forgotten.
        staging.stage(&record(3), Durability::Process).unwrap();
        staging.work(later(seconds));
    }
    assert!(
        entries(dir.path()).len() <= 4,
        "attempts leave no heap of files"
    );
    disk.broken.store(false, Ordering::SeqCst);
    staging.work(later(10));
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
        records(&after[&broken[0]]),
        1,
        "only what was synced is left of the old file"
    );
    let sealed: Vec<_> = after
        .iter()
        .filter(|(name, _)| name.kind == EntryKind::Sealed)
        .collect();
    assert_eq!(sealed.len(), 1, "{after:?}");
    assert_eq!(
        records(sealed[0].1),
        1,
        "the record that was acknowledged is in a new file"
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
fn staging_for_the_process_syncs_nothing_itself() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(Watched::default());
    let limits = Limits { records: 3, ..SLOW };
    let on = Arc::clone(&disk) as Arc<dyn Disk>;
    let staging = Staging::open_without_keeper(on, dir.path(), limits).unwrap();
    for number in 0..20 {
        staging.stage(&record(number), Durability::Process).unwrap();
    }
    let syncs = || disk.syncs.load(Ordering::SeqCst);
    assert_eq!(syncs(), 0, "full entries wait for the keeper");
    assert!(
        entries(dir.path())
            .keys()
            .all(|name| name.kind == EntryKind::Open)
    );
    staging.work(Instant::now() + Duration::from_secs(1));
    assert!(syncs() > 0);
    staging.close().unwrap();
    assert_eq!(records(dir.path()).len(), 20);
}
