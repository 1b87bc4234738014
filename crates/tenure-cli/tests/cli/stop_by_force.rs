//! `stop --force`, and owners that ignore stop requests or are suspended.

use crate::process::{Outcome, until};
use crate::support::{Owner, Sandbox};
use crate::unix::{is_alive, send, state_of};

fn stubborn(sandbox: &Sandbox) -> Owner {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.02; done";
    let launch = sandbox.tenure("run x -- sh -c").arg(script);
    let owner = sandbox.hold_with("x", launch);
    owner.process.until_stdout_has("ready");
    owner
}

fn suspended(sandbox: &Sandbox) -> Owner {
    let owner = sandbox.hold("x");
    send(owner.wrapper, libc::SIGSTOP);
    if cfg!(target_os = "linux") {
        until("the wrapper is stopped", || {
            state_of(owner.wrapper) == Some('T')
        });
    }
    owner
}

fn assert_free(sandbox: &Sandbox) {
    assert!(!sandbox.has_lock_file("x"), "the lock file was not removed");
    sandbox.assert_free();
}

fn assert_contains(outcome: &Outcome, parts: &[&str]) {
    for part in parts {
        assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
    }
}

// After `--timeout` the exit code is 1, and the hint names `--force`.
#[test]
fn stop_of_an_owner_that_ignores_sigterm_times_out_with_a_hint() {
    let sandbox = Sandbox::new();
    let owner = stubborn(&sandbox);
    let outcome = sandbox.tenure("stop --timeout 0.3 x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let pid = format!("pid {}", owner.wrapper);
    assert_contains(
        &outcome,
        &["x is still held", &pid, "tenure stop --force x`"],
    );
    assert!(is_alive(owner.command) && is_alive(owner.wrapper));
    assert_eq!(sandbox.status("x")["pid"], owner.wrapper);
}

// T8: `--force` kills both processes and frees the key.
#[test]
fn force_kills_the_command_and_the_wrapper() {
    let sandbox = Sandbox::new();
    let mut owner = stubborn(&sandbox);
    let outcome = sandbox.tenure("stop --timeout 0.2 --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("was killed"), "{outcome:?}");
    assert!(!is_alive(owner.command));
    until("the wrapper exits", || !owner.process.is_running());
    assert_free(&sandbox);
}

// With `--force`, too, the owner can exit cleanly: SIGKILL follows only after the timeout.
#[test]
fn force_sends_sigterm_before_sigkill() {
    let sandbox = Sandbox::new();
    let script = "trap 'exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let launch = sandbox.tenure("run x -- sh -c").arg(script);
    let owner = sandbox.hold_with("x", launch);
    owner.process.until_stdout_has("ready");
    let outcome = sandbox.tenure("stop --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("stopped pid"), "{outcome:?}");
    assert_eq!(owner.process.finish().code, Some(5));
}

// T8: the command is the owner after its wrapper has exited. It ignores SIGTERM, so only `--force`
// stops it.
#[test]
fn force_kills_a_command_whose_wrapper_has_exited() {
    let sandbox = Sandbox::new();
    let mut owner = stubborn(&sandbox);
    owner.process.kill();
    let asked = sandbox.tenure("stop --timeout 0.2 x").finish();
    assert_eq!(asked.code, Some(1), "{asked:?}");
    let outcome = sandbox.tenure("stop --timeout 0.2 --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!is_alive(owner.command));
    assert_free(&sandbox);
}

// `status` shows the owner as suspended. T1: a suspended process keeps its key.
#[test]
fn suspended_owner_is_shown_and_keeps_the_key() {
    let sandbox = Sandbox::new();
    let owner = suspended(&sandbox);
    let table = sandbox.tenure("status x").finish();
    assert_eq!(table.code, Some(0));
    assert!(
        table.text().contains("held (verified, suspended)"),
        "{table:?}"
    );
    assert_eq!(sandbox.status("x")["suspended"], true);
    assert_eq!(sandbox.status("x")["pid"], owner.wrapper);
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
}

#[test]
fn stop_of_a_suspended_owner_names_the_command_that_resumes_it() {
    let sandbox = Sandbox::new();
    let owner = suspended(&sandbox);
    let outcome = sandbox.tenure("stop --timeout 0.3 x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let wake = format!("kill -CONT {}", owner.wrapper);
    assert_contains(&outcome, &["suspended", &wake, "tenure stop --force x`"]);
    assert!(is_alive(owner.command));
}

// T2: the stop request is not lost while the owner is suspended.
#[test]
fn suspended_owner_exits_when_resumed_after_a_stop_request() {
    let sandbox = Sandbox::new();
    let owner = suspended(&sandbox);
    let asked = sandbox.tenure("stop --timeout 0.1 x").finish();
    assert_eq!(asked.code, Some(1), "{asked:?}");
    send(owner.wrapper, libc::SIGCONT);
    let outcome = owner.process.finish();
    assert_eq!(outcome.code, Some(128 + libc::SIGTERM), "{outcome:?}");
    assert_free(&sandbox);
}

// T8
#[test]
fn force_kills_a_suspended_owner_and_its_command() {
    let sandbox = Sandbox::new();
    let mut owner = suspended(&sandbox);
    let outcome = sandbox.tenure("stop --timeout 0.2 --force x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(!is_alive(owner.command));
    until("the wrapper has exited", || !owner.process.is_running());
    assert_free(&sandbox);
}
