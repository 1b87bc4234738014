//! Without a name, the command line is the key.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use crate::process::eventually;
use crate::support::{Owner, Place, exit_with, sleeper, sleeper_with};

/// Starts a command under the key that its command line makes; also says which file that is.
fn hold(here: &Place, command: impl IntoIterator<Item: AsRef<OsStr>>) -> (Owner, PathBuf) {
    let process = here.tenure("run --").args(command).start();
    let file = eventually("there is a lock file", || {
        Some(fs::read_dir(here.locks()).ok()?.next()?.ok()?.path())
    });
    (Owner::found(process, &file), file)
}

// T1, Command
#[test]
fn the_same_command_line_runs_once() {
    let here = Place::new();
    let (owner, _) = hold(&here, sleeper());
    let refused = here.tenure("run --").args(sleeper()).finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let pid = format!("pid {}", owner.wrapper);
    assert!(refused.stderr.contains(&pid), "{refused:?}");
}

// Command
#[test]
fn another_argument_is_another_key() {
    let here = Place::new();
    let (_owner, _) = hold(&here, sleeper());
    let mut shorter = sleeper();
    let count = shorter.iter().position(|word| *word == "300").unwrap();
    shorter[count] = "1";
    let other = here.tenure("run --").args(shorter).finish();
    assert_eq!(other.code, Some(0), "{other:?}");
}

// Command
#[test]
fn another_program_is_another_key() {
    let here = Place::new();
    let (_owner, _) = hold(&here, sleeper());
    let other = here.tenure("run --").args(exit_with(4)).finish();
    assert_eq!(other.code, Some(4), "{other:?}");
}

// T5: what is printed can be typed.
#[test]
fn the_refusal_names_a_key_that_status_understands() {
    let here = Place::new();
    let (owner, _) = hold(&here, sleeper());
    let refused = here.tenure("run --").args(sleeper()).finish();
    let (_, hint) = refused.stderr.split_once("tenure stop ").unwrap();
    let (key, _) = hint.split_once('`').unwrap();
    assert_eq!(here.status(key)["pid"], owner.wrapper, "{key}");
}

// File store: never the arguments, not even in the file's name.
#[test]
fn no_argument_is_in_the_name_or_the_content_of_the_lock_file() {
    let here = Place::new();
    let (_owner, file) = hold(&here, sleeper_with("hunter2"));
    let content = fs::read_to_string(&file).unwrap();
    assert!(content.contains("\"command\""), "{content}");
    assert!(!content.contains("hunter2"), "{content}");
    assert!(!file.display().to_string().contains("hunter2"), "{file:?}");
}
