//! `status` of keys that nobody holds, and of what is no lock file at all.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::process::Outcome;
use crate::support::Place;

/// The row of `x`, and what JSON says about it.
fn look(here: &Place) -> (Outcome, Value) {
    (here.tenure("status x").finish(), here.status("x"))
}

fn assert_row((table, status): &(Outcome, Value), state: &str, words: &str, why: &str) {
    assert_eq!(table.code, Some(3), "nobody holds it: {table:?}");
    let text = table.text();
    let row = text.lines().nth(1).unwrap_or_default();
    assert!(row.contains(words) && row.contains(why), "{text}");
    assert_eq!(status["state"], state, "{status}");
}

// Command, T7: stale.
#[test]
fn a_crashed_owner_is_stale() {
    let here = Place::new();
    let mut owner = here.hold("x");
    owner.crash();
    let seen = look(&here);
    let was = format!("was pid {}", owner.wrapper);
    assert_row(&seen, "stale", "stale", &was);
    assert_eq!(seen.1["record"]["pid"], owner.wrapper);
}

// T7, File store: the shortest record that another program may leave.
#[test]
fn a_foreign_record_that_nobody_holds_is_stale() {
    let here = Place::new();
    let record = r#"{"pid":2147483647,"started_at":"2026-01-30T12:00:00Z","port":8000}"#;
    here.leave_lock_file("x", record);
    let seen = look(&here);
    assert_row(&seen, "stale", "stale", "2026-01-30T12:00:00Z");
    assert_eq!(seen.1["record"]["port"], 8000);
}

// T3: a live pid in a file is no proof that anyone holds it.
#[test]
fn a_file_that_names_a_live_stranger_is_not_held() {
    let here = Place::new();
    let stranger = here.stranger();
    here.leave_lock_file("x", format!("{{\"pid\":{}}}", stranger.id()));
    let status = here.status("x");
    assert_eq!(status["state"], "stale", "{status}");
}

// Command, T7: unreadable, and why.
#[test]
fn garbage_is_unreadable() {
    let here = Place::new();
    for (content, why) in [
        (&b"garbage"[..], "not a JSON object"),
        (b"", "empty"),
        (b"{}", "pid"),
        (b"\xff\xfe\x00", "not a JSON object"),
    ] {
        here.leave_lock_file("x", content);
        assert_row(&look(&here), "unreadable", "unreadable", why);
    }
}

// T7: a torn record is told from a whole one.
#[test]
fn a_torn_record_is_unreadable() {
    let here = Place::new();
    let owner = here.hold("x");
    let whole = fs::read(here.lock_file("x")).unwrap();
    drop(owner);
    here.leave_lock_file("x", &whole[..whole.len() / 2]);
    assert_row(&look(&here), "unreadable", "unreadable", "partly written");
}

// T7: bad files never block.
#[test]
fn unreadable_files_are_taken_over() {
    let here = Place::new();
    let huge = vec![b'x'; 9 << 20];
    for content in [&b"garbage"[..], b"", b"{\"pid\":-5}", &huge] {
        here.leave_lock_file("x", content);
        let outcome = here.tenure("run x -- echo in").finish();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert_eq!(outcome.text(), "in\n");
        assert!(!here.has_lock_file("x"));
    }
}

// Command, T9: unusable, and why.
#[test]
fn a_symbolic_link_is_unusable() {
    let here = Place::new();
    fs::create_dir_all(here.locks()).unwrap();
    symlink(here.path("elsewhere"), here.lock_file("x")).unwrap();
    assert_row(&look(&here), "unusable", "unusable", "symbolic link");
}

// Command, T9: no hang.
#[test]
fn a_fifo_is_unusable_and_nobody_waits_for_it() {
    let here = Place::new();
    fs::create_dir_all(here.locks()).unwrap();
    let made = here.program("mkfifo").arg(here.lock_file("x")).finish();
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_row(&look(&here), "unusable", "unusable", "FIFO");
}

// Command, T9
#[test]
fn a_directory_is_unusable() {
    let here = Place::new();
    fs::create_dir_all(here.lock_file("x")).unwrap();
    assert_row(&look(&here), "unusable", "unusable", "directory");
}

// Command: one bad file does not hide the others.
#[test]
fn a_bad_file_does_not_hide_its_neighbours() {
    let here = Place::new();
    let owner = here.hold("good");
    fs::create_dir_all(here.lock_file("bad")).unwrap();
    here.leave_lock_file("garbage", "garbage");
    fs::write(here.locks().join("README"), "not a lock").unwrap();
    let outcome = here.tenure("status").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let text = outcome.text();
    for part in ["unusable", "unreadable", "held (verified)"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(text.contains(&owner.wrapper.to_string()), "{text}");
    assert!(!text.contains("README"), "{text}");
}
