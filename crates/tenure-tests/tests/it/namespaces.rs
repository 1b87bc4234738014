//! T1, T5: owners in another PID namespace.

use std::process::Command;

use tenure::Proof;
use tenure_tests::Owner;

use crate::{OWNER, Scene, root};

/// The owner program as the first process of a PID namespace of its own.
fn inside() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--mount-proc", "--kill-child", OWNER]);
    command
}

#[test]
fn an_owner_in_another_namespace_keeps_us_out_and_is_named_by_the_pid_it_has_here() {
    if !root("a PID namespace") {
        return;
    }
    let scene = Scene::new();
    let mut owner = Owner::start(inside(), scene.dir(), "k");
    let answer = owner.answer();
    assert!(answer.starts_with("held 1 "), "{answer}");
    let error = scene.take().unwrap_err();
    let holder = error.holder().unwrap();
    assert_eq!(holder.proof(), Proof::Verified, "{error}");
    let pid = holder.pid().unwrap();
    assert_ne!(pid, 1);
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(program.file_name().unwrap(), "owner");
    assert_eq!(owner.tell("release"), "released");
    drop(scene.take().unwrap());
}

#[test]
fn an_owner_that_cannot_be_seen_from_inside_is_not_robbed() {
    if !root("a PID namespace") {
        return;
    }
    let scene = Scene::new();
    let owner = scene.owner();
    let answer = Owner::start(inside(), scene.dir(), "k").answer();
    assert!(answer.starts_with("refused unknown"), "{answer}");
    assert!(answer.contains("not visible from here"), "{answer}");
    assert!(
        answer.contains(&format!("by its record pid {}", owner.pid())),
        "{answer}"
    );
}

#[test]
fn the_same_small_pid_in_two_containers_is_not_taken_for_the_same_process() {
    if !root("a PID namespace") {
        return;
    }
    let scene = Scene::new();
    let mut crashed = Owner::start(inside(), scene.dir(), "k");
    assert!(crashed.answer().starts_with("held 1 "));
    crashed.kill();
    // The stale record says pid 1; the newcomer is pid 1 as well.
    tenure_tests::eventually("the first container is gone", || {
        scene.status().holder().is_none()
    });
    let mut next = Owner::start(inside(), scene.dir(), "k");
    let answer = next.answer();
    assert!(answer.starts_with("held 1 "), "{answer}");
}
