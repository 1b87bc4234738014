//! T1: a lock file that is deleted, renamed or replaced while it is held.

use std::fs;

#[cfg(not(target_os = "macos"))]
use tenure::State;

use crate::Scene;

#[cfg(target_os = "linux")]
fn second_is_refused_after(harm: impl Fn(&Scene)) {
    let scene = Scene::new();
    let mut owner = scene.owner();
    assert_eq!(owner.tell("lost"), "false");
    harm(&scene);
    for _ in 0..3 {
        let error = scene.take().expect_err("the owner lives");
        let holder = error.holder().unwrap();
        assert_eq!(holder.pid(), Some(owner.pid()), "{error}");
        assert!(holder.is_file_gone());
        assert_eq!(
            holder.record().unwrap().verb(),
            Some("test"),
            "read through the owner itself"
        );
    }
    assert!(matches!(scene.status().state(), State::Held(holder) if holder.is_file_gone()));
    assert_eq!(owner.tell("lost"), "true");
    assert_eq!(owner.tell("release"), "released");
    drop(scene.take().expect("free after the release"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_owner_is_refused_when_the_file_is_deleted() {
    second_is_refused_after(|scene| fs::remove_file(scene.file()).unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_owner_is_refused_when_the_file_is_renamed() {
    second_is_refused_after(|scene| fs::rename(scene.file(), scene.dir().join("moved")).unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn a_second_owner_is_refused_when_the_file_is_replaced() {
    second_is_refused_after(|scene| {
        let new = scene.dir().join("new");
        fs::write(&new, "{\"pid\":1}").unwrap();
        fs::rename(new, scene.file()).unwrap();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn an_owner_never_removes_a_file_that_took_the_place_of_its_own() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    fs::remove_file(scene.file()).unwrap();
    fs::write(scene.file(), "somebody else's").unwrap();
    assert_eq!(owner.tell("release"), "released");
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), "somebody else's");
}

#[cfg(target_os = "linux")]
#[test]
fn a_refused_attempt_leaves_no_file_behind() {
    let scene = Scene::new();
    let _owner = scene.owner();
    fs::remove_file(scene.file()).unwrap();
    scene.take().unwrap_err();
    assert!(!scene.file().exists());
}

#[cfg(target_os = "linux")]
#[test]
fn the_owner_is_still_named_when_the_line_of_waiters_is_full() {
    let scene = Scene::new();
    let owner = scene.owner();
    fs::remove_file(scene.file()).unwrap();
    // Every refusal leaves one more in the line, which has room for 1024.
    for attempt in 0..1100 {
        let error = scene.take().unwrap_err();
        assert_eq!(
            error.holder().unwrap().pid(),
            Some(owner.pid()),
            "attempt {attempt}"
        );
    }
}

/// The owner is held up between removing its file and letting go of the guard.
#[cfg(target_os = "linux")]
#[test]
fn refusal_during_a_release_does_not_say_that_the_file_is_gone() {
    let scene = Scene::new();
    let mut slow = std::process::Command::new("strace");
    slow.args(["--quiet=all", "--output=/dev/null", "--trace=shutdown"])
        .args(["--inject=shutdown:delay_enter=2s", crate::OWNER]);
    let mut owner = tenure_tests::Owner::start(slow, scene.dir(), "k");
    let answer = owner.answer();
    assert!(answer.starts_with("held "), "{answer}");
    owner.order("release");
    tenure_tests::eventually("the file is removed", || !scene.file().exists());
    let error = scene.take().expect_err("the lock is not released yet");
    let holder = error.holder().unwrap();
    let pid = answer.split(' ').nth(1).unwrap().parse().ok();
    assert_eq!(holder.pid(), pid, "{error}");
    assert!(!holder.is_file_gone(), "{error}");
    assert_eq!(owner.answer(), "released");
    drop(scene.take().unwrap());
}

#[cfg(target_os = "macos")]
#[test]
fn the_owner_can_tell_that_it_lost_its_file() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    assert_eq!(owner.tell("lost"), "false");
    fs::remove_file(scene.file()).unwrap();
    assert_eq!(owner.tell("lost"), "true");
}

#[cfg(windows)]
#[test]
fn a_held_file_can_be_neither_deleted_nor_renamed() {
    let scene = Scene::new();
    let mut owner = scene.owner();
    assert!(fs::remove_file(scene.file()).is_err());
    assert!(fs::rename(scene.file(), scene.dir().join("moved")).is_err());
    assert_eq!(owner.tell("lost"), "false");
    assert!(matches!(scene.status().state(), State::Held(_)));
    assert_eq!(owner.tell("release"), "released");
    assert!(!scene.file().exists());
}
