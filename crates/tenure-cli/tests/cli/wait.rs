//! `run --wait`: get in after the other one, at once.

use std::fs;
use std::process::Stdio;

use crate::process::{Launch, until};
use crate::support::{Owner, Place};
use crate::unix::{is_alive, send};

/// An owner that ends when its input does.
fn hold_until_told(here: &Place, key: &str) -> Owner {
    let launch = here.tenure(&format!("run {key} -- cat"));
    here.hold_with(key, launch.stdin(Stdio::piped()))
}

fn waiter(here: &Place) -> Launch {
    here.tenure("run --wait x -- echo in")
}

// T2: no timeout, no polling by hand.
#[test]
fn a_waiter_gets_in_after_the_owner_has_ended() {
    let here = Place::new();
    let owner = hold_until_told(&here, "x");
    let waiter = waiter(&here).start();
    waiter.until_stderr_has("waiting for x");
    assert_eq!(waiter.stdout(), "", "it got in too early");
    assert_eq!(owner.process.finish().code, Some(0));
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T5: never wait without saying for whom.
#[test]
fn a_waiter_says_for_whom_it_waits() {
    let here = Place::new();
    let owner = here.hold("x");
    let waiter = waiter(&here).start();
    waiter.until_stderr_has(&format!("waiting for x, held by pid {}", owner.wrapper));
    assert_eq!(waiter.stdout(), "");
}

// Command: `--quiet`
#[test]
fn a_quiet_waiter_says_nothing() {
    let here = Place::new();
    let owner = here.hold("x");
    let refused = here.tenure("run --quiet --wait=0.2 x -- echo in").finish();
    assert_eq!(refused.code, Some(75));
    assert_eq!((refused.text(), refused.stderr), Default::default());
    drop(owner);
}

// T5, Command: 75 after the time is up.
#[test]
fn a_waiter_whose_time_is_up_exits_with_75_and_says_who_was_in_the_way() {
    let here = Place::new();
    let owner = here.hold("x");
    let refused = here.tenure("run --wait=0.3 x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    let (_, end) = refused.stderr.split_once("did not become free").unwrap();
    assert!(
        end.contains(&format!("pid {}", owner.wrapper)),
        "{refused:?}"
    );
    assert!(end.contains("tenure stop x`"), "{refused:?}");
}

// Command: `-E` is for waiters too.
#[test]
fn a_waiter_whose_time_is_up_exits_with_the_chosen_code() {
    let here = Place::new();
    let _owner = here.hold("x");
    let refused = here.tenure("run --wait=0 -E 12 x -- echo in").finish();
    assert_eq!((refused.code, refused.text()), (Some(12), String::new()));
}

// T2: after any signal, at once.
#[test]
fn a_waiter_gets_in_when_the_owner_is_killed() {
    let here = Place::new();
    let mut owner = here.hold("x");
    let waiter = waiter(&here).start();
    waiter.until_stderr_has("waiting for x");
    owner.process.kill();
    send(owner.command, libc::SIGKILL);
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T1: while the command lives, its wrapper's death lets nobody in.
#[test]
fn a_waiter_keeps_waiting_for_a_command_whose_wrapper_was_killed() {
    let here = Place::new();
    let script = "until [ -e \"$0/go\" ]; do sleep 0.02; done; echo > \"$0/ended\"";
    let launch = here.tenure("run x -- sh -c").arg(script);
    let mut owner = here.hold_with("x", launch.arg(here.path("")));
    owner.process.kill();
    let script = "[ -e \"$0/ended\" ] || echo too early; echo in";
    let launch = here.tenure("run --wait x -- sh -c").arg(script);
    let waiter = launch.arg(here.path("")).start();
    waiter.until_stderr_has(&format!("held by pid {}", owner.command));
    fs::write(here.path("go"), "").unwrap();
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T1, T2: a crowd of waiters goes in one by one, and all of them do.
#[test]
fn many_waiters_are_never_in_together() {
    const CROWD: usize = 8;
    let here = Place::new();
    let script = "mkdir \"$0/room\" || echo together >> \"$0/log\"; \
                  echo was in >> \"$0/log\"; rmdir \"$0/room\"";
    let owner = hold_until_told(&here, "x");
    let crowd: Vec<_> = (0..CROWD)
        .map(|_| here.tenure("run --wait x -- sh -c").arg(script))
        .map(|launch| launch.arg(here.path("")).start())
        .collect();
    for one in &crowd {
        one.until_stderr_has("waiting for x");
    }
    drop(owner);
    for one in crowd {
        assert_eq!(one.finish().code, Some(0));
    }
    let log = fs::read_to_string(here.path("log")).unwrap();
    assert_eq!(log, "was in\n".repeat(CROWD));
}

// T2: a waiter that gives up leaves no trace.
#[test]
fn a_waiter_that_is_interrupted_ends_and_disturbs_nobody() {
    let here = Place::new();
    let owner = here.hold("x");
    let waiter = waiter(&here).start();
    waiter.until_stderr_has("waiting for x");
    send(waiter.id(), libc::SIGINT);
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text()), (None, String::new()));
    assert_eq!(here.status("x")["pid"], owner.wrapper);
    until("the owner still runs", || is_alive(owner.command));
}
