//! T1, T5, T8: the owner's number, given to another process while its lock lives on in a child.

use std::fs;

use crate::{Orphan, Scene, Stranger, root};

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// A process with exactly this id. Others may be quicker, so it is tried often.
fn process_with(pid: u32) -> Option<Stranger> {
    (0..200).find_map(|_| {
        fs::write(LAST_PID, (pid - 1).to_string()).ok()?;
        Some(Stranger::new()).filter(|stranger| stranger.pid() == pid)
    })
}

#[test]
fn a_stranger_with_the_owners_number_is_neither_named_nor_stopped() {
    if !root("choosing a process id") {
        return;
    }
    if !fs::exists(LAST_PID).unwrap() {
        return tenure_tests::skip("the next process id cannot be chosen here");
    }
    let scene = Scene::new();
    let mut owner = scene.owner();
    let pid = owner.pid();
    let heir = Orphan::new(&owner.tell("fork"));
    // Another tick of the clock in which start times are counted.
    std::thread::sleep(std::time::Duration::from_millis(30));
    owner.kill();
    let mut stranger = process_with(pid).expect("the number comes round");

    let error = scene.take().unwrap_err();
    assert!(error.is_held(), "the child has the lock");
    assert_eq!(error.holder().unwrap().pid(), None, "{error}");
    assert_eq!(scene.status().holder().unwrap().pid(), None);
    let error = scene.store.stop(&scene.key).force(true).run().unwrap_err();
    assert!(error.is_stop_refused(), "{error}");
    assert!(error.to_string().contains("another process now"), "{error}");
    assert!(stranger.lives());

    drop(heir);
    tenure_tests::eventually("the key is free", || scene.take().is_ok());
    assert!(stranger.lives());
}
