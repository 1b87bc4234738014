//! Journals on a disk that fails during a rotation or loses data after a failed sync. (promises
//! S2, S9, S12)

use std::sync::Arc;

use serde_json::{Value, json};

use super::crashing_disk::{CrashingDisk, Event, Fault};
use super::test_data_dir::TestDataDir;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::entry_journal::ConsolidatedEntry;
use crate::journal::{Journal, JournalKind, JournalLine};
use crate::time::new_id;

/// Number of events: the sum in the head of the last generation, and the lines after it.
fn count(data: &DataDir, kind: JournalKind) -> u64 {
    let mut count = 0;
    kind.read::<u64>(data, &mut |_, read| match read {
        JournalLine::Head(before) => count = before,
        JournalLine::Event(_) => count += 1,
        JournalLine::Damaged(why) => assert_eq!(why, "", "a damaged line"),
    })
    .unwrap();
    count
}

fn event(number: u64) -> Value {
    json!({ "number": number })
}

/// An event that is added after a failed rotation of the journal must be counted, either at the
/// first attempt or after the journal is opened again. The deliverer adds such an event while a
/// snapshot is unfinished, because it does not rotate the journal then.
#[test]
fn event_added_after_a_failed_rotation_is_counted() {
    for late in [false, true] {
        for at in 0.. {
            let test_dir = TestDataDir::new();
            let fault = if late {
                Fault::Late(5)
            } else {
                Fault::Error(5)
            };
            // A run without faults counts the operations before the rotation, so that the fault
            // below hits the rotation.
            let counting = Arc::new(CrashingDisk::with(Vec::new()));
            let disk: Arc<dyn Disk> = Arc::clone(&counting) as _;
            let data = DataDir::on(Arc::clone(&disk), test_dir.path());
            let mut journal = Journal::open::<u64>(&disk, &data, JournalKind::Batches).unwrap();
            journal.add(&event(1)).unwrap();
            journal.sync().unwrap();
            let before = counting.operations().len();
            drop(journal);

            let test_dir = TestDataDir::new();
            let failing = CrashingDisk::with(vec![(before + at, Event::Fault(fault))]);
            let failing = Arc::new(failing);
            let disk: Arc<dyn Disk> = Arc::clone(&failing) as _;
            let data = DataDir::on(Arc::clone(&disk), test_dir.path());
            let mut journal = Journal::open::<u64>(&disk, &data, JournalKind::Batches).unwrap();
            journal.add(&event(1)).unwrap();
            journal.sync().unwrap();
            let rotated = journal.rotate(&1_u64);
            let operations = failing.operations().len() - before;
            failing.clear_faults();
            let mut expected = 1;
            let mut added = journal.add(&event(2)).and_then(|()| journal.sync());
            if added.is_err() {
                let mut journal = Journal::open::<u64>(&disk, &data, JournalKind::Batches).unwrap();
                expected = count(&data, JournalKind::Batches);
                added = journal.add(&event(2)).and_then(|()| journal.sync());
            }
            added.unwrap();
            expected += 1;
            assert_eq!(
                count(&data, JournalKind::Batches),
                expected,
                "{fault:?} at {at}: {rotated:?}"
            );
            if at >= operations {
                assert!(at > 5, "too few operations to fail at");
                break;
            }
        }
    }
}

/// A sync fails, truncating the line fails too, and the process ends. The next process finds the line,
/// which is only in the page cache.
#[test]
fn line_that_the_next_process_reads_survives_a_power_failure() {
    let snapshot = new_id();
    for kind in [JournalKind::Batches, JournalKind::Entries] {
        let add_and_sync = |events: Vec<(usize, Event)>| {
            let test_dir = TestDataDir::new();
            let disk = Arc::new(CrashingDisk::with(events));
            let dyn_disk: Arc<dyn Disk> = Arc::clone(&disk) as _;
            let data = DataDir::on(Arc::clone(&dyn_disk), test_dir.path());
            let mut journal = Journal::open::<u64>(&dyn_disk, &data, kind).unwrap();
            journal.add(&event(1)).unwrap();
            journal.sync().unwrap();
            // The entry journal syncs all lines of a snapshot together, so the failed sync must
            // affect two lines. The batch journal syncs each line alone, so one line is sufficient.
            for entry in ["a", "b"] {
                journal
                    .add(&ConsolidatedEntry::new(snapshot, entry))
                    .unwrap();
                if kind == JournalKind::Batches {
                    break;
                }
            }
            let operations = disk.operations().len();
            let synced = journal.sync();
            (test_dir, disk, data, operations, synced)
        };
        let (.., at, _) = add_and_sync(Vec::new());
        let faults = vec![
            (at, Event::Fault(Fault::Unsynced)),
            (at + 1, Event::Fault(Fault::Error(5))),
        ];
        let (_test_dir, disk, data, _, synced) = add_and_sync(faults);
        synced.unwrap_err();
        disk.clear_faults();
        disk.restart();
        let dyn_disk: Arc<dyn Disk> = Arc::clone(&disk) as _;
        drop(Journal::open::<u64>(&dyn_disk, &data, kind).unwrap());
        let read_by_next = count(&data, kind);
        disk.cut_power();
        assert_eq!(count(&data, kind), read_by_next, "{kind:?}");
    }
}
