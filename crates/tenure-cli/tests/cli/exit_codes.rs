//! `run` exits as its command did, and leaves no lock file behind.

use crate::support::{Place, exit_with};

/// Runs a command under the key `x` and says how `tenure` exited.
fn code_of(command: &[String]) -> (Option<i32>, String) {
    let here = Place::new();
    let outcome = here.tenure("run x --").args(command).finish();
    assert!(!here.has_lock_file("x"), "the lock file was left behind");
    (outcome.code, outcome.stderr)
}

// Command: `run` exits with the command's code; T6: release removes the file.
#[test]
fn a_command_that_succeeds_is_a_success() {
    assert_eq!(code_of(&exit_with(0)), (Some(0), String::new()));
}

// Command, T6
#[test]
fn the_code_of_a_command_that_fails_is_passed_on() {
    assert_eq!(code_of(&exit_with(7)), (Some(7), String::new()));
}

// Command, T6
#[test]
fn the_largest_code_is_passed_on() {
    assert_eq!(code_of(&exit_with(255)), (Some(255), String::new()));
}

// Command: a code of the command's is not mistaken for ours.
#[test]
fn a_command_that_exits_with_75_is_not_reported_as_a_held_key() {
    assert_eq!(code_of(&exit_with(75)), (Some(75), String::new()));
}

// Command, T6
#[test]
fn an_unknown_command_is_127_and_named() {
    let here = Place::new();
    let mut launch = here.tenure("run x -- no-such-program-anywhere");
    // A directory on the way that may not be searched would make it 126.
    launch.command.env("PATH", here.path(""));
    let outcome = launch.finish();
    assert_eq!(outcome.code, Some(127), "{outcome:?}");
    for part in ["no-such-program-anywhere", "not found"] {
        assert!(outcome.stderr.contains(part), "{part:?} in {outcome:?}");
    }
    assert!(!here.has_lock_file("x"));
}

// T2, T6: nothing is left to clean by hand.
#[test]
fn the_key_can_be_had_again_at_once() {
    let here = Place::new();
    for turn in 0..5 {
        let outcome = here.tenure("run x --").args(exit_with(turn)).finish();
        assert_eq!(outcome.code, Some(turn), "{outcome:?}");
    }
}

// Command: a port and a path are keys of their own.
#[test]
fn a_port_and_a_file_are_released_like_a_name() {
    let here = Place::new();
    let by_port = here.tenure("run --port 8080 --").args(exit_with(4));
    assert_eq!(by_port.finish().code, Some(4));
    assert!(!here.locks().join("port_8080.lock").exists());

    let file = here.path("my.lock");
    let by_file = here.tenure("run --file").arg(&file).arg("--");
    assert_eq!(by_file.args(exit_with(5)).finish().code, Some(5));
    assert!(!file.exists());
}

#[cfg(unix)]
mod on_unix {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::code_of;
    use crate::support::Place;

    fn code_after(signal: &str) -> Option<i32> {
        let script = format!("kill -{signal} $$");
        code_of(&["sh", "-c", &script].map(str::to_owned)).0
    }

    // Command: 128+n for a signal; T6
    #[test]
    fn a_command_that_was_killed_is_137() {
        assert_eq!(code_after("KILL"), Some(128 + libc::SIGKILL));
    }

    // Command, T6
    #[test]
    fn a_command_that_was_terminated_is_143() {
        assert_eq!(code_after("TERM"), Some(128 + libc::SIGTERM));
    }

    // Command, T6
    #[test]
    fn a_command_that_crashed_is_139() {
        assert_eq!(code_after("SEGV"), Some(128 + libc::SIGSEGV));
    }

    // Command, T6
    #[test]
    fn a_file_that_may_not_be_executed_is_126_and_named() {
        let here = Place::new();
        let program = here.path("not-executable");
        fs::write(&program, "#!/bin/sh\nexit 0\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
        let outcome = here.tenure("run x --").arg(&program).finish();
        assert_eq!(outcome.code, Some(126), "{outcome:?}");
        assert!(outcome.stderr.contains("not-executable"), "{outcome:?}");
        assert!(!here.has_lock_file("x"));
    }

    // Command, T6: found, but not a program.
    #[test]
    fn a_directory_as_a_command_is_126() {
        let here = Place::new();
        let outcome = here.tenure("run x --").arg(here.path("")).finish();
        assert_eq!(outcome.code, Some(126), "{outcome:?}");
        assert!(!here.has_lock_file("x"));
    }
}
