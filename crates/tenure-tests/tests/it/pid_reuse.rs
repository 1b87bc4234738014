//! T1, T5, T8: the owner's pid is reused by another process while a child still has the lock.

use std::fs;

use crate::{Fixture, Orphan, UnrelatedProcess, root};

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// Starts a process with exactly this pid. Other processes may get the pid first, so several
/// attempts are made.
fn process_with(pid: u32) -> Option<UnrelatedProcess> {
    (0..200).find_map(|_| {
        fs::write(LAST_PID, (pid - 1).to_string()).ok()?;
        Some(UnrelatedProcess::new()).filter(|unrelated| unrelated.pid() == pid)
    })
}

#[test]
fn process_that_reuses_the_owners_pid_is_neither_named_nor_signalled() {
    if !root("choosing a process id") {
        return;
    }
    if !fs::exists(LAST_PID).unwrap() {
        return tenure_tests::skip("the next process id cannot be chosen here");
    }
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    let pid = owner.pid();
    let heir = Orphan::new(&owner.request("fork"));
    // Start times are counted in clock ticks, so the new process must start in a later tick.
    // Otherwise it could not be distinguished from the owner.
    std::thread::sleep(std::time::Duration::from_millis(30));
    owner.kill();
    let mut unrelated = process_with(pid).expect("the pid is reused");

    let error = fixture.try_acquire().unwrap_err();
    assert!(error.is_held(), "the child has the lock");
    assert_eq!(error.holder().unwrap().pid(), None, "{error}");
    assert_eq!(fixture.status().holder().unwrap().pid(), None);
    let error = fixture
        .store
        .stop(&fixture.key)
        .force(true)
        .run()
        .unwrap_err();
    assert!(error.is_stop_refused(), "{error}");
    assert!(error.to_string().contains("could not be proven"), "{error}");
    assert!(unrelated.is_running());

    drop(heir);
    tenure_tests::eventually("the key is free", || fixture.try_acquire().is_ok());
    assert!(unrelated.is_running());
}
