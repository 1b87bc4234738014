//! T1: a lock file that is deleted, renamed or replaced while it is held.

use std::fs;

#[cfg(not(target_os = "macos"))]
use tenure::State;

use crate::Fixture;

#[cfg(target_os = "linux")]
fn assert_second_owner_is_refused_after(harm: impl Fn(&Fixture)) {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    assert_eq!(owner.request("lost"), "false");
    harm(&fixture);
    for _ in 0..3 {
        let error = fixture.try_acquire().expect_err("the owner is running");
        let holder = error.holder().unwrap();
        assert_eq!(holder.pid(), Some(owner.pid()), "{error}");
        assert!(holder.is_file_gone());
        assert_eq!(
            holder.record().unwrap().verb(),
            Some("test"),
            "the lock record is read through the owner's descriptor"
        );
    }
    assert!(matches!(fixture.status().state(), State::Held(holder) if holder.is_file_gone()));
    assert_eq!(owner.request("lost"), "true");
    assert_eq!(owner.request("release"), "released");
    drop(
        fixture
            .try_acquire()
            .expect("the key is free after the release"),
    );
}

#[cfg(target_os = "linux")]
#[test]
fn second_owner_is_refused_when_the_file_is_deleted() {
    assert_second_owner_is_refused_after(|fixture| fs::remove_file(fixture.file()).unwrap());
}

#[cfg(target_os = "linux")]
#[test]
fn second_owner_is_refused_when_the_file_is_renamed() {
    assert_second_owner_is_refused_after(|fixture| {
        fs::rename(fixture.file(), fixture.dir().join("moved")).unwrap();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn second_owner_is_refused_when_the_file_is_replaced() {
    assert_second_owner_is_refused_after(|fixture| {
        let new = fixture.dir().join("new");
        fs::write(&new, "{\"pid\":1}").unwrap();
        fs::rename(new, fixture.file()).unwrap();
    });
}

#[cfg(target_os = "linux")]
#[test]
fn release_keeps_a_file_that_replaced_the_lock_file() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    fs::remove_file(fixture.file()).unwrap();
    fs::write(fixture.file(), "another program's file").unwrap();
    assert_eq!(owner.request("release"), "released");
    assert_eq!(
        fs::read_to_string(fixture.file()).unwrap(),
        "another program's file"
    );
}

#[cfg(target_os = "linux")]
#[test]
fn refused_attempt_leaves_no_file() {
    let fixture = Fixture::new();
    let _owner = fixture.owner();
    fs::remove_file(fixture.file()).unwrap();
    fixture.try_acquire().unwrap_err();
    assert!(!fixture.file().exists());
}

#[cfg(target_os = "linux")]
#[test]
fn refusal_names_the_owner_when_its_connection_queue_is_full() {
    let fixture = Fixture::new();
    let owner = fixture.owner();
    fs::remove_file(fixture.file()).unwrap();
    // Every refusal leaves one connection in the queue of the deletion guard, which has room for
    // 1024. The last refusals find the queue full.
    for attempt in 0..1100 {
        let error = fixture.try_acquire().unwrap_err();
        assert_eq!(
            error.holder().unwrap().pid(),
            Some(owner.pid()),
            "attempt {attempt}"
        );
    }
}

/// The owner is delayed between removing its file and releasing the deletion guard. A claim in this
/// time must not report the file as lost.
#[cfg(target_os = "linux")]
#[test]
fn refusal_during_a_release_does_not_report_a_lost_file() {
    let fixture = Fixture::new();
    let mut slow = std::process::Command::new("strace");
    slow.args(["--quiet=all", "--output=/dev/null", "--trace=shutdown"])
        .args(["--inject=shutdown:delay_enter=2s", crate::OWNER]);
    let mut owner = tenure_tests::Owner::start(slow, fixture.dir(), "k");
    let answer = owner.answer();
    assert!(answer.starts_with("held "), "{answer}");
    owner.send("release");
    tenure_tests::eventually("the file is removed", || !fixture.file().exists());
    let error = fixture.try_acquire().expect_err("the lock is still held");
    let holder = error.holder().unwrap();
    let pid = answer.split(' ').nth(1).unwrap().parse().ok();
    assert_eq!(holder.pid(), pid, "{error}");
    assert!(!holder.is_file_gone(), "{error}");
    assert_eq!(owner.answer(), "released");
    drop(fixture.try_acquire().unwrap());
}

#[cfg(target_os = "macos")]
#[test]
fn lost_returns_true_for_an_owner_whose_file_was_deleted() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    assert_eq!(owner.request("lost"), "false");
    fs::remove_file(fixture.file()).unwrap();
    assert_eq!(owner.request("lost"), "true");
}

#[cfg(windows)]
#[test]
fn held_file_can_be_neither_deleted_nor_renamed() {
    let fixture = Fixture::new();
    let mut owner = fixture.owner();
    assert!(fs::remove_file(fixture.file()).is_err());
    assert!(fs::rename(fixture.file(), fixture.dir().join("moved")).is_err());
    assert_eq!(owner.request("lost"), "false");
    assert!(matches!(fixture.status().state(), State::Held(_)));
    assert_eq!(owner.request("release"), "released");
    assert!(!fixture.file().exists());
}
