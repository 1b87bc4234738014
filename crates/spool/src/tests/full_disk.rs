//! On a disk that stays full whatever is deleted, acknowledged records are delivered exactly once, also
//! after a crash at any operation. (promise S9)

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crash_recovery::fill;
use super::crashing_disk::{CRASHES, Crash, CrashingDisk, Event, Fault, Operation};
use super::grouping::tally;
use super::test_data_dir::{TestDataDir, each_once, names, real_disk};
use crate::delivery::Watch;
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::files;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::reserve::Reserve;
use crate::staging_lock::LockError;
use crate::verify::verify;

/// A full disk: refuses every operation that needs space (new files, new names, longer files).
#[derive(Debug)]
struct FullDisk(Arc<dyn Disk>);

fn storage_full<T>() -> io::Result<T> {
    Err(io::ErrorKind::StorageFull.into())
}

impl Disk for FullDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() { Ok(()) } else { storage_full() }
    }

    fn create(&self, _path: &Path) -> io::Result<File> {
        storage_full()
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at + bytes.len() as u64 > file.metadata()?.len() {
            return storage_full();
        }
        self.0.write_at(file, at, bytes)
    }

    fn append(&self, _file: &File, _bytes: &[u8]) -> io::Result<()> {
        storage_full()
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.0.sync(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        if to.exists() {
            self.0.rename(from, to)
        } else {
            storage_full()
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.remove(path)
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.0.truncate(file, length)
    }

    fn process(&self) -> usize {
        self.0.process()
    }

    fn before_record(&self) -> io::Result<()> {
        self.0.before_record()
    }
}

fn full_disk() -> Arc<dyn Disk> {
    Arc::new(FullDisk(Arc::new(RealDisk)))
}

const RESERVE_BYTES: usize = 1 << 16;

/// Creates a data directory with a reserve file, and with every kind of entry that can be
/// consolidated while the disk is full, that is, all but open entries. Returns the directory and
/// the ids of the staged records.
fn dir_with_reserve() -> (TestDataDir, BTreeSet<Uuid>) {
    dir_with_reserve_of(RESERVE_BYTES)
}

fn dir_with_reserve_of(reserve_bytes: usize) -> (TestDataDir, BTreeSet<Uuid>) {
    let test_dir = TestDataDir::new();
    let reserve = Reserve::new(&test_dir.data().staging);
    reserve.create(&RealDisk, reserve_bytes).unwrap();
    // The first run creates the journals and the lock files, which a full disk could not create.
    run(&test_dir, &real_disk()).unwrap();
    let mut expected = fill(&test_dir);
    // Remove the open entries: sealing them needs a new name, which a full disk refuses.
    for name in names(&test_dir.data().staging) {
        let path = test_dir.data().staging.join(name);
        if path.extension().is_some_and(|ending| ending == "open") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let kept: BTreeSet<Uuid> = staged_ids(&test_dir);
    expected.retain(|id| kept.contains(id));
    (test_dir, expected)
}

fn staged_ids(test_dir: &TestDataDir) -> BTreeSet<Uuid> {
    let staging = test_dir.data().staging;
    let text = |name: &String| std::fs::read_to_string(staging.join(name)).unwrap_or_default();
    let all: String = names(&staging).iter().map(text).collect();
    let ids = all.split(r#""id":""#).skip(1);
    ids.filter_map(|rest| Uuid::try_parse(rest.get(..36)?).ok())
        .collect()
}

/// Consolidates and delivers on a full disk until neither finds more work.
fn run(test_dir: &TestDataDir, disk: &Arc<dyn Disk>) -> Result<(), Error> {
    loop {
        let store = SpoolManager::on(Arc::clone(disk), test_dir.path());
        match store.flush_reserve() {
            Err(error) if error.is_full() => {}
            flushed => flushed?,
        }
        let consolidated = match test_dir.consolidate_on(disk) {
            Ok(consolidated) => consolidated.entries,
            Err(error) if error.is_full() => 1,
            Err(LockError::Disk(error)) => return Err(error),
            other => other.unwrap().entries,
        };
        let delivered = test_dir.deliver(disk)?;
        if consolidated == 0 && delivered.batches == 0 {
            return Ok(());
        }
    }
}

fn check_billed(test_dir: &TestDataDir, expected: &BTreeSet<Uuid>, case: &str) {
    let billed = each_once(test_dir.receiver.billed(), case);
    assert_eq!(&billed, expected, "{case}");
}

fn check(test_dir: &TestDataDir, expected: &BTreeSet<Uuid>, case: &str) {
    check_billed(test_dir, expected, case);
    assert_eq!(names(&test_dir.data().staging), [""; 0], "{case}");
    let tally = tally(test_dir.path(), None, None).unwrap();
    let records: u64 = tally.rows.iter().map(|row| row.records).sum();
    assert_eq!(records, expected.len() as u64, "{case}: totals");
    test_dir.assert_balanced(case);
}

#[test]
fn full_disk_is_drained_although_deleted_files_free_no_space() {
    let (test_dir, expected) = dir_with_reserve();
    run(&test_dir, &full_disk()).unwrap();
    check(&test_dir, &expected, "full");
    let length = std::fs::metadata(test_dir.data().staging.join(".reserve")).unwrap();
    assert_eq!(length.len(), RESERVE_BYTES as u64);
    run(&test_dir, &real_disk()).unwrap();
    check(&test_dir, &expected, "no longer full");
    let held = Reserve::new(&test_dir.data().staging)
        .read(&RealDisk)
        .unwrap();
    assert!(held.is_empty(), "{held:?}");
    assert!(test_dir.data().failed.read_dir().unwrap().count() > 0);
}

/// A producer stages its records again after an error on a full disk. Their ids must be known
/// although the journal has no space for them.
#[test]
fn records_staged_again_after_a_full_disk_are_not_billed_twice() {
    for is_still_full in [true, false] {
        let (test_dir, expected) = dir_with_reserve();
        let staging = test_dir.data().staging;
        let copies: Vec<_> = (names(&staging).iter())
            .map(|name| {
                (
                    staging.join(name),
                    std::fs::read(staging.join(name)).unwrap(),
                )
            })
            .collect();
        run(&test_dir, &full_disk()).unwrap();
        if !is_still_full {
            run(&test_dir, &real_disk()).unwrap();
        }
        for (path, bytes) in copies {
            std::fs::write(path, bytes).unwrap();
        }
        run(&test_dir, &full_disk()).unwrap();
        check(&test_dir, &expected, "staged again");
        let books = verify(test_dir.path(), &Watch::silent()).unwrap();
        assert_eq!(books.repeated, expected.len() as u64);
    }
}

/// Reports a full disk for long journal lines of ids, and has space for everything else.
#[derive(Debug)]
struct NoSpaceForIds;

impl NoSpaceForIds {
    fn check(file: &File, bytes: &[u8]) -> io::Result<()> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let is_journal = path.to_string_lossy().contains("taken");
        if is_journal && bytes.len() > 1000 {
            return storage_full();
        }
        Ok(())
    }
}

impl Disk for NoSpaceForIds {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.make_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        RealDisk.create(path)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        Self::check(file, bytes)?;
        RealDisk.write_at(file, at, bytes)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        Self::check(file, bytes)?;
        RealDisk.append(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
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

/// The reserve keeps the ids. The records are staged again in other entries, so their batches have other
/// keys.
#[test]
fn record_ids_are_kept_although_the_journal_has_no_space_for_them() {
    let test_dir = TestDataDir::new();
    let reserve = Reserve::new(&test_dir.data().staging);
    reserve.create(&RealDisk, RESERVE_BYTES).unwrap();
    let records = test_dir.entry(40, true);
    run(&test_dir, &(Arc::new(NoSpaceForIds) as Arc<dyn Disk>)).unwrap();
    assert_eq!(test_dir.receiver.billed().len(), 40);
    for record in records.iter().rev() {
        test_dir.raw_file("json", record.json());
    }
    run(&test_dir, &real_disk()).unwrap();
    let expected = records.iter().map(Record::id).collect();
    check(&test_dir, &expected, "staged again in other entries");
}

#[test]
fn full_disk_is_drained_exactly_once_after_a_crash_at_any_operation() {
    for kind in CRASHES {
        crash_while_draining(kind);
    }
}

fn crash_while_draining(kind: Crash) {
    for at in 0.. {
        let (test_dir, expected) = dir_with_reserve();
        let crashing = Arc::new(CrashingDisk::new(kind, at));
        let disk: Arc<dyn Disk> = Arc::new(FullDisk(Arc::clone(&crashing) as _));
        let ended = run(&test_dir, &disk);
        assert_eq!(ended.is_err(), crashing.has_crashed(), "{kind:?} {at}");
        let case = format!("{kind:?} at {at}");
        test_dir.assert_balanced(&case);
        run(&test_dir, &full_disk()).unwrap();
        check(&test_dir, &expected, &case);
        if !crashing.has_crashed() {
            assert!(at > 30, "too few operations to crash at");
            break;
        }
    }
}

#[test]
fn reserve_is_flushed_exactly_once_after_a_crash_at_any_operation() {
    for (kind, first) in CRASHES.into_iter().zip([0, 1, 0, 1, 0]) {
        // To halve the duration, each kind of crash is tested at even or at odd operations only.
        // Together the kinds cover all operations.
        for at in (first..).step_by(2) {
            let (test_dir, mut expected) = dir_with_reserve();
            run(&test_dir, &full_disk()).unwrap();
            expected.extend(test_dir.entry(5, true).iter().map(Record::id));
            let crashing = Arc::new(CrashingDisk::new(kind, at));
            let disk: Arc<dyn Disk> = Arc::clone(&crashing) as _;
            let ended = run(&test_dir, &disk);
            assert_eq!(ended.is_err(), crashing.has_crashed(), "{kind:?} {at}");
            let case = format!("flushed, {kind:?} at {at}");
            test_dir.assert_balanced(&case);
            // In half of the cases the disk fills up again before the crashed flush is resumed.
            if at % 4 < 2 {
                expected.extend(test_dir.entry(5, true).iter().map(Record::id));
                run(&test_dir, &full_disk()).unwrap();
                check(&test_dir, &expected, &case);
            }
            run(&test_dir, &real_disk()).unwrap();
            check(&test_dir, &expected, &case);
            if !crashing.has_crashed() {
                assert!(at > 30, "too few operations to crash at");
                break;
            }
        }
    }
}

/// A sync fails during the flush, and the operation that would repair the file fails too.
#[test]
fn reserve_is_flushed_exactly_once_after_a_failed_sync_on_a_disk_that_fills_again() {
    let filled = || {
        let (test_dir, mut expected) = dir_with_reserve();
        run(&test_dir, &full_disk()).unwrap();
        expected.extend(test_dir.entry(5, true).iter().map(Record::id));
        (test_dir, expected)
    };
    let disk = Arc::new(CrashingDisk::with(Vec::new()));
    run(&filled().0, &(Arc::clone(&disk) as Arc<dyn Disk>)).unwrap();
    let operations = disk.operations().into_iter().enumerate();
    let syncs: Vec<_> = operations
        .filter(|(_, kind)| *kind == Operation::Sync)
        .collect();
    assert!(syncs.len() > 10, "{syncs:?}");
    for (at, _) in syncs {
        let (test_dir, mut expected) = filled();
        let events = [(at, Fault::Unsynced), (at + 1, Fault::Error(5))];
        let events = events.map(|(at, fault)| (at, Event::Fault(fault)));
        let failing = Arc::new(CrashingDisk::with(events.to_vec()));
        let disk: Arc<dyn Disk> = Arc::clone(&failing) as _;
        let _ = run(&test_dir, &disk);
        failing.clear_faults();
        let case = format!("a sync fails at {at}");
        expected.extend(test_dir.entry(5, true).iter().map(Record::id));
        run(
            &test_dir,
            &(Arc::new(FullDisk(Arc::clone(&disk))) as Arc<dyn Disk>),
        )
        .unwrap();
        check_billed(&test_dir, &expected, &case);
        run(&test_dir, &disk).unwrap();
        check(&test_dir, &expected, &case);
    }
}

#[test]
fn move_on_a_full_disk_without_a_reserve_fails_and_keeps_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let [from, to] = ["spool", "archive"].map(|name| dir.path().join(name).join("x"));
    for path in [&from, &to] {
        std::fs::create_dir(path.parent().unwrap()).unwrap();
    }
    std::fs::write(&from, "x").unwrap();
    let moved = files::move_file(&*full_disk(), &from, &to);
    assert!(moved.unwrap_err().is_full());
    assert!(from.exists() && !to.exists());
}

#[test]
fn number_of_records_delivered_from_a_full_disk_is_not_bounded_by_the_reserve() {
    let (test_dir, mut expected) = dir_with_reserve();
    let disk = full_disk();
    // The reserve has no space for the names and states of all these batches.
    for _ in 0..40 {
        for _ in 0..10 {
            expected.extend(test_dir.entry(3, true).iter().map(Record::id));
        }
        while test_dir
            .consolidate_on(&disk)
            .is_ok_and(|done| done.entries > 0)
        {
            test_dir.deliver(&disk).unwrap();
        }
    }
    run(&test_dir, &disk).unwrap();
    check(&test_dir, &expected, "many");
}

/// Stages a file with one record of at least this many bytes.
fn large_record(test_dir: &TestDataDir, bytes: usize) -> Uuid {
    let text = format!(r#"{{"tokens":1,"text":"{}"}}"#, "x".repeat(bytes));
    let record = Record::parse(&text).unwrap();
    let path = test_dir
        .data()
        .staging
        .join(format!("{}.json", record.id()));
    std::fs::write(path, record.json()).unwrap();
    record.id()
}

fn poison(test_dir: &TestDataDir, ids: &BTreeSet<Uuid>) {
    test_dir.receiver.poison.lock().unwrap().extend(ids);
}

/// Returns the ids of the records in `failed/`. Panics if a batch is ambiguous: the receiver may
/// have accepted it.
fn failed_ids(test_dir: &TestDataDir) -> Vec<Uuid> {
    let store = SpoolManager::new(test_dir.path());
    let mut ids = Vec::new();
    for one in store.failed().unwrap().iter().filter(|one| one.is_batch) {
        assert!(!one.is_ambiguous, "{one:?}");
        let bytes = files::read_bounded(&RealDisk, &test_dir.data().failed.join(&one.name));
        let batch = crate::batch::Batch::decode(&bytes.unwrap().unwrap()).unwrap();
        ids.extend(batch.records().iter().map(Record::id));
    }
    ids.sort();
    ids
}

#[test]
fn split_that_exceeds_the_reserve_blocks_no_other_batch() {
    let real = real_disk();
    let (test_dir, mut expected) = dir_with_reserve();
    run(&test_dir, &real).unwrap();
    let first: Vec<_> = (0..4).map(|_| large_record(&test_dir, 4000)).collect();
    let bad: BTreeSet<_> = [first[3]].into();
    poison(&test_dir, &bad);
    expected.extend(&first[..3]);
    test_dir.consolidate_on(&real).unwrap();
    test_dir.deliver(&full_disk()).unwrap();
    // Write a second batch while the disk has space, and deliver on a full disk again. The second
    // batch must be delivered although the split of the first batch does not fit into the reserve.
    expected.extend(test_dir.entry(4, true).iter().map(Record::id));
    test_dir.consolidate_on(&real).unwrap();
    let delivered = test_dir.deliver(&full_disk()).unwrap();
    assert_eq!(delivered.records, 4, "{delivered:?}");
    for _ in 0..3 {
        run(&test_dir, &real).unwrap();
    }
    check_billed(&test_dir, &expected, "not full");
    assert_eq!(failed_ids(&test_dir), Vec::from_iter(bad));
    test_dir.assert_balanced("not full");
}

#[test]
fn rejected_records_that_fill_the_reserve_reach_failed_once_there_is_space() {
    let real = real_disk();
    let (test_dir, mut expected) = dir_with_reserve_of(4 * RESERVE_BYTES);
    run(&test_dir, &real).unwrap();
    let mut bad = BTreeSet::new();
    for _ in 0..20 {
        // The receiver accepts one record of each batch of four, and rejects the others.
        bad.extend((0..3).map(|_| large_record(&test_dir, 200)));
        expected.insert(large_record(&test_dir, 200));
    }
    poison(&test_dir, &bad);
    let runs = |disk: &Arc<dyn Disk>, count: usize| {
        let mut good = BTreeSet::new();
        for _ in 0..count {
            // Stage a record that the receiver accepts, so that the receiver is trusted in every run.
            // Otherwise the records that it rejects would stay pending.
            good.insert(test_dir.record_file().id());
            let store = SpoolManager::on(Arc::clone(disk), test_dir.path());
            if let Err(error) = store.flush_reserve() {
                assert!(error.is_full(), "{error}");
            }
            let done = test_dir.consolidate_on(disk);
            if let Err(error) = done {
                assert!(error.is_full(), "{error}");
            }
            test_dir.deliver(disk).unwrap();
            let clock = &test_dir.receiver.clock;
            clock.forward(Duration::from_secs(3600));
        }
        good
    };
    expected.extend(runs(&full_disk(), 6));
    test_dir.assert_balanced("full");
    let held = Reserve::new(&test_dir.data().staging)
        .read(&RealDisk)
        .unwrap();
    let count = held.keys("failed").count();
    assert!(count > 0, "no failed batch is in the reserve");
    assert!(
        failed_ids(&test_dir).len() < bad.len(),
        "all failed batches are outside of the reserve"
    );
    expected.extend(runs(&real, 20));
    check_billed(&test_dir, &expected, "not full");
    assert_eq!(failed_ids(&test_dir), Vec::from_iter(bad));
    test_dir.assert_balanced("not full");
    let held = Reserve::new(&test_dir.data().staging)
        .read(&RealDisk)
        .unwrap();
    assert!(held.is_empty(), "{held:?}");
}

/// The outcome of an attempt is known once the receiver has responded, even if there is no space to
/// record it.
#[test]
fn rejected_record_is_not_ambiguous_if_the_disk_fills_after_the_attempt() {
    let real = real_disk();
    let mut sent = 0;
    // The first 40 operations prepare the run, before the batch is sent, so no fault is needed
    // there.
    for at in 40.. {
        let test_dir = TestDataDir::new();
        test_dir.record_file();
        test_dir.consolidate_on(&real).unwrap();
        test_dir.deliver_all();
        let bad: BTreeSet<_> = [test_dir.record_file().id()].into();
        poison(&test_dir, &bad);
        test_dir.consolidate_on(&real).unwrap();
        let before = test_dir.receiver.arrivals().len();
        let full = Event::Fault(Fault::Error(28));
        let disk = Arc::new(CrashingDisk::with(vec![(at, full)]));
        let _ = test_dir.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
        let is_sent = test_dir.receiver.arrivals().len() > before;
        let is_over = disk.operations().len() <= at;
        disk.clear_faults();
        if is_sent {
            sent += 1;
            for _ in 0..2 {
                test_dir.record_file();
                test_dir.consolidate_on(&real).unwrap();
                test_dir.receiver.clock.forward(Duration::from_secs(3600));
                test_dir.deliver_all();
            }
            assert_eq!(failed_ids(&test_dir), Vec::from_iter(bad), "at {at}");
        }
        if is_over {
            assert!(sent > 10, "too few operations after the attempt");
            break;
        }
    }
}
