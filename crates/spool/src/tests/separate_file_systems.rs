//! Directories on different file systems: what cannot be renamed is copied, and a crash at any act
//! leaves it in one place in the end. (S8)

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crash_recovery::options;
use super::crashing_disk::{CRASHES, CrashingDisk, Event};
use super::test_data_dir::{TestDataDir, names};
use crate::consolidate::{ConsolidatorState, consolidate, consolidate_on};
use crate::delivery::{Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::verify::verify;

fn apart(events: Vec<(usize, Event)>) -> Arc<CrashingDisk> {
    let mut disk = CrashingDisk::with(events);
    disk.has_separate_file_systems = true;
    Arc::new(disk)
}

/// The records of the batches in a directory.
fn ids_in(dir: &std::path::Path) -> Vec<Uuid> {
    let names = names(dir)
        .into_iter()
        .filter(|name| crate::batch::is_batch_name(name));
    let batches =
        names.map(|name| crate::manager::check(&name, &fs::read(dir.join(&name)).unwrap()));
    let records = batches.flat_map(|batch| batch.unwrap().records().to_vec());
    let mut ids: Vec<_> = records.map(|record| record.id()).collect();
    ids.sort_unstable();
    ids
}

/// One that is poisoned and fails, and two that are archived.
fn filled() -> (TestDataDir, Uuid, Vec<Uuid>) {
    let test_dir = TestDataDir::new();
    test_dir.junk("jsonl", "junk\n");
    let good: Vec<_> = test_dir.entry(4, true).iter().map(Record::id).collect();
    let bad = test_dir.single().id();
    (test_dir, bad, good)
}

fn work(test_dir: &TestDataDir, disk: &Arc<CrashingDisk>) {
    let on = Arc::clone(disk) as Arc<dyn Disk>;
    let _ = consolidate_on(
        &on,
        test_dir.path(),
        &options(),
        &mut ConsolidatorState::default(),
    );
    let store = SpoolManager::on(Arc::clone(&on), test_dir.path());
    let _ = archive(&store, &Watch::silent());
}

#[test]
fn batches_and_malformed_files_exist_once_after_a_crash_at_any_operation_of_a_copy() {
    for crash in CRASHES {
        for at in 0.. {
            let (test_dir, bad, mut good) = filled();
            let disk = apart(vec![(at, Event::Crash(crash))]);
            work(&test_dir, &disk);
            let has_crashed = disk.has_crashed();
            disk.restart();
            disk.clear_faults();
            work(&test_dir, &disk);
            let case = format!("{crash:?} at {at}");
            good.push(bad);
            good.sort_unstable();
            assert_eq!(ids_in(&test_dir.data().archive), good, "{case}");
            assert_eq!(names(&test_dir.data().spool), [""; 0], "{case}");
            let mut junk = names(&test_dir.data().failed);
            // A journal that was torn leaves a piece of itself there, too.
            junk.retain(|name| !name.contains(".torn"));
            assert_eq!(junk.len(), 2, "{case}: the junk and its reason: {junk:?}");
            let books = verify(test_dir.path(), &Watch::silent()).unwrap();
            assert!(books.balance(), "{case}: {:?}", books.problems);
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn failed_batch_exists_once_after_a_crash_at_any_operation_of_its_move() {
    for crash in CRASHES {
        for at in 0.. {
            let (test_dir, bad, good) = filled();
            consolidate(test_dir.path(), &options()).unwrap();
            test_dir.receiver.poison.lock().unwrap().push(bad);
            let disk = apart(vec![(at, Event::Crash(crash))]);
            let _ = test_dir.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
            let has_crashed = disk.has_crashed();
            disk.restart();
            disk.clear_faults();
            let case = format!("{crash:?} at {at}");
            let books = verify(test_dir.path(), &Watch::silent()).unwrap();
            assert!(books.balance(), "{case}: {:?}", books.problems);
            // Delivery may pause until it is known that the destination accepts anything.
            for _ in 0..4 {
                test_dir.receiver.clock.forward(Duration::from_secs(24 * 3600));
                let on = Arc::clone(&disk) as Arc<dyn Disk>;
                test_dir.deliver(&on).unwrap();
            }
            // It waits if the destination has accepted nothing since it was asked last.
            let mut places = ids_in(&test_dir.data().failed);
            places.extend(ids_in(&test_dir.data().spool));
            assert_eq!(places, [bad], "{case}");
            let billed = test_dir.receiver.billed();
            assert!(billed.values().all(|times| *times == 1), "{case}");
            let (billed, good): (BTreeSet<_>, BTreeSet<_>) =
                (billed.into_keys().collect(), good.into_iter().collect());
            assert_eq!(billed, good, "{case}");
            let books = verify(test_dir.path(), &Watch::silent()).unwrap();
            assert!(books.balance(), "{case}: {:?}", books.problems);
            // And back again.
            let store = SpoolManager::on(Arc::clone(&disk) as Arc<dyn Disk>, test_dir.path());
            let failed = names(&test_dir.data().failed);
            let name = failed.iter().find(|name| crate::batch::is_batch_name(name));
            if let Some(name) = name {
                store.resend(name).unwrap();
            }
            assert_eq!(ids_in(&test_dir.data().spool), [bad], "{case}");
            assert!(ids_in(&test_dir.data().failed).is_empty(), "{case}");
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn batches_are_archived_to_another_file_system() {
    let test_dir = TestDataDir::new();
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let here = fs::metadata(test_dir.path()).unwrap().dev();
    if fs::metadata(other.path()).unwrap().dev() == here {
        // Temporary files are there already: then the tests above are what there is.
        return;
    }
    let (archive_dir, failed) = (test_dir.data().archive, test_dir.data().failed);
    for dir in [&archive_dir, &failed] {
        let to = other.path().join(dir.file_name().unwrap());
        fs::create_dir(&to).unwrap();
        fs::remove_dir(dir).unwrap();
        symlink(&to, dir).unwrap();
    }
    test_dir.junk("jsonl", "junk\n");
    let mut ids: Vec<_> = test_dir.entry(6, true).iter().map(Record::id).collect();
    ids.sort_unstable();
    consolidate(test_dir.path(), &options()).unwrap();
    archive(&SpoolManager::new(test_dir.path()), &Watch::silent()).unwrap();
    assert_eq!(ids_in(&archive_dir), ids);
    assert_eq!(names(&test_dir.data().spool), [""; 0]);
    assert_eq!(names(&failed).len(), 2);
    let books = verify(test_dir.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
}
