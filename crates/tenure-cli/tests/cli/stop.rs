//! `stop` ends the owner and frees the key.

use std::fs;

use crate::support::{Owner, Place};
use crate::unix::is_alive;

// T8, T6: asked, ended, gone.
#[test]
fn the_owner_is_stopped_and_the_key_is_free() {
    let here = Place::new();
    let owner = here.hold("x");
    let stopped = here.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(
        stopped.text(),
        format!("x: stopped pid {}\n", owner.wrapper)
    );
    assert!(!is_alive(owner.command));
    assert!(!here.has_lock_file("x"));
    let next = here.tenure("run x -- true").finish();
    assert_eq!(next.code, Some(0), "{next:?}");
}

// Command: the owner is asked first, so that it can end in order.
#[test]
fn the_owner_is_asked_and_not_killed() {
    let here = Place::new();
    let script = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let launch = here.tenure("run x -- sh -c").arg(script);
    let owner = here.hold_with("x", launch);
    owner.process.until_stdout_has("ready");
    assert_eq!(here.tenure("stop x").finish().code, Some(0));
    let outcome = owner.process.finish();
    assert_eq!(outcome.code, Some(5), "{outcome:?}");
    assert_eq!(outcome.text(), "ready\nasked\n");
}

// Command: nothing to do is done.
#[test]
fn stopping_what_nobody_holds_is_no_error_and_says_so() {
    let here = Place::new();
    let outcome = here.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("x: nobody holds it"), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
}

// T2, T6: what a crashed owner left is removed.
#[test]
fn stopping_a_crashed_owner_removes_its_file() {
    let here = Place::new();
    let mut owner = here.hold("x");
    owner.crash();
    let outcome = here.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.text().contains("removed a stale file"),
        "{outcome:?}"
    );
    assert!(!here.has_lock_file("x"));
}

// T7, T2: so is a record that its owner did not live to finish.
#[test]
fn stopping_an_owner_that_crashed_while_it_wrote_removes_its_file() {
    let here = Place::new();
    let mut owner = here.hold("x");
    let whole = fs::read(here.lock_file("x")).unwrap();
    owner.crash();
    here.leave_lock_file("x", &whole[..whole.len() / 2]);
    let outcome = here.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("nobody holds it"), "{outcome:?}");
    assert!(!here.has_lock_file("x"));
}

// T7: what no owner wrote is no owner's to stop, and not ours to remove.
#[test]
fn stopping_what_is_no_record_is_no_error_and_leaves_the_file() {
    let here = Place::new();
    here.leave_lock_file("x", "garbage");
    let outcome = here.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("nobody holds it"), "{outcome:?}");
    assert_eq!(fs::read(here.lock_file("x")).unwrap(), b"garbage");
}

// Command: one key, not its neighbours.
#[test]
fn other_keys_are_left_alone() {
    let here = Place::new();
    let _owner = here.hold("x");
    let mut neighbour = here.hold("y");
    assert_eq!(here.tenure("stop x").finish().code, Some(0));
    assert!(neighbour.process.is_running());
    assert_eq!(here.status("y")["pid"], neighbour.wrapper);
}

// Command
#[test]
fn a_port_is_stopped_by_its_number() {
    let here = Place::new();
    let launch = here.tenure("run --port 8081 -- sleep 300");
    let owner = Owner::found(launch.start(), &here.locks().join("port_8081.lock"));
    let stopped = here.tenure("stop --port 8081").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
}

// Command
#[test]
fn a_file_is_stopped_by_its_path() {
    let here = Place::new();
    let file = here.path("my.lock");
    let launch = here.tenure("run --file").arg(&file).words("-- sleep 300");
    let owner = Owner::found(launch.start(), &file);
    let stopped = here.tenure("stop --file").arg(&file).finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
    assert!(!file.exists());
}

// Command: `--quiet`
#[test]
fn a_quiet_stop_says_nothing() {
    let here = Place::new();
    let owner = here.hold("x");
    let stopped = here.tenure("stop --quiet x").finish();
    assert_eq!(stopped.code, Some(0));
    assert_eq!((stopped.text(), stopped.stderr), Default::default());
    assert!(!is_alive(owner.command));
}

// T8, File store: a program that knows only `pid` and `started_at`, and has the lock, is proven.
#[cfg(target_os = "linux")]
#[test]
fn an_owner_with_the_shortest_foreign_record_is_stopped() {
    let here = Place::new();
    here.leave_lock_file("x", "");
    let mut holder = here.hold_by_flock("x");
    let record = format!(
        r#"{{"pid":{},"started_at":"2026-01-30T12:00:00Z","port":8000}}"#,
        holder.id()
    );
    here.leave_lock_file("x", record);
    crate::process::until("flock has the lock", || here.status("x")["state"] == "held");
    let stopped = here.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!holder.is_running());
}
