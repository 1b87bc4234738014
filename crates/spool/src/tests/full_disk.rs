//! A disk that is full and stays full, whatever is deleted: what was acknowledged is delivered once,
//! whatever act a deliverer crashes at. (S9)

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crash::{fill, options};
use super::crashing_disk::{CRASHES, Crash, CrashingDisk, Event, Fault, Kind};
use super::place::{Place, names};
use crate::consolidate::{ConsolidatorState, Options, consolidate_on};
use crate::delivery::Watch;
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::files;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::reserve::Reserve;
use crate::staging_lock::LockError;
use crate::tally::tally;
use crate::verify::verify;

/// Refuses everything that a full disk could refuse: a new file, a new name, a longer file.
#[derive(Debug)]
struct FullDisk(Arc<dyn Disk>);

fn full<T>() -> io::Result<T> {
    Err(io::ErrorKind::StorageFull.into())
}

impl Disk for FullDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() { Ok(()) } else { full() }
    }

    fn create(&self, _path: &Path) -> io::Result<File> {
        full()
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        if at + bytes.len() as u64 > file.metadata()?.len() {
            return full();
        }
        self.0.write_at(file, at, bytes)
    }

    fn append(&self, _file: &File, _bytes: &[u8]) -> io::Result<()> {
        full()
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
            full()
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

const RESERVE: usize = 1 << 16;

/// A data directory that has a reserve, and entries of every kind.
fn place() -> (Place, BTreeSet<Uuid>) {
    place_with(RESERVE)
}

fn place_with(reserve_bytes: usize) -> (Place, BTreeSet<Uuid>) {
    let place = Place::new();
    let reserve = Reserve::new(&place.data().staging);
    reserve.create(&RealDisk, reserve_bytes).unwrap();
    // The journals and the locks are there, as after any run.
    run(&place, &(Arc::new(RealDisk) as Arc<dyn Disk>)).unwrap();
    let mut expected = fill(&place);
    // Sealing one that was left open needs a new name.
    for name in names(&place.data().staging) {
        let path = place.data().staging.join(name);
        if path.extension().is_some_and(|ending| ending == "open") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let kept: BTreeSet<Uuid> = staged(&place);
    expected.retain(|id| kept.contains(id));
    (place, expected)
}

fn staged(place: &Place) -> BTreeSet<Uuid> {
    let staging = place.data().staging;
    let text = |name: &String| std::fs::read_to_string(staging.join(name)).unwrap_or_default();
    let all: String = names(&staging).iter().map(text).collect();
    let ids = all.split(r#""id":""#).skip(1);
    ids.filter_map(|rest| Uuid::try_parse(rest.get(..36)?).ok())
        .collect()
}

/// Consolidates and delivers until nothing is left to do, as a run does.
fn run(place: &Place, disk: &Arc<dyn Disk>) -> Result<(), Error> {
    loop {
        let store = SpoolManager::on(Arc::clone(disk), place.path());
        match store.flush_reserve() {
            Err(error) if error.is_full() => {}
            flushed => flushed?,
        }
        let folded = match consolidate_on(
            disk,
            place.path(),
            &options(),
            &mut ConsolidatorState::default(),
        ) {
            Ok(folded) => folded.entries,
            Err(error) if error.is_full() => 1,
            Err(LockError::Disk(error)) => return Err(error),
            other => other.unwrap().entries,
        };
        let delivered = place.deliver(disk)?;
        if folded == 0 && delivered.batches == 0 {
            return Ok(());
        }
    }
}

fn check_billed(place: &Place, expected: &BTreeSet<Uuid>, what: &str) {
    let billed = place.receiver.billed();
    for (id, count) in &billed {
        assert_eq!(*count, 1, "{what}: {id} was billed {count} times");
    }
    let billed: BTreeSet<_> = billed.into_keys().collect();
    assert_eq!(&billed, expected, "{what}");
}

fn check(place: &Place, expected: &BTreeSet<Uuid>, what: &str) {
    check_billed(place, expected, what);
    assert_eq!(names(&place.data().staging), [""; 0], "{what}");
    let tally = tally(place.path(), None, None).unwrap();
    let records: u64 = tally.rows.iter().map(|row| row.records).sum();
    assert_eq!(records, expected.len() as u64, "{what}: totals");
    balance(place, what);
}

fn balance(place: &Place, what: &str) {
    let books = verify(place.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{what}: {:?}", books.problems);
    assert_eq!(
        books.staged,
        books.delivered + books.pending + books.failed,
        "{what}"
    );
}

#[test]
fn full_disk_is_drained_although_deleted_files_free_nothing() {
    let (place, expected) = place();
    run(&place, &full_disk()).unwrap();
    check(&place, &expected, "full");
    let length = std::fs::metadata(place.data().staging.join(".reserve")).unwrap();
    assert_eq!(length.len(), RESERVE as u64);
    // There is room again: everything is on the disk as if it had never been full.
    run(&place, &(Arc::new(RealDisk) as Arc<dyn Disk>)).unwrap();
    check(&place, &expected, "no longer full");
    let held = Reserve::new(&place.data().staging).read(&RealDisk).unwrap();
    assert!(held.is_empty(), "{held:?}");
    assert!(place.data().failed.read_dir().unwrap().count() > 0);
}

/// Issue 14, item 7.
#[test]
fn records_that_are_staged_again_after_a_full_disk_are_not_billed_twice() {
    for is_still_full in [true, false] {
        let (place, expected) = place();
        let staging = place.data().staging;
        let copies: Vec<_> = (names(&staging).iter())
            .map(|name| {
                (
                    staging.join(name),
                    std::fs::read(staging.join(name)).unwrap(),
                )
            })
            .collect();
        run(&place, &full_disk()).unwrap();
        if !is_still_full {
            run(&place, &(Arc::new(RealDisk) as Arc<dyn Disk>)).unwrap();
        }
        for (path, bytes) in copies {
            std::fs::write(path, bytes).unwrap();
        }
        run(&place, &full_disk()).unwrap();
        check(&place, &expected, "staged again");
        let books = verify(place.path(), &Watch::silent()).unwrap();
        assert_eq!(books.repeated, expected.len() as u64);
    }
}

/// Has no room for the ids of many records in the journal, and for everything else.
#[derive(Debug)]
struct NoRoomForIds;

impl NoRoomForIds {
    fn check(file: &File, bytes: &[u8]) -> io::Result<()> {
        let path = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let is_journal = path.to_string_lossy().contains("taken");
        if is_journal && bytes.len() > 1000 {
            return full();
        }
        Ok(())
    }
}

impl Disk for NoRoomForIds {
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

/// Issue 14, item 7. The records come again in other entries, so that their batches have other keys.
#[test]
fn ids_are_kept_although_the_journal_has_no_room_for_them() {
    let place = Place::new();
    let reserve = Reserve::new(&place.data().staging);
    reserve.create(&RealDisk, RESERVE).unwrap();
    let records = place.entry(40, true);
    run(&place, &(Arc::new(NoRoomForIds) as Arc<dyn Disk>)).unwrap();
    assert_eq!(place.receiver.billed().len(), 40);
    for record in records.iter().rev() {
        place.junk("json", record.json());
    }
    run(&place, &(Arc::new(RealDisk) as Arc<dyn Disk>)).unwrap();
    let expected = records.iter().map(Record::id).collect();
    check(&place, &expected, "staged again in other entries");
}

#[test]
fn full_disk_is_drained_exactly_whatever_act_the_deliverer_crashes_at() {
    for kind in CRASHES {
        drain_exactly(kind);
    }
}

fn drain_exactly(kind: Crash) {
    for at in 0.. {
        let (place, expected) = place();
        let crashing = Arc::new(CrashingDisk::new(kind, at));
        let disk: Arc<dyn Disk> = Arc::new(FullDisk(Arc::clone(&crashing) as _));
        let ended = run(&place, &disk);
        assert_eq!(ended.is_err(), crashing.has_crashed(), "{kind:?} {at}");
        let what = format!("{kind:?} at {at}");
        balance(&place, &what);
        run(&place, &full_disk()).unwrap();
        check(&place, &expected, &what);
        if !crashing.has_crashed() {
            assert!(at > 30, "there are acts to crash at");
            break;
        }
    }
}

#[test]
fn reserve_is_emptied_exactly_whatever_act_that_crashes_at() {
    for (kind, first) in CRASHES.into_iter().zip([0, 1, 0, 1, 0]) {
        // Every second act for each kind of crash: together they are all.
        for at in (first..).step_by(2) {
            let (place, mut expected) = place();
            run(&place, &full_disk()).unwrap();
            expected.extend(place.entry(5, true).iter().map(Record::id));
            let crashing = Arc::new(CrashingDisk::new(kind, at));
            let disk: Arc<dyn Disk> = Arc::clone(&crashing) as _;
            let ended = run(&place, &disk);
            assert_eq!(ended.is_err(), crashing.has_crashed(), "{kind:?} {at}");
            let what = format!("emptied, {kind:?} at {at}");
            balance(&place, &what);
            // Full again, or not.
            if at % 4 < 2 {
                expected.extend(place.entry(5, true).iter().map(Record::id));
                run(&place, &full_disk()).unwrap();
                check(&place, &expected, &what);
            }
            run(&place, &(Arc::new(RealDisk) as Arc<dyn Disk>)).unwrap();
            check(&place, &expected, &what);
            if !crashing.has_crashed() {
                assert!(at > 30, "there are acts to crash at");
                break;
            }
        }
    }
}

/// The first failure is that of a sync, the second that of the act which makes up for it.
#[test]
fn reserve_is_emptied_exactly_after_a_failed_sync_and_on_a_disk_that_is_full_again() {
    let filled = || {
        let (place, mut expected) = place();
        run(&place, &full_disk()).unwrap();
        expected.extend(place.entry(5, true).iter().map(Record::id));
        (place, expected)
    };
    let disk = Arc::new(CrashingDisk::with(Vec::new()));
    run(&filled().0, &(Arc::clone(&disk) as Arc<dyn Disk>)).unwrap();
    let acts = disk.acts().into_iter().enumerate();
    let syncs: Vec<_> = acts.filter(|(_, kind)| *kind == Kind::Sync).collect();
    assert!(syncs.len() > 10, "{syncs:?}");
    for (at, _) in syncs {
        let (place, mut expected) = filled();
        let events = [(at, Fault::Unsynced), (at + 1, Fault::Error(5))];
        let events = events.map(|(at, fault)| (at, Event::Fault(fault)));
        let failing = Arc::new(CrashingDisk::with(events.to_vec()));
        let disk: Arc<dyn Disk> = Arc::clone(&failing) as _;
        let _ = run(&place, &disk);
        failing.heal();
        let what = format!("a sync fails at {at}");
        expected.extend(place.entry(5, true).iter().map(Record::id));
        run(
            &place,
            &(Arc::new(FullDisk(Arc::clone(&disk))) as Arc<dyn Disk>),
        )
        .unwrap();
        check_billed(&place, &expected, &what);
        run(&place, &disk).unwrap();
        check(&place, &expected, &what);
    }
}

#[test]
fn file_that_a_full_disk_without_a_reserve_cannot_move_stays_and_is_an_error() {
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
fn number_of_records_that_leave_a_full_disk_is_not_bounded_by_the_reserve() {
    let (place, mut expected) = place();
    let disk = full_disk();
    let most = Options {
        batch_size: 4,
        ..Options::default()
    };
    // Names and states of so many batches would not fit into the reserve.
    for _ in 0..40 {
        for _ in 0..10 {
            expected.extend(place.entry(3, true).iter().map(Record::id));
        }
        while consolidate_on(
            &disk,
            place.path(),
            &most,
            &mut ConsolidatorState::default(),
        )
        .is_ok_and(|it| it.entries > 0)
        {
            place.deliver(&disk).unwrap();
        }
    }
    run(&place, &disk).unwrap();
    check(&place, &expected, "many");
}

/// A record of this many bytes or more, as a file of its own.
fn large(place: &Place, bytes: usize) -> Uuid {
    let text = format!(r#"{{"tokens":1,"text":"{}"}}"#, "x".repeat(bytes));
    let record = Record::parse(&text).unwrap();
    let path = place.data().staging.join(format!("{}.json", record.id()));
    std::fs::write(path, record.json()).unwrap();
    record.id()
}

fn poison(place: &Place, ids: &BTreeSet<Uuid>) {
    place.receiver.poison.lock().unwrap().extend(ids);
}

/// Records in `failed/`, each as often as it is there. None may have arrived.
fn failed(place: &Place) -> Vec<Uuid> {
    let store = SpoolManager::new(place.path());
    let mut ids = Vec::new();
    for one in store.failed().unwrap().iter().filter(|one| one.is_batch) {
        assert!(!one.is_ambiguous, "{one:?}");
        let bytes = files::read_bounded(&RealDisk, &place.data().failed.join(&one.name));
        let batch = crate::batch::Batch::decode(&bytes.unwrap().unwrap()).unwrap();
        ids.extend(batch.records().iter().map(Record::id));
    }
    ids.sort();
    ids
}

#[test]
fn split_that_does_not_fit_into_the_reserve_holds_up_no_other_batch() {
    let real: Arc<dyn Disk> = Arc::new(RealDisk);
    let (place, mut expected) = place();
    run(&place, &real).unwrap();
    let first: Vec<_> = (0..4).map(|_| large(&place, 4000)).collect();
    let bad: BTreeSet<_> = [first[3]].into();
    poison(&place, &bad);
    expected.extend(&first[..3]);
    consolidate_on(
        &real,
        place.path(),
        &options(),
        &mut ConsolidatorState::default(),
    )
    .unwrap();
    place.deliver(&full_disk()).unwrap();
    // There was room for another batch, and then there is none.
    expected.extend(place.entry(4, true).iter().map(Record::id));
    consolidate_on(
        &real,
        place.path(),
        &options(),
        &mut ConsolidatorState::default(),
    )
    .unwrap();
    let delivered = place.deliver(&full_disk()).unwrap();
    assert_eq!(delivered.records, 4, "{delivered:?}");
    for _ in 0..3 {
        run(&place, &real).unwrap();
    }
    check_billed(&place, &expected, "there is room");
    assert_eq!(failed(&place), Vec::from_iter(bad));
    balance(&place, "there is room");
}

#[test]
fn rejected_records_that_fill_the_reserve_are_in_failed_once_there_is_room() {
    let real: Arc<dyn Disk> = Arc::new(RealDisk);
    let (place, mut expected) = place_with(4 * RESERVE);
    run(&place, &real).unwrap();
    let mut bad = BTreeSet::new();
    for _ in 0..20 {
        // Batches of four, each with a good record.
        bad.extend((0..3).map(|_| large(&place, 200)));
        expected.insert(large(&place, 200));
    }
    poison(&place, &bad);
    let turns = |disk: &Arc<dyn Disk>, most: usize| {
        let mut good = BTreeSet::new();
        for _ in 0..most {
            // The receiver accepts something in every run, so that it is trusted.
            good.insert(place.single().id());
            let store = SpoolManager::on(Arc::clone(disk), place.path());
            if let Err(error) = store.flush_reserve() {
                assert!(error.is_full(), "{error}");
            }
            let done = consolidate_on(
                disk,
                place.path(),
                &options(),
                &mut ConsolidatorState::default(),
            );
            if let Err(error) = done {
                assert!(error.is_full(), "{error}");
            }
            place.deliver(disk).unwrap();
            let clock = &place.receiver.clock;
            clock.forward(Duration::from_secs(3600));
        }
        good
    };
    expected.extend(turns(&full_disk(), 6));
    balance(&place, "full");
    let held = Reserve::new(&place.data().staging).read(&RealDisk).unwrap();
    let count = held.keys("failed").count();
    assert!(count > 0, "the reserve holds some of them");
    assert!(failed(&place).len() < bad.len(), "and not all");
    expected.extend(turns(&real, 20));
    check_billed(&place, &expected, "there is room");
    assert_eq!(failed(&place), Vec::from_iter(bad));
    balance(&place, "there is room");
    let held = Reserve::new(&place.data().staging).read(&RealDisk).unwrap();
    assert!(held.is_empty(), "{held:?}");
}

/// The outcome of an attempt is known once the receiver has answered, also if there is no room for
/// what follows from it.
#[test]
fn rejected_record_is_not_ambiguous_because_the_disk_was_full_meanwhile() {
    let real: Arc<dyn Disk> = Arc::new(RealDisk);
    let options = Options::default();
    let mut sent = 0;
    // The acts before it prepare the run.
    for at in 40.. {
        let place = Place::new();
        place.single();
        consolidate_on(
            &real,
            place.path(),
            &options,
            &mut ConsolidatorState::default(),
        )
        .unwrap();
        place.deliver_all();
        let bad: BTreeSet<_> = [place.single().id()].into();
        poison(&place, &bad);
        consolidate_on(
            &real,
            place.path(),
            &options,
            &mut ConsolidatorState::default(),
        )
        .unwrap();
        let before = place.receiver.arrivals().len();
        let full = Event::Fault(Fault::Error(28));
        let disk = Arc::new(CrashingDisk::with(vec![(at, full)]));
        let _ = place.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
        let is_sent = place.receiver.arrivals().len() > before;
        let is_over = disk.acts().len() <= at;
        disk.heal();
        if is_sent {
            sent += 1;
            for _ in 0..2 {
                place.single();
                consolidate_on(
                    &real,
                    place.path(),
                    &options,
                    &mut ConsolidatorState::default(),
                )
                .unwrap();
                place.receiver.clock.forward(Duration::from_secs(3600));
                place.deliver_all();
            }
            assert_eq!(failed(&place), Vec::from_iter(bad), "at {at}");
        }
        if is_over {
            assert!(sent > 10, "there are acts after the attempt");
            break;
        }
    }
}
