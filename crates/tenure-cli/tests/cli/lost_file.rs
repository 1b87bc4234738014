//! The lock file is deleted, renamed or replaced while it is held: the deletion guard refuses a
//! second owner.

use std::fs;

use crate::process::Outcome;
use crate::support::{Owner, Sandbox};
use crate::unix::is_alive;

/// A change that another program makes to the lock file while it is held, such as its deletion.
type Harm = fn(&Sandbox);

fn delete(sandbox: &Sandbox) {
    fs::remove_file(sandbox.lock_file("x")).expect("the lock file exists");
}

fn rename(sandbox: &Sandbox) {
    fs::rename(sandbox.lock_file("x"), sandbox.locks().join("moved"))
        .expect("the lock file exists");
}

const REPLACEMENT: &str = r#"{"pid":2,"started_at":"2026-01-30T12:00:00Z"}"#;

fn replace(sandbox: &Sandbox) {
    let other = sandbox.path("other");
    fs::write(&other, REPLACEMENT).expect("another file");
    fs::rename(other, sandbox.lock_file("x")).expect("the lock file is replaced");
}

fn harmed(sandbox: &Sandbox, harm: Harm) -> Owner {
    let owner = sandbox.hold("x");
    harm(sandbox);
    owner
}

fn second_run(harm: Harm) -> (Outcome, u32) {
    let sandbox = Sandbox::new();
    let owner = harmed(&sandbox, harm);
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert!(is_alive(owner.command));
    (refused, owner.wrapper)
}

fn assert_refused_naming((refused, wrapper): &(Outcome, u32)) {
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    let named = format!("held by pid {wrapper} ");
    assert!(refused.stderr.contains(&named), "{refused:?}");
    assert!(
        refused.stderr.contains("deleted or replaced"),
        "{refused:?}"
    );
}

// T1, T5
#[test]
fn second_owner_is_refused_after_the_file_is_deleted() {
    assert_refused_naming(&second_run(delete));
}

// T1, T5
#[test]
fn second_owner_is_refused_after_the_file_is_renamed() {
    assert_refused_naming(&second_run(rename));
}

// T1, T5: another program has written a new file with a pid, which must not be reported as the
// owner.
#[test]
fn second_owner_is_refused_after_the_file_is_replaced() {
    assert_refused_naming(&second_run(replace));
}

// T1: the lock file is deleted together with its directory, and a second owner must still be
// refused.
#[test]
fn second_owner_is_refused_after_the_directory_is_deleted() {
    let (refused, _) = second_run(|sandbox| fs::remove_dir_all(sandbox.locks()).unwrap());
    assert_eq!(refused.code, Some(75), "a second owner: {refused:?}");
}

// T1: a second owner is refused even if it creates the lock directory anew.
#[test]
fn second_owner_is_refused_after_the_directory_is_renamed() {
    let (refused, _) =
        second_run(|sandbox| fs::rename(sandbox.locks(), sandbox.path("old")).unwrap());
    assert_eq!(refused.code, Some(75), "a second owner: {refused:?}");
}

fn assert_status_reports_file_gone(harm: Harm) {
    let sandbox = Sandbox::new();
    let owner = harmed(&sandbox, harm);
    let outcome = sandbox.tenure("status x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("file gone"), "{outcome:?}");
    let status = sandbox.status("x");
    assert_eq!(status["state"], "held");
    assert_eq!(status["file_gone"], true);
    assert_eq!(status["pid"], owner.wrapper);
    assert_eq!(status["record"]["command"]["pid"], owner.command);
}

#[test]
fn status_of_a_deleted_file_is_held_and_file_gone() {
    assert_status_reports_file_gone(delete);
}

fn delete_directory(sandbox: &Sandbox) {
    fs::remove_dir_all(sandbox.locks()).expect("the lock directory is removed");
}

#[test]
fn status_of_a_deleted_directory_is_held_and_file_gone() {
    assert_status_reports_file_gone(delete_directory);
}

// T8
#[test]
fn stop_ends_the_owner_after_the_directory_is_deleted() {
    assert_stop_ends_the_owner(delete_directory);
}

#[test]
fn status_of_a_renamed_file_is_held_and_file_gone() {
    assert_status_reports_file_gone(rename);
}

#[test]
fn status_of_a_replaced_file_is_held_and_file_gone() {
    assert_status_reports_file_gone(replace);
}

fn assert_stop_ends_the_owner(harm: Harm) {
    let sandbox = Sandbox::new();
    let owner = harmed(&sandbox, harm);
    let stopped = sandbox.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
    sandbox.assert_free();
}

// T8
#[test]
fn stop_ends_the_owner_of_a_deleted_file() {
    assert_stop_ends_the_owner(delete);
}

// T8
#[test]
fn stop_ends_the_owner_of_a_renamed_file() {
    assert_stop_ends_the_owner(rename);
}

// T8
#[test]
fn stop_ends_the_owner_of_a_replaced_file() {
    assert_stop_ends_the_owner(replace);
}

// T6: release removes the file only if the path still leads to the inode that the owner has locked.
#[test]
fn release_keeps_a_file_that_replaced_the_lock_file() {
    let sandbox = Sandbox::new();
    let owner = harmed(&sandbox, replace);
    crate::unix::send(owner.wrapper, libc::SIGTERM);
    owner.process.finish();
    let left = fs::read_to_string(sandbox.lock_file("x")).unwrap();
    assert_eq!(left, REPLACEMENT);
}

// T1, T6: a refused attempt leaves no new file.
#[test]
fn refused_run_leaves_no_new_file_after_a_deletion() {
    let sandbox = Sandbox::new();
    let _owner = harmed(&sandbox, delete);
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(!sandbox.has_lock_file("x"));
}
