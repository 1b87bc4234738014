//! Journals on a disk that fails while a generation begins, or loses what a failed sync left. (S2, S9, S12)

use std::sync::Arc;

use serde_json::{Value, json};

use super::crashing_disk::{CrashingDisk, Event, Fault};
use super::test_data_dir::TestDataDir;
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::entry_journal::ConsolidatedEntry;
use crate::journal::{Journal, JournalKind, JournalLine};
use crate::time::new_id;

/// Number of events by the sums of the last generation and the lines after it.
fn count(data: &DataDir, title: JournalKind) -> u64 {
    let mut count = 0;
    title
        .read::<u64>(data, &mut |_, read| match read {
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

/// The deliverer may add an event although the new generation is not begun: a set of entries that is
/// being consolidated puts that off.
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
            // Opening and adding are without faults.
            let quiet = Arc::new(CrashingDisk::with(Vec::new()));
            let disk: Arc<dyn Disk> = Arc::clone(&quiet) as _;
            let data = DataDir::on(Arc::clone(&disk), test_dir.path());
            let mut journal = Journal::open::<u64>(&disk, &data, JournalKind::Batches).unwrap();
            journal.add(&event(1)).unwrap();
            journal.sync().unwrap();
            let before = quiet.operations().len();
            drop(journal);

            let test_dir = TestDataDir::new();
            let failing = CrashingDisk::with(vec![(before + at, Event::Fault(fault))]);
            let failing = Arc::new(failing);
            let disk: Arc<dyn Disk> = Arc::clone(&failing) as _;
            let data = DataDir::on(Arc::clone(&disk), test_dir.path());
            let mut journal = Journal::open::<u64>(&disk, &data, JournalKind::Batches).unwrap();
            journal.add(&event(1)).unwrap();
            journal.sync().unwrap();
            let turned = journal.rotate(&1_u64);
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
                "{fault:?} at {at}: {turned:?}"
            );
            if at >= operations {
                assert!(at > 5, "too few operations to fail at");
                break;
            }
        }
    }
}

/// A sync fails, the line cannot be cut off either, and the process ends. The next one finds the line
/// in the kernel's memory alone.
#[test]
fn line_that_the_next_process_reads_survives_a_power_failure() {
    let snapshot = new_id();
    for title in [JournalKind::Batches, JournalKind::Entries] {
        let acts_before_sync = |events: Vec<(usize, Event)>| {
            let test_dir = TestDataDir::new();
            let disk = Arc::new(CrashingDisk::with(events));
            let on: Arc<dyn Disk> = Arc::clone(&disk) as _;
            let data = DataDir::on(Arc::clone(&on), test_dir.path());
            let mut journal = Journal::open::<u64>(&on, &data, title).unwrap();
            journal.add(&event(1)).unwrap();
            journal.sync().unwrap();
            // Lines of one set of entries are synced together.
            for entry in ["a", "b"] {
                journal
                    .add(&ConsolidatedEntry::new(snapshot, entry))
                    .unwrap();
                if title == JournalKind::Batches {
                    break;
                }
            }
            let operations = disk.operations().len();
            let synced = journal.sync();
            (test_dir, disk, data, operations, synced)
        };
        let (.., at, _) = acts_before_sync(Vec::new());
        let faults = vec![
            (at, Event::Fault(Fault::Unsynced)),
            (at + 1, Event::Fault(Fault::Error(5))),
        ];
        let (_place, disk, data, _, synced) = acts_before_sync(faults);
        synced.unwrap_err();
        disk.clear_faults();
        disk.restart();
        let on: Arc<dyn Disk> = Arc::clone(&disk) as _;
        drop(Journal::open::<u64>(&on, &data, title).unwrap());
        let relied_upon = count(&data, title);
        disk.cut_power();
        assert_eq!(count(&data, title), relied_upon, "{title:?}");
    }
}
