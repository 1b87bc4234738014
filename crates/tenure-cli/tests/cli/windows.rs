//! Tests of `tenure` on Windows, which has no signals, and where the command runs in a job that
//! ends with the wrapper.

use std::io::Read;
use std::sync::mpsc;
use std::thread;

use crate::process::{TIMEOUT, until};
use crate::support::{Sandbox, sleeper};

// T8: an owner without a stop event can only be killed, and the refusal names `--force`.
#[test]
fn stop_is_refused_and_names_force() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    let refused = sandbox.tenure("stop x").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("it can only be killed"),
        "{refused:?}"
    );
    let hint = "tenure stop --force x`";
    assert!(refused.stderr.contains(hint), "{refused:?}");
    assert!(owner.process.is_running());
}

// T8, T2
#[test]
fn force_kills_the_owner_and_frees_the_key() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    let stopped = sandbox.tenure("stop --force x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    until("the owner has exited", || !owner.process.is_running());
    let next = sandbox.tenure("run x -- cmd /C exit 0").finish();
    assert_eq!(next.code, Some(0), "{next:?}");
    assert!(!sandbox.has_lock_file("x"));
}

// The job kills the command with the wrapper. The reader of the command's output sees its end only
// after the last process with the pipe has exited.
#[test]
fn killing_the_wrapper_kills_the_command() {
    let sandbox = Sandbox::new();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let launch = sandbox.tenure("run x --").args(sleeper());
    let mut owner = sandbox.hold_with("x", launch.stdout(writer));
    let (ended, has_ended) = mpsc::channel();
    thread::spawn(move || ended.send(reader.read_to_end(&mut Vec::new()).is_ok()));
    owner.process.kill();
    assert_eq!(has_ended.recv_timeout(TIMEOUT), Ok(true));
}

// T1, T2: no process is left, so the key is free at once.
#[test]
fn key_is_free_after_the_wrapper_is_killed() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    owner.process.kill();
    let next = sandbox.tenure("run x -- cmd /C exit 0").finish();
    assert_eq!(next.code, Some(0), "{next:?}");
}

// T4: locks are mandatory on Windows, but the lock record can be read.
#[test]
fn lock_file_can_be_read_while_held() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let text = std::fs::read_to_string(sandbox.lock_file("x")).unwrap();
    let pid = format!("\"pid\":{}", owner.process.id());
    assert!(text.contains(&pid), "{text}");
}

// T1
#[test]
fn lock_file_can_be_neither_deleted_nor_renamed_while_held() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let file = sandbox.lock_file("x");
    assert!(std::fs::remove_file(&file).is_err());
    assert!(std::fs::rename(&file, sandbox.path("moved")).is_err());
    let refused = sandbox.tenure("run x -- cmd /C exit 0").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    drop(owner);
}
