//! `status` of keys that are not held, and of paths that are not lock files.

use std::fs;
use std::os::unix::fs::symlink;

use serde_json::Value;

use crate::process::Outcome;
use crate::support::Sandbox;

fn row_and_json(sandbox: &Sandbox) -> (Outcome, Value) {
    (sandbox.tenure("status x").finish(), sandbox.status("x"))
}

fn assert_row((table, status): &(Outcome, Value), state: &str, words: &str, why: &str) {
    assert_eq!(table.code, Some(3), "the key is not held: {table:?}");
    let text = table.text();
    let row = text.lines().nth(1).unwrap_or_default();
    assert!(row.contains(words) && row.contains(why), "{text}");
    assert_eq!(status["state"], state, "{status}");
}

// T7: a lock file without a lock never blocks a claim, so `status` shows it as stale and not as
// held.
#[test]
fn lock_of_a_crashed_owner_is_stale() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    owner.crash();
    let seen = row_and_json(&sandbox);
    let was = format!("was pid {}", owner.wrapper);
    assert_row(&seen, "stale", "stale", &was);
    assert_eq!(seen.1["record"]["pid"], owner.wrapper);
}

// T7: a lock record of another program is accepted, even if it has only the required fields.
#[test]
fn unheld_record_of_another_program_is_stale() {
    let sandbox = Sandbox::new();
    let record = r#"{"pid":2147483647,"started_at":"2026-01-30T12:00:00Z","port":8000}"#;
    sandbox.leave_lock_file("x", record);
    let seen = row_and_json(&sandbox);
    assert_row(&seen, "stale", "stale", "2026-01-30T12:00:00Z");
    assert_eq!(seen.1["record"]["port"], 8000);
}

// T3: a live pid in a lock record does not prove that the key is held.
#[test]
fn unheld_file_that_names_a_live_process_is_stale() {
    let sandbox = Sandbox::new();
    let unrelated = sandbox.unrelated_process();
    sandbox.leave_lock_file("x", format!("{{\"pid\":{}}}", unrelated.id()));
    let status = sandbox.status("x");
    assert_eq!(status["state"], "stale", "{status}");
}

// T7: `status` shows a file without a valid lock record as unreadable, with the reason.
#[test]
fn invalid_content_is_unreadable() {
    let sandbox = Sandbox::new();
    for (content, why) in [
        (&b"garbage"[..], "not a JSON object"),
        (b"", "empty"),
        (b"{}", "pid"),
        (b"\xff\xfe\x00", "not a JSON object"),
    ] {
        sandbox.leave_lock_file("x", content);
        assert_row(&row_and_json(&sandbox), "unreadable", "unreadable", why);
    }
}

// T7: a torn lock record is distinguished from a complete one.
#[test]
fn torn_record_is_unreadable() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let whole = fs::read(sandbox.lock_file("x")).unwrap();
    drop(owner);
    sandbox.leave_lock_file("x", &whole[..whole.len() / 2]);
    assert_row(
        &row_and_json(&sandbox),
        "unreadable",
        "unreadable",
        "partly written",
    );
}

// T7: a file without a valid lock record never blocks a claim.
#[test]
fn unreadable_file_is_taken_over() {
    let sandbox = Sandbox::new();
    let huge = vec![b'x'; 9 << 20];
    for content in [&b"garbage"[..], b"", b"{\"pid\":-5}", &huge] {
        sandbox.leave_lock_file("x", content);
        let outcome = sandbox.tenure("run x -- echo in").finish();
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert_eq!(outcome.text(), "in\n");
        assert!(!sandbox.has_lock_file("x"));
    }
}

// T9: `status` shows a path that is not a lock file as unusable, with the reason.
#[test]
fn symbolic_link_is_unusable() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.locks()).unwrap();
    symlink(sandbox.path("elsewhere"), sandbox.lock_file("x")).unwrap();
    assert_row(
        &row_and_json(&sandbox),
        "unusable",
        "unusable",
        "symbolic link",
    );
}

// T9: opening a FIFO without a writer would block.
#[test]
fn fifo_is_unusable_and_does_not_block() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.locks()).unwrap();
    let made = sandbox
        .program("mkfifo")
        .arg(sandbox.lock_file("x"))
        .finish();
    assert_eq!(made.code, Some(0), "{made:?}");
    assert_row(&row_and_json(&sandbox), "unusable", "unusable", "FIFO");
}

// T9
#[test]
fn directory_is_unusable() {
    let sandbox = Sandbox::new();
    fs::create_dir_all(sandbox.lock_file("x")).unwrap();
    assert_row(&row_and_json(&sandbox), "unusable", "unusable", "directory");
}

#[test]
fn bad_file_does_not_hide_other_locks() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("good");
    fs::create_dir_all(sandbox.lock_file("bad")).unwrap();
    sandbox.leave_lock_file("garbage", "garbage");
    fs::write(sandbox.locks().join("README"), "not a lock").unwrap();
    let outcome = sandbox.tenure("status").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let text = outcome.text();
    for part in ["unusable", "unreadable", "held (verified)"] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(text.contains(&owner.wrapper.to_string()), "{text}");
    assert!(!text.contains("README"), "{text}");
}
