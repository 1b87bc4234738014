//! The command inherits the lock: the key stays held if only the wrapper is killed.

#[cfg(target_os = "linux")]
use std::fs;

use crate::process::{Process, until};
use crate::support::{Owner, Sandbox};
use crate::unix::{is_alive, send};

fn orphaned(sandbox: &Sandbox) -> Owner {
    let mut owner = sandbox.hold("x");
    owner.process.kill();
    owner
}

// T1: the command still has the lock, so that a second command is refused.
#[test]
fn key_stays_held_after_the_wrapper_alone_is_killed() {
    let sandbox = Sandbox::new();
    let owner = orphaned(&sandbox);
    assert!(
        is_alive(owner.command),
        "the command was killed with its wrapper"
    );
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
}

// T5: after the wrapper was killed, a refusal names the command, which still holds the lock.
#[test]
fn refusal_names_the_command_after_its_wrapper_was_killed() {
    let sandbox = Sandbox::new();
    let owner = orphaned(&sandbox);
    let refused = sandbox.tenure("run x -- echo in").finish();
    for part in [
        format!("held by pid {}", owner.command),
        "running sleep".to_owned(),
        format!("its wrapper, pid {}, has exited", owner.wrapper),
    ] {
        assert!(refused.stderr.contains(&part), "{part:?} in {refused:?}");
    }
}

#[test]
fn status_reports_that_the_wrapper_has_exited() {
    let sandbox = Sandbox::new();
    let owner = orphaned(&sandbox);
    let status = sandbox.status("x");
    assert_eq!(status["state"], "held");
    assert_eq!(status["proof"], "verified");
    assert_eq!(status["command_only"], true);
    assert_eq!(status["pid"], owner.command);
    let table = sandbox.tenure("status x").finish();
    assert!(
        table
            .text()
            .contains("running sleep; its wrapper has exited"),
        "{table:?}"
    );
}

// T2: the key is free without a timeout and without cleaning up by hand.
#[test]
fn key_is_free_as_soon_as_the_command_has_exited() {
    let sandbox = Sandbox::new();
    let owner = orphaned(&sandbox);
    send(owner.command, libc::SIGKILL);
    until("the command has exited", || !is_alive(owner.command));
    sandbox.assert_free();
}

// T6
#[test]
fn takeover_from_a_crashed_owner_is_reported() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    owner.crash();
    assert!(sandbox.has_lock_file("x"), "a crash leaves the file");
    let next = sandbox.tenure("run x -- true").finish();
    assert_eq!(next.code, Some(0));
    assert!(next.stderr.contains("taking over"), "{next:?}");
    let pid = owner.wrapper.to_string();
    assert!(next.stderr.contains(&pid), "{next:?}");
}

// T8: after the wrapper was killed, the command still holds the lock that it inherited. The kernel
// proves that, so `stop` signals the command.
#[test]
fn stop_ends_a_command_whose_wrapper_was_killed() {
    let sandbox = Sandbox::new();
    let owner = orphaned(&sandbox);
    let stopped = sandbox.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    let expected = format!("x: stopped pid {}", owner.command);
    assert!(stopped.text().contains(&expected), "{stopped:?}");
    assert!(!is_alive(owner.command));
    assert!(
        !sandbox.has_lock_file("x"),
        "stop did not remove the stale file"
    );
}

// T1: the inherited deletion guard refuses a second owner even without the file.
#[cfg(target_os = "linux")]
#[test]
fn deleted_file_does_not_admit_a_second_owner_while_the_command_runs() {
    let sandbox = Sandbox::new();
    let owner = orphaned(&sandbox);
    fs::remove_file(sandbox.lock_file("x")).unwrap();
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let named = format!("held by pid {} ", owner.command);
    assert!(refused.stderr.contains(&named), "{refused:?}");
}

/// Runs a command that exits and leaves a descendant with all its descriptors.
fn leave_a_descendant(sandbox: &Sandbox) -> (Process, u32) {
    let script = "sleep 300 >/dev/null 2>&1 & echo $!";
    let mut process = sandbox.tenure("run x -- sh -c").arg(script).start();
    let outcome = process.wait();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let descendant = outcome.text().trim().parse().expect("a process id");
    assert!(is_alive(descendant));
    (process, descendant)
}

// A descendant of the command may have inherited the descriptor of the lock.
#[test]
fn descendant_of_the_command_does_not_keep_the_key() {
    let sandbox = Sandbox::new();
    let (_group, descendant) = leave_a_descendant(&sandbox);
    assert!(!sandbox.has_lock_file("x"));
    sandbox.assert_free();
    assert!(is_alive(descendant));
}

// T1: a descendant of the last command does not disable the next owner's deletion guard.
#[cfg(target_os = "linux")]
#[test]
fn descendant_of_the_last_command_does_not_disable_the_deletion_guard() {
    let sandbox = Sandbox::new();
    let (_group, _) = leave_a_descendant(&sandbox);
    let owner = sandbox.hold("x");
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    fs::remove_file(sandbox.lock_file("x")).unwrap();
    let refused = sandbox.tenure("run x -- echo in").finish();
    assert!(is_alive(owner.command));
    assert_eq!(refused.code, Some(75), "a second owner: {refused:?}");
}
