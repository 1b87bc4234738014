//! Owners that do not, or cannot, answer.

use crate::process::{Outcome, until};
use crate::support::{Owner, Place};
use crate::unix::{is_alive, send, state_of};

/// An owner whose command ignores requests to end.
fn stubborn(here: &Place) -> Owner {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let launch = here.tenure("run x -- sh -c").arg(script);
    let owner = here.hold_with("x", launch);
    owner.process.until_stdout_has("ready");
    owner
}

/// An owner whose wrapper was stopped by SIGSTOP.
fn suspended(here: &Place) -> Owner {
    let owner = here.hold("x");
    send(owner.wrapper, libc::SIGSTOP);
    if cfg!(target_os = "linux") {
        until("it is stopped", || state_of(owner.wrapper) == Some('T'));
    }
    owner
}

fn assert_free(here: &Place) {
    assert!(!here.has_lock_file("x"), "the file was left");
    let next = here.tenure("run x -- echo in").finish();
    assert_eq!(
        (next.code, next.text().as_str()),
        (Some(0), "in\n"),
        "{next:?}"
    );
}

fn assert_has(outcome: &Outcome, parts: &[&str]) {
    for part in parts {
        assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
    }
}

// Command: `--timeout`, then 1, and how to go on.
#[test]
fn an_owner_that_ignores_the_request_is_left_running_and_the_hint_is_force() {
    let here = Place::new();
    let owner = stubborn(&here);
    let outcome = here.tenure("stop --timeout 0.3 x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let pid = format!("pid {}", owner.wrapper);
    assert_has(
        &outcome,
        &["x is still held", &pid, "tenure stop --force x`"],
    );
    assert!(is_alive(owner.command) && is_alive(owner.wrapper));
    assert_eq!(here.status("x")["pid"], owner.wrapper);
}

// T8, Command: `--force` ends both, and the key is free.
#[test]
fn force_kills_the_command_and_the_wrapper() {
    let here = Place::new();
    let mut owner = stubborn(&here);
    let outcome = here.tenure("stop --timeout 0.2 --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("was killed"), "{outcome:?}");
    assert!(!is_alive(owner.command));
    until("the wrapper ends", || !owner.process.is_running());
    assert_free(&here);
}

// Command: force is for those that do not answer.
#[test]
fn force_asks_first() {
    let here = Place::new();
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let launch = here.tenure("run x -- sh -c").arg(script);
    let owner = here.hold_with("x", launch);
    owner.process.until_stdout_has("ready");
    let outcome = here.tenure("stop --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("stopped pid"), "{outcome:?}");
    assert_eq!(owner.process.finish().code, Some(5));
}

// T8: the wrapper is gone, the command ignores requests.
#[test]
fn force_kills_a_command_that_was_left_alone_and_does_not_answer() {
    let here = Place::new();
    let mut owner = stubborn(&here);
    owner.process.kill();
    let asked = here.tenure("stop --timeout 0.2 x").finish();
    assert_eq!(asked.code, Some(1), "{asked:?}");
    let outcome = here.tenure("stop --timeout 0.2 --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!is_alive(owner.command));
    assert_free(&here);
}

// Command: `status` says suspended; T1: it is still the owner.
#[test]
fn a_suspended_owner_is_shown_as_such_and_still_holds_the_key() {
    let here = Place::new();
    let owner = suspended(&here);
    let table = here.tenure("status x").finish();
    assert_eq!(table.code, Some(0));
    assert!(
        table.text().contains("held (verified, suspended)"),
        "{table:?}"
    );
    assert_eq!(here.status("x")["suspended"], true);
    assert_eq!(here.status("x")["pid"], owner.wrapper);
    let refused = here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
}

// Command: why nothing happens, and what would help.
#[test]
fn stopping_a_suspended_owner_says_how_to_wake_it() {
    let here = Place::new();
    let owner = suspended(&here);
    let outcome = here.tenure("stop --timeout 0.3 x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let wake = format!("kill -CONT {}", owner.wrapper);
    assert_has(&outcome, &["suspended", &wake, "tenure stop --force x`"]);
    assert!(is_alive(owner.command));
}

// T2: the request was not lost.
#[test]
fn a_suspended_owner_that_was_asked_ends_when_it_is_woken() {
    let here = Place::new();
    let owner = suspended(&here);
    let asked = here.tenure("stop --timeout 0.1 x").finish();
    assert_eq!(asked.code, Some(1), "{asked:?}");
    send(owner.wrapper, libc::SIGCONT);
    let outcome = owner.process.finish();
    assert_eq!(outcome.code, Some(128 + libc::SIGTERM), "{outcome:?}");
    assert_free(&here);
}

// T8, Command
#[test]
fn force_ends_a_suspended_owner_and_its_command() {
    let here = Place::new();
    let mut owner = suspended(&here);
    let outcome = here.tenure("stop --timeout 0.2 --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!is_alive(owner.command));
    until("the wrapper is gone", || !owner.process.is_running());
    assert_free(&here);
}
