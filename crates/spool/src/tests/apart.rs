//! Directories on different file systems: what cannot be renamed is copied, and a crash at any act
//! leaves it in one place in the end. (S8)

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::crash::options;
use super::crashing_disk::{CRASHES, CrashingDisk, Event};
use super::place::{Place, names};
use crate::consolidate::{ConsolidatorState, consolidate, consolidate_on};
use crate::delivery::{Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::verify::verify;

fn apart(events: Vec<(usize, Event)>) -> Arc<CrashingDisk> {
    let mut disk = CrashingDisk::with(events);
    disk.is_apart = true;
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
fn filled() -> (Place, Uuid, Vec<Uuid>) {
    let place = Place::new();
    place.junk("jsonl", "junk\n");
    let good: Vec<_> = place.entry(4, true).iter().map(Record::id).collect();
    let bad = place.single().id();
    (place, bad, good)
}

fn work(place: &Place, disk: &Arc<CrashingDisk>) {
    let on = Arc::clone(disk) as Arc<dyn Disk>;
    let _ = consolidate_on(
        &on,
        place.path(),
        &options(),
        &mut ConsolidatorState::default(),
    );
    let store = SpoolManager::on(Arc::clone(&on), place.path());
    let _ = archive(&store, &Watch::silent());
}

#[test]
fn batches_and_junk_are_in_one_place_whatever_act_a_copy_crashes_at() {
    for crash in CRASHES {
        for at in 0.. {
            let (place, bad, mut good) = filled();
            let disk = apart(vec![(at, Event::Crash(crash))]);
            work(&place, &disk);
            let has_crashed = disk.has_crashed();
            disk.restart();
            disk.heal();
            work(&place, &disk);
            let what = format!("{crash:?} at {at}");
            good.push(bad);
            good.sort_unstable();
            assert_eq!(ids_in(&place.data().archive), good, "{what}");
            assert_eq!(names(&place.data().spool), [""; 0], "{what}");
            let mut junk = names(&place.data().failed);
            // A journal that was torn leaves a piece of itself there, too.
            junk.retain(|name| !name.contains(".torn"));
            assert_eq!(junk.len(), 2, "{what}: the junk and its reason: {junk:?}");
            let books = verify(place.path(), &Watch::silent()).unwrap();
            assert!(books.balance(), "{what}: {:?}", books.problems);
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn a_batch_that_fails_is_in_one_place_whatever_act_its_move_crashes_at() {
    for crash in CRASHES {
        for at in 0.. {
            let (place, bad, good) = filled();
            consolidate(place.path(), &options()).unwrap();
            place.receiver.poison.lock().unwrap().push(bad);
            let disk = apart(vec![(at, Event::Crash(crash))]);
            let _ = place.deliver(&(Arc::clone(&disk) as Arc<dyn Disk>));
            let has_crashed = disk.has_crashed();
            disk.restart();
            disk.heal();
            let what = format!("{crash:?} at {at}");
            let books = verify(place.path(), &Watch::silent()).unwrap();
            assert!(books.balance(), "{what}: {:?}", books.problems);
            // Delivery may pause until it is known that the destination accepts anything.
            for _ in 0..4 {
                place.receiver.clock.forward(Duration::from_secs(24 * 3600));
                let on = Arc::clone(&disk) as Arc<dyn Disk>;
                place.deliver(&on).unwrap();
            }
            // It waits if the destination has accepted nothing since it was asked last.
            let mut places = ids_in(&place.data().failed);
            places.extend(ids_in(&place.data().spool));
            assert_eq!(places, [bad], "{what}");
            let billed = place.receiver.billed();
            assert!(billed.values().all(|times| *times == 1), "{what}");
            let (billed, good): (BTreeSet<_>, BTreeSet<_>) =
                (billed.into_keys().collect(), good.into_iter().collect());
            assert_eq!(billed, good, "{what}");
            let books = verify(place.path(), &Watch::silent()).unwrap();
            assert!(books.balance(), "{what}: {:?}", books.problems);
            // And back again.
            let store = SpoolManager::on(Arc::clone(&disk) as Arc<dyn Disk>, place.path());
            let failed = names(&place.data().failed);
            let name = failed.iter().find(|name| crate::batch::is_batch_name(name));
            if let Some(name) = name {
                store.resend(name).unwrap();
            }
            assert_eq!(ids_in(&place.data().spool), [bad], "{what}");
            assert!(ids_in(&place.data().failed).is_empty(), "{what}");
            if !has_crashed {
                break;
            }
        }
    }
}

#[test]
fn an_archive_on_another_file_system_is_filled() {
    let place = Place::new();
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    let here = fs::metadata(place.path()).unwrap().dev();
    if fs::metadata(other.path()).unwrap().dev() == here {
        // Temporary files are there already: then the tests above are what there is.
        return;
    }
    let (archive_dir, failed) = (place.data().archive, place.data().failed);
    for dir in [&archive_dir, &failed] {
        let to = other.path().join(dir.file_name().unwrap());
        fs::create_dir(&to).unwrap();
        fs::remove_dir(dir).unwrap();
        symlink(&to, dir).unwrap();
    }
    place.junk("jsonl", "junk\n");
    let mut ids: Vec<_> = place.entry(6, true).iter().map(Record::id).collect();
    ids.sort_unstable();
    consolidate(place.path(), &options()).unwrap();
    archive(&SpoolManager::new(place.path()), &Watch::silent()).unwrap();
    assert_eq!(ids_in(&archive_dir), ids);
    assert_eq!(names(&place.data().spool), [""; 0]);
    assert_eq!(names(&failed).len(), 2);
    let books = verify(place.path(), &Watch::silent()).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
}
