//! The lock file is deleted, renamed or replaced while it is held: the deletion guard holds.

use std::fs;

use crate::process::Outcome;
use crate::support::{Owner, Place};
use crate::unix::is_alive;

/// Does something to the lock file from outside.
type Harm = fn(&Place);

fn delete(here: &Place) {
    fs::remove_file(here.lock_file("x")).expect("it was there");
}

fn rename(here: &Place) {
    fs::rename(here.lock_file("x"), here.locks().join("moved")).expect("it was there");
}

const REPLACEMENT: &str = r#"{"pid":2,"started_at":"2026-01-30T12:00:00Z"}"#;

fn replace(here: &Place) {
    let other = here.path("other");
    fs::write(&other, REPLACEMENT).expect("another file");
    fs::rename(other, here.lock_file("x")).expect("a new place for it");
}

fn harmed(here: &Place, harm: Harm) -> Owner {
    let owner = here.hold("x");
    harm(here);
    owner
}

fn second_run(harm: Harm) -> (Outcome, u32) {
    let here = Place::new();
    let owner = harmed(&here, harm);
    let refused = here.tenure("run x -- echo in").finish();
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
fn a_deleted_file_lets_nobody_in() {
    assert_refused_naming(&second_run(delete));
}

// T1, T5
#[test]
fn a_renamed_file_lets_nobody_in() {
    assert_refused_naming(&second_run(rename));
}

// T1, T5: nor is the pid in the new file believed.
#[test]
fn a_replaced_file_lets_nobody_in() {
    assert_refused_naming(&second_run(replace));
}

// T1: whoever deletes the whole directory deletes the file in it.
#[test]
fn a_deleted_directory_lets_nobody_in() {
    let (refused, _) = second_run(|here| fs::remove_dir_all(here.locks()).unwrap());
    assert_eq!(refused.code, Some(75), "a second owner: {refused:?}");
}

// T1: the same for a directory that was moved out of the way.
#[test]
fn a_renamed_directory_lets_nobody_in() {
    let (refused, _) = second_run(|here| fs::rename(here.locks(), here.path("old")).unwrap());
    assert_eq!(refused.code, Some(75), "a second owner: {refused:?}");
}

fn assert_status_says_gone(harm: Harm) {
    let here = Place::new();
    let owner = harmed(&here, harm);
    let outcome = here.tenure("status x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("file gone"), "{outcome:?}");
    let status = here.status("x");
    assert_eq!(status["state"], "held");
    assert_eq!(status["file_gone"], true);
    assert_eq!(status["pid"], owner.wrapper);
    assert_eq!(status["record"]["command"]["pid"], owner.command);
}

// Command: `status` proves what it says.
#[test]
fn status_of_a_deleted_file_says_held_and_gone() {
    assert_status_says_gone(delete);
}

fn delete_directory(here: &Place) {
    fs::remove_dir_all(here.locks()).expect("it is removed");
}

// Command: not even then does it say that the key is free.
#[test]
fn status_of_a_deleted_directory_says_held_and_gone() {
    assert_status_says_gone(delete_directory);
}

// T8
#[test]
fn stop_works_when_the_directory_was_deleted() {
    assert_stop_works(delete_directory);
}

// Command
#[test]
fn status_of_a_renamed_file_says_held_and_gone() {
    assert_status_says_gone(rename);
}

// Command
#[test]
fn status_of_a_replaced_file_says_held_and_gone() {
    assert_status_says_gone(replace);
}

fn assert_stop_works(harm: Harm) {
    let here = Place::new();
    let owner = harmed(&here, harm);
    let stopped = here.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
    let next = here.tenure("run x -- echo in").finish();
    assert_eq!(
        (next.code, next.text().as_str()),
        (Some(0), "in\n"),
        "{next:?}"
    );
}

// T8
#[test]
fn the_owner_of_a_deleted_file_can_be_stopped() {
    assert_stop_works(delete);
}

// T8
#[test]
fn the_owner_of_a_renamed_file_can_be_stopped() {
    assert_stop_works(rename);
}

// T8
#[test]
fn the_owner_of_a_replaced_file_can_be_stopped() {
    assert_stop_works(replace);
}

// T6: only if the path is still our inode.
#[test]
fn an_owner_does_not_remove_a_file_that_replaced_its_own() {
    let here = Place::new();
    let owner = harmed(&here, replace);
    crate::unix::send(owner.wrapper, libc::SIGTERM);
    owner.process.finish();
    let left = fs::read_to_string(here.lock_file("x")).unwrap();
    assert_eq!(left, REPLACEMENT);
}

// T1, T6: a refused newcomer leaves nothing that was not there before.
#[test]
fn a_refused_run_does_not_put_a_new_file_in_place_of_a_deleted_one() {
    let here = Place::new();
    let _owner = harmed(&here, delete);
    let refused = here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert!(!here.has_lock_file("x"));
}
