//! `run --wait`: the command starts as soon as the owner has released the key.

use std::fs;
use std::process::Stdio;

use crate::process::{Launch, until};
use crate::support::{Owner, Sandbox};
use crate::unix::{is_alive, send};

fn hold_until_input_ends(sandbox: &Sandbox, key: &str) -> Owner {
    let launch = sandbox.tenure(&format!("run {key} -- cat"));
    sandbox.hold_with(key, launch.stdin(Stdio::piped()))
}

fn waiter(sandbox: &Sandbox) -> Launch {
    sandbox.tenure("run --wait x -- echo in")
}

// T2: the key is free as soon as its owner has exited. The waiting command starts then, without a
// timeout that has to expire first.
#[test]
fn waiting_run_starts_after_the_owner_has_exited() {
    let sandbox = Sandbox::new();
    let owner = hold_until_input_ends(&sandbox, "x");
    let waiter = waiter(&sandbox).start();
    waiter.until_stderr_has("waiting for x");
    assert_eq!(waiter.stdout(), "", "the command started too early");
    assert_eq!(owner.process.finish().code, Some(0));
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T5
#[test]
fn waiting_run_names_the_owner() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let waiter = waiter(&sandbox).start();
    waiter.until_stderr_has(&format!("waiting for x, held by pid {}", owner.wrapper));
    assert_eq!(waiter.stdout(), "");
}

// `--quiet` suppresses the message about the wait and the refusal; only the exit code remains.
#[test]
fn quiet_waiting_run_prints_nothing() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let refused = sandbox
        .tenure("run --quiet --wait=0.2 x -- echo in")
        .finish();
    assert_eq!(refused.code, Some(75));
    assert_eq!((refused.text(), refused.stderr), Default::default());
    drop(owner);
}

// T5
#[test]
fn timed_out_wait_exits_with_75_and_names_the_owner() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let refused = sandbox.tenure("run --wait=0.3 x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    let (_, end) = refused.stderr.split_once("did not become free").unwrap();
    assert!(
        end.contains(&format!("pid {}", owner.wrapper)),
        "{refused:?}"
    );
    assert!(end.contains("tenure stop x`"), "{refused:?}");
}

// `-E` also applies to a wait that times out.
#[test]
fn timed_out_wait_exits_with_the_conflict_exit_code() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let refused = sandbox.tenure("run --wait=0 -E 12 x -- echo in").finish();
    assert_eq!((refused.code, refused.text()), (Some(12), String::new()));
}

// T2: the key is free at once after the owner dies by any signal.
#[test]
fn waiting_run_starts_when_the_owner_is_killed() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    let waiter = waiter(&sandbox).start();
    waiter.until_stderr_has("waiting for x");
    owner.process.kill();
    send(owner.command, libc::SIGKILL);
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T1: the key stays held while the command runs, even if its wrapper is killed.
#[test]
fn waiting_run_waits_for_a_command_whose_wrapper_was_killed() {
    let sandbox = Sandbox::new();
    let script = "until [ -e \"$0/go\" ]; do sleep 0.02; done; echo > \"$0/ended\"";
    let launch = sandbox.tenure("run x -- sh -c").arg(script);
    let mut owner = sandbox.hold_with("x", launch.arg(sandbox.path("")));
    owner.process.kill();
    let script = "[ -e \"$0/ended\" ] || echo too early; echo in";
    let launch = sandbox.tenure("run --wait x -- sh -c").arg(script);
    let waiter = launch.arg(sandbox.path("")).start();
    waiter.until_stderr_has(&format!("held by pid {}", owner.command));
    fs::write(sandbox.path("go"), "").unwrap();
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text().as_str()), (Some(0), "in\n"));
}

// T1, T2: many waiting processes acquire the key one by one, and all of them do.
#[test]
fn waiting_runs_acquire_the_key_one_at_a_time() {
    const PROCESSES: usize = 8;
    let sandbox = Sandbox::new();
    let script = "mkdir \"$0/room\" || echo together >> \"$0/log\"; \
                  echo was in >> \"$0/log\"; rmdir \"$0/room\"";
    let owner = hold_until_input_ends(&sandbox, "x");
    let processes: Vec<_> = (0..PROCESSES)
        .map(|_| sandbox.tenure("run --wait x -- sh -c").arg(script))
        .map(|launch| launch.arg(sandbox.path("")).start())
        .collect();
    for one in &processes {
        one.until_stderr_has("waiting for x");
    }
    drop(owner);
    for one in processes {
        assert_eq!(one.finish().code, Some(0));
    }
    let log = fs::read_to_string(sandbox.path("log")).unwrap();
    assert_eq!(log, "was in\n".repeat(PROCESSES));
}

// T2: a wait that is interrupted leaves nothing behind.
#[test]
fn interrupted_wait_exits_and_does_not_affect_the_owner() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let waiter = waiter(&sandbox).start();
    waiter.until_stderr_has("waiting for x");
    send(waiter.id(), libc::SIGINT);
    let outcome = waiter.finish();
    assert_eq!((outcome.code, outcome.text()), (None, String::new()));
    assert_eq!(sandbox.status("x")["pid"], owner.wrapper);
    until("the owner is still running", || is_alive(owner.command));
}
