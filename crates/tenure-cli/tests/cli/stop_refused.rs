//! `stop` signals only a process that is proven to be the owner.

use std::fs;

use serde_json::Value;

use crate::process::{Outcome, Process};
use crate::support::Sandbox;

/// A minimal lock record, as any program may have left it.
fn foreign_record(pid: u32) -> String {
    format!(r#"{{"pid":{pid},"started_at":"2026-01-30T12:00:00Z","port":8000}}"#)
}

/// A complete lock record of a killed owner, with another pid and a valid checksum.
fn record_of_a_dead_owner(sandbox: &Sandbox, pid: u32) -> String {
    let mut owner = sandbox.hold("x");
    let text = fs::read_to_string(sandbox.lock_file("x")).expect("the record");
    owner.crash();
    with_pid(&text, pid)
}

/// Replaces the pid of a lock record and updates its checksum.
fn with_pid(record: &str, pid: u32) -> String {
    let (body, _) = record.rsplit_once(",\"crc32\"").expect("a checksum");
    let (_, rest) = body.split_once(',').expect("more than a pid");
    let body = format!("{{\"pid\":{pid},{rest}");
    format!("{body},\"crc32\":\"{:08x}\"}}\n", crc32(body.as_bytes()))
}

/// CRC-32 as in zlib, the checksum of lock records. A record with a wrong checksum would be
/// rejected as torn.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn assert_contains(outcome: &Outcome, parts: &[&str]) {
    let output = outcome.text() + &outcome.stderr;
    for part in parts {
        assert!(output.contains(part), "{part:?} in {outcome:?}");
    }
}

// T8: a pid in a lock record is no proof of ownership.
#[test]
fn process_named_by_a_stale_foreign_record_is_not_signalled() {
    let sandbox = Sandbox::new();
    let mut unrelated = sandbox.unrelated_process();
    sandbox.leave_lock_file("x", foreign_record(unrelated.id()));
    let outcome = sandbox.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "the key is not held: {outcome:?}");
    let why = format!("process {} does not have the lock", unrelated.id());
    assert_contains(&outcome, &["not held", &why, "was not signalled"]);
    assert!(unrelated.is_running());
}

// T8: a complete lock record is no proof of ownership without the lock.
#[test]
fn process_with_the_pid_of_a_dead_owner_is_not_signalled() {
    let sandbox = Sandbox::new();
    let mut unrelated = sandbox.unrelated_process();
    let record = record_of_a_dead_owner(&sandbox, unrelated.id());
    sandbox.leave_lock_file("x", &record);
    assert_eq!(
        sandbox.status("x")["record"]["pid"],
        unrelated.id(),
        "{record}"
    );
    let outcome = sandbox.tenure("stop --force x").finish();
    assert_eq!(outcome.code, Some(0), "the key is not held: {outcome:?}");
    assert_contains(&outcome, &["not held", "was not signalled"]);
    assert!(unrelated.is_running());
    assert!(!sandbox.has_lock_file("x"));
}

fn assert_neither_is_signalled(sandbox: &Sandbox, mut unrelated: Process, mut holder: Process) {
    for words in ["stop x", "stop --force x"] {
        let outcome = sandbox.tenure(words).finish();
        assert_eq!(outcome.code, Some(1), "{words}: {outcome:?}");
        let why = format!(
            "process {}, which the lock record names, could not be proven",
            unrelated.id()
        );
        assert_contains(&outcome, &["x was not stopped", &why, "was not signalled"]);
    }
    assert!(
        unrelated.is_running(),
        "the unrelated process was signalled"
    );
    assert!(
        holder.is_running(),
        "the holder was signalled without proof"
    );
    assert_eq!(sandbox.status("x")["state"], "held");
}

// T8: the key is held, but not by the process that the lock record names.
#[test]
fn no_process_is_signalled_if_a_foreign_record_does_not_name_the_holder() {
    let sandbox = Sandbox::new();
    let unrelated = sandbox.unrelated_process();
    sandbox.leave_lock_file("x", foreign_record(unrelated.id()));
    let holder = sandbox.hold_by_flock("x");
    assert_neither_is_signalled(&sandbox, unrelated, holder);
}

// T8: the key is held, but not by the process that a complete lock record names.
#[test]
fn no_process_is_signalled_if_a_complete_record_does_not_name_the_holder() {
    let sandbox = Sandbox::new();
    let unrelated = sandbox.unrelated_process();
    sandbox.leave_lock_file("x", record_of_a_dead_owner(&sandbox, unrelated.id()));
    let holder = sandbox.hold_by_flock("x");
    assert_neither_is_signalled(&sandbox, unrelated, holder);
}

// T8: the process has the lock and the pid, but another start time than the lock record.
#[test]
fn holder_with_another_start_time_than_recorded_is_not_signalled() {
    let sandbox = Sandbox::new();
    let mut record = record_of_a_dead_owner(&sandbox, 2);
    let mut holder = sandbox.hold_by_flock("x");
    // Record an earlier start time than the holder's. The holder may have started in the same clock
    // tick as the dead owner, and then the recorded time would be right.
    let start = sandbox.record("x").unwrap()["process"]["start"]
        .as_u64()
        .unwrap();
    record = record.replace(
        &format!("\"start\":{start}"),
        &format!("\"start\":{}", start - 1),
    );
    sandbox.leave_lock_file("x", with_pid(&record, holder.id()));
    let outcome = sandbox.tenure("stop --force x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(holder.is_running());
}

// T5, T7: without a valid lock record, `status` and `stop` name no pid instead of guessing one.
#[test]
fn holder_without_a_lock_record_is_unknown_and_not_signalled() {
    let sandbox = Sandbox::new();
    for content in ["", "garbage", r#"{"pid":0}"#, r#"{"pid":4294967295}"#] {
        sandbox.leave_lock_file("x", content);
        let mut holder = sandbox.hold_by_flock("x");
        let status = sandbox.status("x");
        assert_eq!(status["proof"], "unknown", "{content}: {status}");
        assert_eq!(status["pid"], Value::Null, "{content}: {status}");
        let outcome = sandbox.tenure("stop --force x").finish();
        assert_eq!(outcome.code, Some(1), "{content}: {outcome:?}");
        assert_contains(&outcome, &["x was not stopped", "it is held"]);
        assert!(holder.is_running(), "{content}");
    }
}

// T9: an object that is not a lock file has no owner to stop, and `stop` must not remove it.
#[test]
fn stop_refuses_a_path_that_is_not_a_lock_file_and_keeps_it() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.lock_file("x")).unwrap();
    let outcome = sandbox.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert_contains(&outcome, &["x was not stopped", "directory"]);
    assert!(sandbox.lock_file("x").is_dir());
}
