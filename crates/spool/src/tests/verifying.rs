//! One flipped byte in any file that was written is found, and its file is named. (S12)

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use uuid::Uuid;

use super::crashing_disk::{Crash, CrashingDisk};
use super::place::Place;
use super::receiver::Act;
use crate::consolidate::{ConsolidatorState, Options, consolidate, consolidate_on};
use crate::delivery::{Answer, Watch, archive};
use crate::disk::Disk;
use crate::manager::SpoolManager;
use crate::verify::{Books, verify};

fn books(place: &Place) -> Books {
    verify(place.path(), &Watch::silent()).unwrap()
}

fn all_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let path = file.path();
        if path.is_dir() {
            found.extend(all_files(&path));
        } else {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// A data directory with a file of every kind that is ever written.
fn furnished() -> Place {
    let place = Place::new();
    let options = Options {
        batch_size: 3,
        ..Options::default()
    };
    let ids: Vec<_> = place.entry(9, true).iter().map(crate::Record::id).collect();
    place.entry(2, false); // torn: a piece of it is set aside
    place.junk("json", "no record");
    consolidate(place.path(), &options).unwrap();
    place.receiver.poison.lock().unwrap().push(ids[1]);
    place.deliver_all();
    // One that failed and waits, a pause, and something staged.
    place.entry(3, true);
    consolidate(place.path(), &options).unwrap();
    let later = Answer::later("429", true, Some(std::time::Duration::from_secs(3600)));
    place.receiver.then(Act::Refuse(later));
    place.deliver_all();
    // A file that was moved aside, one in the archive, and a set that was begun.
    fs::write(
        place
            .data()
            .staging
            .join(format!("{}.jsonl", Uuid::now_v7())),
        "junk\n",
    )
    .unwrap();
    place.entry(1, true);
    consolidate(place.path(), &options).unwrap();
    let store = SpoolManager::new(place.path());
    archive(&store, &Watch::silent()).unwrap();
    place.entry(4, true);
    let set = place.data().staging.join(".consolidation.set");
    for at in 0.. {
        let disk: Arc<dyn Disk> = Arc::new(CrashingDisk::new(Crash::Before, at));
        consolidate_on(
            &disk,
            place.path(),
            &options,
            &mut ConsolidatorState::default(),
        )
        .unwrap_err();
        if set.exists() {
            break;
        }
    }
    place.entry(2, false);
    place
}

#[test]
fn the_books_balance_and_say_what_is_where() {
    let place = furnished();
    let books = books(&place);
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!((books.staged, books.delivered), (22, 10));
    assert_eq!((books.pending, books.failed, books.archived), (9, 2, 1));
}

#[test]
fn no_flipped_byte_goes_unnoticed_in_any_file() {
    let place = furnished();
    let files = all_files(place.path());
    let kinds = [
        "_staging/",
        "spool/",
        "sent/",
        "failed/",
        "usage/",
        ".state.json",
        ".pause.json",
    ];
    for kind in kinds {
        let is_there = files
            .iter()
            .any(|path| path.to_string_lossy().contains(kind));
        assert!(is_there, "{kind}: {files:?}");
    }
    for path in files {
        if path.ends_with(".consolidation.lock") {
            continue; // For people; the set is what counts.
        }
        let bytes = fs::read(&path).unwrap();
        let torn = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |end| end + 1);
        for at in (0..bytes.len()).step_by(5).chain([torn.saturating_sub(1)]) {
            if at >= torn && path.extension().is_some_and(|ending| ending == "open") {
                continue; // The end of a line that was never acknowledged.
            }
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, flipped).unwrap();
            let books = books(&place);
            let named = books.problems.iter().any(|problem| problem.path == path);
            assert!(named, "{}: byte {at}: {:?}", path.display(), books.problems);
        }
        fs::write(&path, bytes).unwrap();
    }
    assert!(books(&place).balance(), "all is as it was");
}

#[test]
fn what_is_missing_is_named_to_the_line() {
    let place = furnished();
    let gone = all_files(&place.data().spool)
        .into_iter()
        .find(|path| crate::batch::is_batch_name(path.file_name().unwrap().to_str().unwrap()));
    fs::remove_file(gone.unwrap()).unwrap();
    let problems = books(&place).problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    let told = problems[0].to_string();
    assert!(
        told.ends_with(".jsonl: lines 1 to 3: in no batch"),
        "{told}"
    );
}

#[test]
fn what_is_there_twice_is_named_to_the_line() {
    let place = furnished();
    let data = place.data();
    let failed = all_files(&data.failed)
        .into_iter()
        .find(|path| crate::batch::is_batch_name(path.file_name().unwrap().to_str().unwrap()))
        .unwrap();
    let batch = crate::Batch::decode(&fs::read(&failed).unwrap()).unwrap();
    let part = crate::Part {
        from: 1,
        to: 2,
        ..batch.parts()[0].clone()
    };
    let records = vec![batch.records()[0].clone(), super::place::record()];
    let forged = crate::Batch::new(vec![part], records);
    fs::write(data.spool.join(forged.file_name()), forged.encode()).unwrap();
    let problems = books(&place).problems;
    let told: Vec<_> = problems.iter().map(ToString::to_string).collect();
    assert!(
        told.iter().any(|told| told.contains("in two batches")),
        "{told:?}"
    );
}

#[test]
fn locks_are_free_while_verify_reads_the_archive() {
    let place = Place::new();
    place.entry(9, true);
    consolidate(place.path(), &Options::default()).unwrap();
    let store = SpoolManager::new(place.path());
    archive(&store, &Watch::silent()).unwrap();
    // What was not archived is read under the locks.
    place.entry(2, true);
    // As after a run that was killed: where there is no lock file, nothing is locked.
    let data = place.data();
    let locks = [
        data.spool.join(".delivery.lock"),
        data.staging.join(".consolidation.lock"),
    ];
    for lock in &locks {
        fs::write(lock, "").unwrap();
    }
    let (free, busy) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    let progress = |_| {
        let is_free = |lock: &PathBuf| tenure::file::try_lock(&fs::File::open(lock).unwrap());
        let is_free = locks.iter().all(|lock| is_free(lock).unwrap());
        let count = if is_free { &free } else { &busy };
        count.set(count.get() + 1);
    };
    let watch = Watch {
        cancel: crate::Cancel::new(),
        progress: &progress,
    };
    let books = verify(place.path(), &watch).unwrap();
    assert!(books.balance(), "{:?}", books.problems);
    assert_eq!(free.get(), 1, "the batch in the archive");
    assert!(busy.get() > 0);
}

#[test]
fn a_batch_of_many_entries_is_noted_in_few_words_and_proven_to_the_line() {
    let place = Place::new();
    let mut records: Vec<_> = (0..150).map(|_| place.single()).collect();
    // Lines in between that are in no batch: something else, and a record that comes again.
    place.junk("json", "no record");
    place.junk("json", records[7].json());
    records.extend((0..100).map(|_| place.single()));
    records.extend(place.entry(30, true));
    consolidate(place.path(), &Options::default()).unwrap();
    place
        .receiver
        .poison
        .lock()
        .unwrap()
        .push(records[220].id());
    place.deliver_all();
    let sent = all_files(&place.data().sent).remove(0);
    let text = fs::read_to_string(&sent).unwrap();
    let longest = text.lines().map(str::len).max().unwrap();
    assert!(longest < 600, "{longest}: {text}");
    let found = books(&place);
    assert!(found.balance(), "{:?}", found.problems);
    assert_eq!((found.delivered, found.failed), (279, 2));

    // Without one of its lines the records are missing, and named.
    let gone = text.lines().nth(1).unwrap();
    assert!(gone.contains("delivered"), "{gone}");
    fs::write(&sent, text.replace(&format!("{gone}\n"), "")).unwrap();
    let problems = books(&place).problems;
    let missing = problems.iter().filter(|one| one.what == "in no batch");
    assert_eq!(missing.count(), 100, "{problems:?}");
}
