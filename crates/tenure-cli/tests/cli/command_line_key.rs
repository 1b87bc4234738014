//! Tests of `tenure run` without a name: the command line is the key, so the same command does not
//! run twice.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use crate::process::eventually;
use crate::support::{Owner, Sandbox, exit_with, sleeper, sleeper_with};

/// Starts a command under the key of its command line, and returns the owner and its lock file.
fn hold(sandbox: &Sandbox, command: impl IntoIterator<Item: AsRef<OsStr>>) -> (Owner, PathBuf) {
    let process = sandbox.tenure("run --").args(command).start();
    let file = eventually("the lock file exists", || {
        Some(fs::read_dir(sandbox.locks()).ok()?.next()?.ok()?.path())
    });
    (Owner::wait_for(process, &file), file)
}

// T1
#[test]
fn second_run_of_the_same_command_line_is_refused() {
    let sandbox = Sandbox::new();
    let (owner, _) = hold(&sandbox, sleeper());
    let refused = sandbox.tenure("run --").args(sleeper()).finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let pid = format!("pid {}", owner.wrapper);
    assert!(refused.stderr.contains(&pid), "{refused:?}");
}

#[test]
fn another_argument_is_another_key() {
    let sandbox = Sandbox::new();
    let (_owner, _) = hold(&sandbox, sleeper());
    let mut shorter = sleeper();
    let count = shorter.iter().position(|word| *word == "300").unwrap();
    shorter[count] = "1";
    let other = sandbox.tenure("run --").args(shorter).finish();
    assert_eq!(other.code, Some(0), "{other:?}");
}

#[test]
fn another_program_is_another_key() {
    let sandbox = Sandbox::new();
    let (_owner, _) = hold(&sandbox, sleeper());
    let other = sandbox.tenure("run --").args(exit_with(4)).finish();
    assert_eq!(other.code, Some(4), "{other:?}");
}

// T5: commands in messages can be typed as printed.
#[test]
fn refusal_names_a_key_that_status_accepts() {
    let sandbox = Sandbox::new();
    let (owner, _) = hold(&sandbox, sleeper());
    let refused = sandbox.tenure("run --").args(sleeper()).finish();
    let (_, hint) = refused.stderr.split_once("tenure stop ").unwrap();
    let (key, _) = hint.split_once('`').unwrap();
    assert_eq!(sandbox.status(key)["pid"], owner.wrapper, "{key}");
}

// Arguments may be secret, and other users may be able to list the lock directory.
#[test]
fn lock_file_contains_no_argument_in_its_name_or_content() {
    let sandbox = Sandbox::new();
    let (_owner, file) = hold(&sandbox, sleeper_with("hunter2"));
    let content = fs::read_to_string(&file).unwrap();
    assert!(content.contains("\"command\""), "{content}");
    assert!(!content.contains("hunter2"), "{content}");
    assert!(!file.display().to_string().contains("hunter2"), "{file:?}");
}
