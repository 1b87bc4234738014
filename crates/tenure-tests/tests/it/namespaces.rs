//! T1, T5: owners in another PID namespace.

use std::process::Command;

use tenure::Proof;
use tenure_tests::Owner;
use tenure_tests::run_as::RunAs;

use crate::{Fixture, OWNER, root};

fn inside() -> Command {
    RunAs::root().in_pid_namespace().command(OWNER)
}

#[test]
fn owner_in_another_pid_namespace_is_named_by_its_local_pid() {
    if !root("a PID namespace") {
        return;
    }
    let fixture = Fixture::new();
    let mut owner = Owner::start(inside(), fixture.dir(), "k");
    let answer = owner.answer();
    assert!(answer.starts_with("held 1 "), "{answer}");
    let error = fixture.try_acquire().unwrap_err();
    let holder = error.holder().unwrap();
    assert_eq!(holder.proof(), Proof::Verified, "{error}");
    let pid = holder.pid().unwrap();
    assert_ne!(pid, 1);
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(program.file_name().unwrap(), "owner");
    assert_eq!(owner.request("release"), "released");
    drop(fixture.try_acquire().unwrap());
}

#[test]
fn owner_outside_of_a_pid_namespace_excludes_claims_inside() {
    if !root("a PID namespace") {
        return;
    }
    let fixture = Fixture::new();
    let owner = fixture.owner();
    let answer = Owner::start(inside(), fixture.dir(), "k").answer();
    assert!(answer.starts_with("refused unknown"), "{answer}");
    assert!(answer.contains("not visible from here"), "{answer}");
    assert!(
        answer.contains(&format!(
            "unverified pid {} from the lock record",
            owner.pid()
        )),
        "{answer}"
    );
}

#[test]
fn equal_pids_in_two_containers_are_different_processes() {
    if !root("a PID namespace") {
        return;
    }
    let fixture = Fixture::new();
    let mut crashed = Owner::start(inside(), fixture.dir(), "k");
    assert!(crashed.answer().starts_with("held 1 "));
    crashed.kill();
    // The stale lock record names pid 1, and the next owner has pid 1 too. They are different
    // processes, so the next owner must acquire the key.
    tenure_tests::eventually("the first container has exited", || {
        fixture.status().holder().is_none()
    });
    let mut next = Owner::start(inside(), fixture.dir(), "k");
    let answer = next.answer();
    assert!(answer.starts_with("held 1 "), "{answer}");
}
