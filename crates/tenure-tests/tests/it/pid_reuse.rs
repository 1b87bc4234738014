//! T1, T5, T8: the owner's number, given to another process while its lock lives on in a child.

use std::fs;
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Scene, root};

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";

/// A process with exactly this id. Others may be quicker, so it is tried often.
fn process_with(pid: u32) -> Option<Child> {
    for _ in 0..200 {
        fs::write(LAST_PID, (pid - 1).to_string()).ok()?;
        let mut child = Command::new("sleep").arg("60").spawn().ok()?;
        if child.id() == pid {
            return Some(child);
        }
        child.kill().ok()?;
        child.wait().ok()?;
    }
    None
}

#[test]
fn a_stranger_with_the_owners_number_is_neither_named_nor_stopped() {
    if !root("choosing a process id") || !fs::exists(LAST_PID).unwrap() {
        return;
    }
    let scene = Scene::new();
    let mut owner = scene.owner();
    let pid = owner.pid();
    let heir = Pid::from_raw(owner.tell("fork").parse().unwrap()).unwrap();
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
    assert!(stranger.try_wait().unwrap().is_none(), "the stranger lives");

    kill_process(heir, Signal::KILL).unwrap();
    tenure_tests::eventually("the key is free", || scene.take().is_ok());
    assert!(
        stranger.try_wait().unwrap().is_none(),
        "the stranger still lives"
    );
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}
