//! A fence that is lost ends a run: nothing is changed or sent afterwards, and the next run continues.
//! (promises S5, S11)

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::test_data_dir::{TestDataDir, batches_of, each_once};
use crate::batch::Batch;
use crate::consolidate::Consolidator;
use crate::delivery::{Answer, DeliveryOptions, RunError, Sink, Watch};
use crate::disk::{Disk, RealDisk};
use crate::fence::Fence;
use crate::manager::{DeliveryState, SpoolManager};
use crate::run::{Destination, Runner};
use crate::{change_destination, claim_destination, consolidate, destination};

/// Length of the reserve file. The test writes it often, so it is small.
const RESERVE: usize = 70_000;

/// Changes of the disk and sent batches. The fence is lost after a given number of them, and later
/// ones are violations.
#[derive(Debug, Default)]
struct Changes {
    count: AtomicUsize,
    lost_after: usize,
    is_lost: AtomicBool,
    violations: Mutex<Vec<String>>,
}

impl Changes {
    fn add(&self, change: &str) {
        if self.is_lost.load(Ordering::Relaxed) {
            self.violations.lock().unwrap().push(change.to_owned());
        }
        if self.count.fetch_add(1, Ordering::Relaxed) + 1 == self.lost_after {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }

    fn fence(self: &Arc<Self>) -> Fence {
        let changes = Arc::clone(self);
        Fence::new(move || !changes.is_lost.load(Ordering::Relaxed))
    }
}

#[derive(Debug)]
struct ObservedDisk(Arc<Changes>);

impl Disk for ObservedDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.add("make_dir");
        RealDisk.make_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.0.add("create");
        RealDisk.create(path)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.add("write_at");
        RealDisk.write_at(file, at, bytes)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        self.0.add("append");
        RealDisk.append(file, bytes)
    }

    fn sync(&self, _file: &File) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.0.add("rename");
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.0.add("remove");
        RealDisk.remove(path)
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        self.0.add("truncate");
        RealDisk.truncate(file, length)
    }

    fn before_record(&self) -> io::Result<()> {
        self.0.add("lock record");
        Ok(())
    }
}

struct ObservedSink<'a> {
    to: &'a dyn Sink,
    changes: &'a Changes,
}

impl Sink for ObservedSink<'_> {
    fn name(&self) -> &str {
        self.to.name()
    }

    fn send(&self, batch: &Batch) -> Answer {
        self.changes.add("send");
        self.to.send(batch)
    }
}

#[test]
fn run_changes_and_sends_nothing_after_its_fence_is_lost_at_any_operation() {
    for lost_after in 1.. {
        let case = format!("lost after {lost_after}");
        let test_dir = TestDataDir::new();
        let mut records = test_dir.entry(5, true);
        records.extend(test_dir.entry(3, false));
        records.push(test_dir.record_file());
        // The receiver rejects one record, so that the first run also splits a batch, and the fence
        // is lost during a split as well.
        let poison = records[1].id();
        test_dir.receiver.poison.lock().unwrap().push(poison);
        let changes = Arc::new(Changes {
            lost_after,
            ..Changes::default()
        });
        let sink = ObservedSink {
            to: &test_dir.receiver,
            changes: &changes,
        };
        let disk = Arc::new(ObservedDisk(Arc::clone(&changes)));
        let mut fenced = Runner::on(disk, test_dir.path()).fenced(changes.fence());
        fenced.reserve = RESERVE;
        let (options, delivery) = (batches_of(4), DeliveryOptions::default());
        let watch = Watch::silent();
        let run = fenced.run(&options, &delivery, Destination::To(&sink), &watch);
        let is_lost = changes.is_lost.load(Ordering::Relaxed);
        let is_last = changes.count.load(Ordering::Relaxed) == lost_after;
        // A run checks its fence before each change. If the fence is lost at the last change, no
        // check follows, and the run may succeed.
        assert!(
            matches!(run, Err(RunError::Fenced)) == is_lost || is_last && run.is_ok(),
            "{case}: {run:?}"
        );
        let violations = changes.violations.lock().unwrap().join(", ");
        assert_eq!(violations, "", "{case}");
        // A second runner, without a fence, continues the work as another process would. The
        // receiver accepts every record by now.
        test_dir.receiver.poison.lock().unwrap().clear();
        let mut next = Runner::new(test_dir.path());
        next.reserve = RESERVE;
        let to = Destination::To(&test_dir.receiver);
        let retry = DeliveryOptions {
            ignore_backoff: true,
            ..DeliveryOptions::default()
        };
        let run = next.run(&options, &retry, to, &watch).unwrap();
        assert!(run.trouble.is_none(), "{case}: {run:?}");
        let mut billed = each_once(test_dir.batched(), &case);
        // The rejected record need not be delivered: the first run may have moved it to `failed/`
        // before the fence was lost.
        billed.insert(poison);
        let expected = records.iter().map(crate::Record::id).collect();
        assert_eq!(billed, expected, "{case}");
        test_dir.assert_balanced(&case);
        if !is_lost {
            assert!(lost_after > 60, "too few changes: {lost_after}");
            break;
        }
    }
}

#[test]
fn consolidator_changes_nothing_after_its_fence_is_lost() {
    let test_dir = TestDataDir::new();
    test_dir.entry(5, true);
    let mut consolidator = Consolidator::new(test_dir.path()).fenced(Fence::new(|| false));
    let error = consolidator.next(&batches_of(4)).unwrap_err();
    assert!(matches!(RunError::from(error), RunError::Fenced));
    assert_eq!(
        super::test_data_dir::names(&test_dir.data().staging).len(),
        1
    );
    assert_eq!(super::test_data_dir::names(&test_dir.data().spool).len(), 0);
}

#[test]
fn change_of_the_destination_changes_nothing_after_its_fence_is_lost_at_any_operation() {
    const OLD: &str = "https://old.example/";
    for to in [None, Some("https://new.example/")] {
        for lost_after in 1.. {
            let case = format!("to {to:?}, lost after {lost_after}");
            let test_dir = TestDataDir::new();
            claim_destination(test_dir.path(), Some(OLD)).unwrap();
            test_dir.entry(3, true);
            consolidate(test_dir.path(), &batches_of(1)).unwrap();
            let plain = SpoolManager::new(test_dir.path());
            let names = plain.pending(None, 10).unwrap();
            // The first batch may have reached the old destination, the second certainly has not,
            // and the third was never sent. Only the first may move to `failed/`.
            for (name, unknown) in names.iter().zip([true, false]) {
                let state = DeliveryState {
                    attempts: 1,
                    unknown,
                    ..DeliveryState::default()
                };
                plain.set_state(name, &state).unwrap();
            }
            let changes = Arc::new(Changes {
                lost_after,
                ..Changes::default()
            });
            let disk = Arc::new(ObservedDisk(Arc::clone(&changes)));
            let spool = SpoolManager::on(disk, test_dir.path()).fenced(changes.fence());
            let changed = change_destination(&spool, to);
            let is_lost = changes.is_lost.load(Ordering::Relaxed);
            let is_last = changes.count.load(Ordering::Relaxed) == lost_after;
            assert!(
                matches!(changed, Err(RunError::Fenced)) == is_lost || is_last && changed.is_ok(),
                "{case}: {changed:?}"
            );
            assert_eq!(changes.violations.lock().unwrap().join(", "), "", "{case}");
            // A repetition without a fence must complete the interrupted change.
            change_destination(&SpoolManager::new(test_dir.path()), to).unwrap();
            assert_eq!(destination(test_dir.path()).unwrap().as_deref(), to);
            let plain = SpoolManager::new(test_dir.path());
            assert_eq!(plain.pending(None, 10).unwrap(), names[1..], "{case}");
            test_dir.assert_balanced(&case);
            if !is_lost {
                assert!(lost_after > 6, "too few changes: {lost_after}");
                break;
            }
        }
    }
}
