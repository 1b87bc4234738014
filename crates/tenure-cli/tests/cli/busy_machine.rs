//! Commands on a machine where other programs acquire and release many locks. The lock table
//! `/proc/locks` then takes several reads, and its lines move between the reads.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use crate::support::Sandbox;
use crate::unix::flock;

/// Maximum number of locks that each thread holds. So many lines of `/proc/locks` do not fit into
/// one read, and a line that moves between two reads can be missed.
const LOCKS: usize = 200;

/// Threads that acquire and release locks until they are dropped.
pub(crate) struct LockTraffic {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl LockTraffic {
    pub(crate) fn start(sandbox: &Sandbox) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = [0, 1].map(|one| {
            let path = |number| sandbox.path(&format!("busy-{one}-{number}"));
            let files: Vec<PathBuf> = (0..LOCKS).map(path).collect();
            let stop = Arc::clone(&stop);
            thread::spawn(move || lock_and_unlock(&files, &stop))
        });
        Self {
            stop,
            threads: threads.into(),
        }
    }
}

impl Drop for LockTraffic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn lock_and_unlock(paths: &[PathBuf], stop: &AtomicBool) {
    let open = |path| File::create(path).expect("a file");
    let files: Vec<File> = paths.iter().map(open).collect();
    for turn in 0.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        // The number of locks differs in every round, so that the lines of `/proc/locks` move.
        let some = &files[..=turn * 37 % LOCKS];
        for operation in [libc::LOCK_EX, libc::LOCK_UN] {
            for file in some {
                flock(file, operation);
            }
        }
    }
}

// The lock file exists all the time, so that a lost file would be a false report.
#[test]
fn status_never_reports_a_lost_file_under_lock_traffic() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let _bustle = LockTraffic::start(&sandbox);
    for query in 0..200 {
        let status = sandbox.status("x");
        assert_eq!(status["pid"], owner.wrapper, "query {query}: {status}");
        assert_eq!(status["file_gone"], false, "query {query}: {status}");
    }
}

// T3: the kernel's lock decides, and the key is held all the time.
#[test]
fn status_never_reports_a_held_key_as_free_under_lock_traffic() {
    let sandbox = Sandbox::new();
    sandbox.leave_lock_file("x", "garbage");
    let _holder = sandbox.hold_by_flock("x");
    let _bustle = LockTraffic::start(&sandbox);
    for query in 0..10 {
        let status = sandbox.status("x");
        assert_eq!(status["state"], "held", "query {query}: {status}");
    }
}

// T8: exit code 0 of `stop` means that the key is free.
#[test]
fn stop_never_reports_a_held_key_as_free_under_lock_traffic() {
    let sandbox = Sandbox::new();
    sandbox.leave_lock_file("x", "garbage");
    let mut holder = sandbox.hold_by_flock("x");
    let _bustle = LockTraffic::start(&sandbox);
    for attempt in 0..10 {
        let outcome = sandbox.tenure("stop x").finish();
        assert_eq!(outcome.code, Some(1), "attempt {attempt}: {outcome:?}");
    }
    assert!(holder.is_running());
}
