//! `stop` signals nobody who is not proven to be the owner.

use std::fs;

use serde_json::Value;

use crate::process::{Outcome, Process};
use crate::support::Place;

/// The shortest record that any program may have left.
fn foreign_record(pid: u32) -> String {
    format!(r#"{{"pid":{pid},"started_at":"2026-01-30T12:00:00Z","port":8000}}"#)
}

/// A whole record, with its checksum, of an owner that was killed; only the pid is another one.
fn record_of_a_dead_owner(here: &Place, pid: u32) -> String {
    let mut owner = here.hold("x");
    let text = fs::read_to_string(here.lock_file("x")).expect("the record");
    owner.crash();
    with_pid(&text, pid)
}

/// A record with another pid, and the checksum that it then has.
fn with_pid(record: &str, pid: u32) -> String {
    let (body, _) = record.rsplit_once(",\"crc32\"").expect("a checksum");
    let (_, rest) = body.split_once(',').expect("more than a pid");
    let body = format!("{{\"pid\":{pid},{rest}");
    format!("{body},\"crc32\":\"{:08x}\"}}\n", crc32(body.as_bytes()))
}

/// As in zlib and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1));
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn assert_says(outcome: &Outcome, parts: &[&str]) {
    let said = outcome.text() + &outcome.stderr;
    for part in parts {
        assert!(said.contains(part), "{part:?} in {outcome:?}");
    }
}

// T8: a number is no proof.
#[test]
fn a_stranger_that_a_foreign_stale_file_names_is_left_alone() {
    let here = Place::new();
    let mut stranger = here.stranger();
    here.leave_lock_file("x", foreign_record(stranger.id()));
    let outcome = here.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "nobody holds it: {outcome:?}");
    let why = format!("process {} does not have the lock", stranger.id());
    assert_says(&outcome, &["nobody holds it", &why, "left alone"]);
    assert!(stranger.is_running());
}

// T8: nor is a record in our own form.
#[test]
fn a_stranger_that_has_the_number_of_a_dead_owner_is_left_alone() {
    let here = Place::new();
    let mut stranger = here.stranger();
    let record = record_of_a_dead_owner(&here, stranger.id());
    here.leave_lock_file("x", &record);
    assert_eq!(here.status("x")["record"]["pid"], stranger.id(), "{record}");
    let outcome = here.tenure("stop --force x").finish();
    assert_eq!(outcome.code, Some(0), "nobody holds it: {outcome:?}");
    assert_says(&outcome, &["nobody holds it", "left alone"]);
    assert!(stranger.is_running());
    assert!(!here.has_lock_file("x"));
}

fn assert_neither_is_hit(here: &Place, mut stranger: Process, mut holder: Process) {
    for words in ["stop x", "stop --force x"] {
        let outcome = here.tenure(words).finish();
        assert_eq!(outcome.code, Some(1), "{words}: {outcome:?}");
        let why = format!("not by pid {}", stranger.id());
        assert_says(&outcome, &["x was not stopped", &why, "left alone"]);
    }
    assert!(stranger.is_running(), "the stranger was hit");
    assert!(holder.is_running(), "the holder was hit without proof");
    assert_eq!(here.status("x")["state"], "held");
}

// T8: held, but not by whom the record names.
#[test]
fn neither_is_hit_if_another_process_holds_the_lock_than_a_foreign_record_says() {
    let here = Place::new();
    let stranger = here.stranger();
    here.leave_lock_file("x", foreign_record(stranger.id()));
    let holder = here.hold_by_flock("x");
    assert_neither_is_hit(&here, stranger, holder);
}

// T8
#[test]
fn neither_is_hit_if_another_process_holds_the_lock_than_a_whole_record_says() {
    let here = Place::new();
    let stranger = here.stranger();
    here.leave_lock_file("x", record_of_a_dead_owner(&here, stranger.id()));
    let holder = here.hold_by_flock("x");
    assert_neither_is_hit(&here, stranger, holder);
}

// T8: it has the lock and the number, but started at another time than the record says.
#[test]
fn a_holder_whose_start_time_is_not_the_recorded_one_is_left_alone() {
    let here = Place::new();
    let mut record = record_of_a_dead_owner(&here, 2);
    let mut holder = here.hold_by_flock("x");
    // Ticks are long: the holder may have started in that of the dead owner.
    let start = here.record("x").unwrap()["process"]["start"]
        .as_u64()
        .unwrap();
    record = record.replace(
        &format!("\"start\":{start}"),
        &format!("\"start\":{}", start - 1),
    );
    here.leave_lock_file("x", with_pid(&record, holder.id()));
    let outcome = here.tenure("stop --force x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(holder.is_running());
}

// T5, T7: never a wrong pid, and no guess.
#[test]
fn a_holder_that_left_no_record_is_unknown_and_left_alone() {
    let here = Place::new();
    for content in ["", "garbage", r#"{"pid":0}"#, r#"{"pid":4294967295}"#] {
        here.leave_lock_file("x", content);
        let mut holder = here.hold_by_flock("x");
        let status = here.status("x");
        assert_eq!(status["proof"], "unknown", "{content}: {status}");
        assert_eq!(status["pid"], Value::Null, "{content}: {status}");
        let outcome = here.tenure("stop --force x").finish();
        assert_eq!(outcome.code, Some(1), "{content}: {outcome:?}");
        assert_says(&outcome, &["x was not stopped", "it is held"]);
        assert!(holder.is_running(), "{content}");
    }
}

// T9: what is no lock file has no owner.
#[test]
fn what_is_no_lock_file_is_refused_and_left_as_it_is() {
    let here = Place::new();
    fs::create_dir_all(here.lock_file("x")).unwrap();
    let outcome = here.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert_says(&outcome, &["x was not stopped", "directory"]);
    assert!(here.lock_file("x").is_dir());
}
