//! Subdirectories on different file systems: files are copied where they cannot be renamed, and exist
//! once after a crash at any operation of the copy. (promise S8)

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crashing_disk::{CRASHES, CrashingDisk, Event};
use super::test_data_dir::{TestDataDir, batches_of, each_once, ids_in_batches, names};
use crate::consolidate::consolidate;
use crate::delivery::{Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::record::Record;

fn separate_file_systems(events: Vec<(usize, Event)>) -> Arc<CrashingDisk> {
    let mut disk = CrashingDisk::with(events);
    disk.has_separate_file_systems = true;
    Arc::new(disk)
}

/// Stages a malformed file, a record that the receiver rejects and an entry of four others.
fn filled() -> (TestDataDir, Uuid, Vec<Uuid>) {
    let test_dir = TestDataDir::new();
    test_dir.raw_file("jsonl", "junk\n");
    let good: Vec<_> = test_dir.entry(4, true).iter().map(Record::id).collect();
    let bad = test_dir.record_file().id();
    (test_dir, bad, good)
}

/// Consolidates and archives, as far as the disk permits.
fn consolidate_and_archive(test_dir: &TestDataDir, disk: &Arc<CrashingDisk>) {
    let dyn_disk = Arc::clone(disk) as Arc<dyn Disk>;
    let _ = test_dir.consolidate_on(&dyn_disk);
    let store = SpoolManager::on(Arc::clone(&dyn_disk), test_dir.path());
    let _ = archive(&store, &Watch::silent());
}

#[test]
fn batches_and_malformed_files_exist_once_after_a_crash_at_any_operation_of_a_copy() {
    for crash in CRASHES {
        for at in 0.. {
            let (test_dir, bad, mut good) = filled();
            let disk = separate_file_systems(vec![(at, Event::Crash(crash))]);
            consolidate_and_archive(&test_dir, &disk);
            let has_crashed = disk.has_crashed();
            disk.restart();
            disk.clear_faults();
            consolidate_and_archive(&test_dir, &disk);
            let case = format!("{crash:?} at {at}");
            good.push(bad);
            good.sort_unstable();
            assert_eq!(ids_in_batches(&test_dir.data().archive), good, "{case}");
            assert_eq!(names(&test_dir.data().spool), [""; 0], "{case}");
            let mut malformed = names(&test_dir.data().failed);
            // A crash may also move the torn end of a journal to `failed/`. Leave it out, so that
            // only the malformed file is counted.
            malformed.retain(|name| !name.contains(".torn"));
            assert_eq!(
                malformed.len(),
                2,
                "{case}: the malformed file and its reason: {malformed:?}"
            );
            test_dir.assert_balanced(&case);
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
            consolidate(test_dir.path(), &batches_of(4)).unwrap();
            test_dir.receiver.poison.lock().unwrap().push(bad);
            let disk = separate_file_systems(vec![(at, Event::Crash(crash))]);
            let _ = test_dir.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
            let has_crashed = disk.has_crashed();
            disk.restart();
            disk.clear_faults();
            let case = format!("{crash:?} at {at}");
            test_dir.assert_balanced(&case);
            // Delivery may have paused after the rejected record, before the good records were
            // sent. Advance the clock beyond the pause and deliver again, so that all good records
            // arrive.
            for _ in 0..4 {
                test_dir
                    .receiver
                    .clock
                    .forward(Duration::from_secs(24 * 3600));
                let dyn_disk = Arc::clone(&disk) as Arc<dyn Disk>;
                test_dir.deliver(&dyn_disk).unwrap();
            }
            // The rejected record is still pending if the destination has accepted no batch since
            // the rejection.
            let mut found = ids_in_batches(&test_dir.data().failed);
            found.extend(ids_in_batches(&test_dir.data().spool));
            assert_eq!(found, [bad], "{case}");
            let billed = each_once(test_dir.receiver.billed(), &case);
            assert_eq!(billed, good.into_iter().collect(), "{case}");
            test_dir.assert_balanced(&case);
            let store = SpoolManager::on(Arc::clone(&disk) as Arc<dyn Disk>, test_dir.path());
            let failed = names(&test_dir.data().failed);
            let name = failed.iter().find(|name| crate::batch::is_batch_name(name));
            if let Some(name) = name {
                store.resend(name).unwrap();
            }
            assert_eq!(ids_in_batches(&test_dir.data().spool), [bad], "{case}");
            assert!(ids_in_batches(&test_dir.data().failed).is_empty(), "{case}");
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
        // Skip the test: the temporary directory is on the same file system as `/dev/shm`, and the
        // test knows no other file system.
        return;
    }
    let (archive_dir, failed) = (test_dir.data().archive, test_dir.data().failed);
    for dir in [&archive_dir, &failed] {
        let to = other.path().join(dir.file_name().unwrap());
        fs::create_dir(&to).unwrap();
        fs::remove_dir(dir).unwrap();
        symlink(&to, dir).unwrap();
    }
    test_dir.raw_file("jsonl", "junk\n");
    let mut ids: Vec<_> = test_dir.entry(6, true).iter().map(Record::id).collect();
    ids.sort_unstable();
    consolidate(test_dir.path(), &batches_of(4)).unwrap();
    archive(&SpoolManager::new(test_dir.path()), &Watch::silent()).unwrap();
    assert_eq!(ids_in_batches(&archive_dir), ids);
    assert_eq!(names(&test_dir.data().spool), [""; 0]);
    assert_eq!(names(&failed).len(), 2);
    test_dir.assert_balanced("at the end");
}
