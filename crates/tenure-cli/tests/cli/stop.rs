//! `stop` ends the owner and frees the key.

use std::fs;

use crate::support::{Owner, Sandbox};
use crate::unix::is_alive;

// T8, T6
#[test]
fn stop_ends_the_owner_and_frees_the_key() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let stopped = sandbox.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(
        stopped.text(),
        format!("x: stopped pid {}\n", owner.wrapper)
    );
    assert!(!is_alive(owner.command));
    assert!(!sandbox.has_lock_file("x"));
    let next = sandbox.tenure("run x -- true").finish();
    assert_eq!(next.code, Some(0), "{next:?}");
}

// `stop` must send SIGTERM, because SIGKILL gives the owner no time to clean up.
#[test]
fn stop_sends_sigterm_and_not_sigkill() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo asked; exit 5' TERM; echo ready; while :; do sleep 0.02; done";
    let launch = sandbox.tenure("run x -- sh -c").arg(script);
    let owner = sandbox.hold_with("x", launch);
    owner.process.until_stdout_has("ready");
    assert_eq!(sandbox.tenure("stop x").finish().code, Some(0));
    let outcome = owner.process.finish();
    assert_eq!(outcome.code, Some(5), "{outcome:?}");
    assert_eq!(outcome.text(), "ready\nasked\n");
}

#[test]
fn stop_of_a_free_key_succeeds() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("x: not held"), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
}

// T2, T6
#[test]
fn stop_removes_the_file_of_a_crashed_owner() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    owner.crash();
    let outcome = sandbox.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.text().contains("removed a stale lock file"),
        "{outcome:?}"
    );
    assert!(!sandbox.has_lock_file("x"));
}

// T7, T2: a lock record that its owner did not finish is removed.
#[test]
fn stop_removes_a_torn_lock_record() {
    let sandbox = Sandbox::new();
    let mut owner = sandbox.hold("x");
    let whole = fs::read(sandbox.lock_file("x")).unwrap();
    owner.crash();
    sandbox.leave_lock_file("x", &whole[..whole.len() / 2]);
    let outcome = sandbox.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("not held"), "{outcome:?}");
    assert!(!sandbox.has_lock_file("x"));
}

// T7: a file that no owner wrote may contain data, so `stop` does not remove it.
#[test]
fn stop_keeps_a_file_that_is_not_a_lock_record() {
    let sandbox = Sandbox::new();
    sandbox.leave_lock_file("x", "garbage");
    let outcome = sandbox.tenure("stop x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().contains("not held"), "{outcome:?}");
    assert_eq!(fs::read(sandbox.lock_file("x")).unwrap(), b"garbage");
}

#[test]
fn stop_does_not_affect_other_keys() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let mut neighbour = sandbox.hold("y");
    assert_eq!(sandbox.tenure("stop x").finish().code, Some(0));
    assert!(neighbour.process.is_running());
    assert_eq!(sandbox.status("y")["pid"], neighbour.wrapper);
}

#[test]
fn stop_accepts_a_port() {
    let sandbox = Sandbox::new();
    let launch = sandbox.tenure("run --port 8081 -- sleep 300");
    let owner = Owner::wait_for(launch.start(), &sandbox.locks().join("port_8081.lock"));
    let stopped = sandbox.tenure("stop --port 8081").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
}

#[test]
fn stop_accepts_a_file() {
    let sandbox = Sandbox::new();
    let file = sandbox.path("my.lock");
    let launch = sandbox
        .tenure("run --file")
        .arg(&file)
        .words("-- sleep 300");
    let owner = Owner::wait_for(launch.start(), &file);
    let stopped = sandbox.tenure("stop --file").arg(&file).finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
    assert!(!file.exists());
}

#[test]
fn quiet_stop_prints_nothing() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let stopped = sandbox.tenure("stop --quiet x").finish();
    assert_eq!(stopped.code, Some(0));
    assert_eq!((stopped.text(), stopped.stderr), Default::default());
    assert!(!is_alive(owner.command));
}

// T8: a program that has the lock and wrote a minimal lock record is proven to be the owner.
#[cfg(target_os = "linux")]
#[test]
fn stop_ends_another_program_with_a_minimal_lock_record() {
    let sandbox = Sandbox::new();
    sandbox.leave_lock_file("x", "");
    let mut holder = sandbox.hold_by_flock("x");
    let record = format!(
        r#"{{"pid":{},"started_at":"2026-01-30T12:00:00Z","port":8000}}"#,
        holder.id()
    );
    sandbox.leave_lock_file("x", record);
    crate::process::until("flock has the lock", || {
        sandbox.status("x")["state"] == "held"
    });
    let stopped = sandbox.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!holder.is_running());
}
