//! Servers in PID namespaces, whose pids differ from those outside.

use llmlb::lock::{LockError, ServerLock};
use serde_json::Value;

use crate::support::{LockDir, status_server, this_test};

const INSIDE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

fn is_possible(lock_dir: &LockDir) -> bool {
    let possible = lock_dir.run(&[INSIDE.as_slice(), &["true"]].concat()).code == Some(0);
    if !possible {
        testkit::skip("the right to make a PID namespace").expect("nothing is missing");
    }
    possible
}

#[test]
fn status_outside_shows_the_outer_pid_of_a_server_inside() {
    let lock_dir = LockDir::new();
    if !is_possible(&lock_dir) {
        return;
    }
    // Inside its PID namespace the server is process 1, as its lock record and its status document
    // say. `llmlb status` outside must show the pid that the server has outside.
    let status_server = status_server(r#"{"status":"ok","pid":1,"backends":[]}"#);
    let address = status_server.address;
    let _server = lock_dir.stand_in_under(&INSIDE, address.port(), "end", 30_000);
    let ran = lock_dir.llmlb(&["status", "--json"]);
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let entry = &document["servers"][0];
    assert_eq!(entry["proof"], "verified");
    assert_ne!(entry["pid"], 1);
    assert_eq!(entry["health"], "ok");
}

#[test]
fn server_outside_is_neither_named_nor_stopped_from_inside() {
    let lock_dir = LockDir::new();
    if !is_possible(&lock_dir) {
        return;
    }
    let server = lock_dir.stand_in(4007, "end");
    let llmlb = env!("CARGO_BIN_EXE_llmlb");
    let inside = |words: &[&str]| lock_dir.run(&[INSIDE.as_slice(), words].concat());
    let ran = inside(&[llmlb, "status", "-p", "4007"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines = [
        "  state      running (PID not visible here)\n".to_owned(),
        format!(
            "  PID        unknown; {} by its lock record\n",
            server.pid()
        ),
    ];
    for line in lines {
        assert!(ran.stdout.contains(&line), "{line:?} in {ran:?}");
    }
    let ran = inside(&[llmlb, "stop", "-p", "4007", "--force"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(
        ran.stderr
            .contains("stop it on its host or in its container"),
        "{ran:?}"
    );

    let role = "pid_namespaces::acquire_is_refused_inside";
    let ran = inside(&[&this_test(), "--exact", role, "--ignored"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("1 passed"), "{ran:?}");
}

/// Not a test of its own: runs in a PID namespace while a server outside of it holds port 4007.
#[test]
#[ignore = "another test runs it in a PID namespace"]
fn acquire_is_refused_inside() {
    let refused = ServerLock::acquire(4007).expect_err("the port is held");
    assert!(matches!(refused, LockError::AlreadyRunning { .. }));
    assert_eq!(
        refused.to_string(),
        "Server already running on port 4007 (PID: unknown, started: unknown)"
    );
    let hint = refused.hint().unwrap_or_default();
    assert!(hint.contains("not visible from here"), "{hint}");
}
