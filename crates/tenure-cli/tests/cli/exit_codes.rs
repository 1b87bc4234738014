//! `run` exits with the code of its command and leaves no lock file.

use crate::support::{Sandbox, exit_with};

/// Runs a command under the key `x` and returns the exit code and stderr of `tenure`.
fn code_of(command: &[String]) -> (Option<i32>, String) {
    let sandbox = Sandbox::new();
    let outcome = sandbox.tenure("run x --").args(command).finish();
    assert!(!sandbox.has_lock_file("x"), "the lock file was not removed");
    (outcome.code, outcome.stderr)
}

// T6
#[test]
fn run_exits_with_0_if_the_command_succeeds() {
    assert_eq!(code_of(&exit_with(0)), (Some(0), String::new()));
}

// T6
#[test]
fn run_exits_with_the_code_of_a_failed_command() {
    assert_eq!(code_of(&exit_with(7)), (Some(7), String::new()));
}

// T6
#[test]
fn run_exits_with_the_largest_code() {
    assert_eq!(code_of(&exit_with(255)), (Some(255), String::new()));
}

#[test]
fn command_exit_code_75_is_not_reported_as_a_held_key() {
    assert_eq!(code_of(&exit_with(75)), (Some(75), String::new()));
}

// T6
#[test]
fn unknown_command_exits_with_127_and_is_named() {
    let sandbox = Sandbox::new();
    let mut launch = sandbox.tenure("run x -- no-such-program-anywhere");
    // PATH is set because a directory in it that may not be searched would change the code to 126.
    launch.command.env("PATH", sandbox.path(""));
    let outcome = launch.finish();
    assert_eq!(outcome.code, Some(127), "{outcome:?}");
    for part in ["no-such-program-anywhere", "not found"] {
        assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
    }
    assert!(!sandbox.has_lock_file("x"));
}

// T2, T6
#[test]
fn key_can_be_acquired_again_at_once() {
    let sandbox = Sandbox::new();
    for turn in 0..5 {
        let outcome = sandbox.tenure("run x --").args(exit_with(turn)).finish();
        assert_eq!(outcome.code, Some(turn), "{outcome:?}");
    }
}

#[test]
fn port_and_file_keys_are_released_like_names() {
    let sandbox = Sandbox::new();
    let by_port = sandbox.tenure("run --port 8080 --").args(exit_with(4));
    assert_eq!(by_port.finish().code, Some(4));
    assert!(!sandbox.locks().join("port_8080.lock").exists());

    let file = sandbox.path("my.lock");
    let by_file = sandbox.tenure("run --file").arg(&file).arg("--");
    assert_eq!(by_file.args(exit_with(5)).finish().code, Some(5));
    assert!(!file.exists());
}

#[cfg(unix)]
mod on_unix {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::code_of;
    use crate::support::Sandbox;

    fn code_after(signal: &str) -> Option<i32> {
        let script = format!("kill -{signal} $$");
        code_of(&["sh", "-c", &script].map(str::to_owned)).0
    }

    // T6: release removes the lock file also if a signal ended the command.
    #[test]
    fn killed_command_exits_with_137() {
        assert_eq!(code_after("KILL"), Some(128 + libc::SIGKILL));
    }

    // T6
    #[test]
    fn terminated_command_exits_with_143() {
        assert_eq!(code_after("TERM"), Some(128 + libc::SIGTERM));
    }

    // T6
    #[test]
    fn crashed_command_exits_with_139() {
        assert_eq!(code_after("SEGV"), Some(128 + libc::SIGSEGV));
    }

    // T6
    #[test]
    fn file_without_execute_permission_exits_with_126_and_is_named() {
        let sandbox = Sandbox::new();
        let program = sandbox.path("not-executable");
        fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        let outcome = sandbox.tenure("run x --").arg(&program).finish();
        assert_eq!(outcome.code, Some(126), "{outcome:?}");
        assert!(outcome.stderr.contains("not-executable"), "{outcome:?}");
        assert!(!sandbox.has_lock_file("x"));
    }

    // T6: a command that exists but is not a program cannot be started, and release removes the
    // lock file.
    #[test]
    fn directory_as_a_command_exits_with_126() {
        let sandbox = Sandbox::new();
        let outcome = sandbox.tenure("run x --").arg(sandbox.path("")).finish();
        assert_eq!(outcome.code, Some(126), "{outcome:?}");
        assert!(!sandbox.has_lock_file("x"));
    }
}
