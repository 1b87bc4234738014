//! What is different on Windows: no signals, and a job that ends with the wrapper.

use std::io::Read;
use std::sync::mpsc;
use std::thread;

use crate::process::{PATIENCE, until};
use crate::support::{Place, sleeper};

// Command, T8: without signals, and without an event to set, only force is left; this is said.
#[test]
fn stop_is_refused_and_names_force() {
    let here = Place::new();
    let mut owner = here.hold("x");
    let refused = here.tenure("stop x").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("by force"), "{refused:?}");
    let hint = "tenure stop --force x`";
    assert!(refused.stderr.contains(hint), "{refused:?}");
    assert!(owner.process.is_running());
}

// T8, T2
#[test]
fn force_ends_the_owner_and_frees_the_key() {
    let here = Place::new();
    let mut owner = here.hold("x");
    let stopped = here.tenure("stop --force x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    until("the owner has ended", || !owner.process.is_running());
    let next = here.tenure("run x -- cmd /C exit 0").finish();
    assert_eq!(next.code, Some(0), "{next:?}");
    assert!(!here.has_lock_file("x"));
}

// Command: Windows: kill-on-close job. The command's output ends when the last process that has
// it is gone.
#[test]
fn killing_the_wrapper_ends_the_command() {
    let here = Place::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let launch = here.tenure("run x --").args(sleeper());
    let mut owner = here.hold_with("x", launch.stdout(writer));
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || ended.send(reader.read_to_end(&mut Vec::new()).is_ok()));
    owner.process.kill();
    assert_eq!(has_ended.recv_timeout(PATIENCE), Ok(true));
}

// T1, T2: nobody is left, so the key is free at once.
#[test]
fn the_key_is_free_after_the_wrapper_was_killed() {
    let here = Place::new();
    let mut owner = here.hold("x");
    owner.process.kill();
    let next = here.tenure("run x -- cmd /C exit 0").finish();
    assert_eq!(next.code, Some(0), "{next:?}");
}

// T4: locks are mandatory here, and yet the record can be read.
#[test]
fn the_lock_file_can_be_read_while_it_is_held() {
    let here = Place::new();
    let owner = here.hold("x");
    let text = std::fs::read_to_string(here.lock_file("x")).unwrap();
    let pid = format!("\"pid\":{}", owner.process.id());
    assert!(text.contains(&pid), "{text}");
}

// T1: a held file can be neither deleted nor renamed.
#[test]
fn the_lock_file_cannot_be_deleted_or_renamed_while_it_is_held() {
    let here = Place::new();
    let owner = here.hold("x");
    let file = here.lock_file("x");
    assert!(std::fs::remove_file(&file).is_err());
    assert!(std::fs::rename(&file, here.path("moved")).is_err());
    let refused = here.tenure("run x -- cmd /C exit 0").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    drop(owner);
}
