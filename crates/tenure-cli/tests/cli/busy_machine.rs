//! A machine on which many other programs take and release locks, so that the kernel hands out its
//! table of locks in pieces, and lines move between them meanwhile.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::support::Place;
use crate::unix::flock;

/// More than fits into one piece of the table.
const LOCKS: usize = 200;

/// Programs that take and release locks without end.
pub(crate) struct Bustle {
    enough: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Bustle {
    pub(crate) fn start(here: &Place) -> Self {
        let enough = Arc::new(AtomicBool::new(false));
        let threads = [0, 1].map(|one| {
            let path = |number| here.path(&format!("busy-{one}-{number}"));
            let files: Vec<PathBuf> = (0..LOCKS).map(path).collect();
            let enough = Arc::clone(&enough);
            thread::spawn(move || lock_and_unlock(&files, &enough))
        });
        Self {
            enough,
            threads: threads.into(),
        }
    }
}

impl Drop for Bustle {
    fn drop(&mut self) {
        self.enough.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn lock_and_unlock(paths: &[PathBuf], enough: &AtomicBool) {
    let open = |path| File::create(path).expect("a file");
    let files: Vec<File> = paths.iter().map(open).collect();
    for turn in 0.. {
        if enough.load(Ordering::Relaxed) {
            return;
        }
        // A different number each time, so that the table's lines move.
        let some = &files[..=turn * 37 % LOCKS];
        for operation in [libc::LOCK_EX, libc::LOCK_UN] {
            for file in some {
                flock(file, operation);
            }
        }
    }
}

// Command: `status` proves what it says; the file is there all the time.
#[test]
fn an_owner_is_never_said_to_have_lost_its_file() {
    let here = Place::new();
    let owner = here.hold("x");
    let _bustle = Bustle::start(&here);
    for look in 0..200 {
        let status = here.status("x");
        assert_eq!(status["pid"], owner.wrapper, "look {look}: {status}");
        assert_eq!(status["file_gone"], false, "look {look}: {status}");
    }
}

// T3: the kernel decides, and it says held.
#[test]
fn a_key_that_an_unknown_process_holds_is_never_said_to_be_free() {
    let here = Place::new();
    here.leave_lock_file("x", "garbage");
    let _holder = here.hold_by_flock("x");
    let _bustle = Bustle::start(&here);
    for look in 0..10 {
        let status = here.status("x");
        assert_eq!(status["state"], "held", "look {look}: {status}");
    }
}

// T8, Command: exit 0 of `stop` means that the key is free.
#[test]
fn stop_never_claims_that_a_held_key_is_free() {
    let here = Place::new();
    here.leave_lock_file("x", "garbage");
    let mut holder = here.hold_by_flock("x");
    let _bustle = Bustle::start(&here);
    for attempt in 0..10 {
        let outcome = here.tenure("stop x").finish();
        assert_eq!(outcome.code, Some(1), "attempt {attempt}: {outcome:?}");
    }
    assert!(holder.is_running());
}
