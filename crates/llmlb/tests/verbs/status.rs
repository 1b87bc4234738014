//! `llmlb status`. (promise L3)

use std::fs;

use serde_json::Value;

use crate::support::{LockDir, status_server};

#[test]
fn status_without_servers_succeeds() {
    let lock_dir = LockDir::new();
    let ran = lock_dir.llmlb(&["status"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "No servers running\n")
    );
    assert_eq!(ran.stderr, "");
    let ran = lock_dir.llmlb(&["status", "-p", "1"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(3), "No server running on port 1\n")
    );
    let ran = lock_dir.llmlb(&["status", "-p", "1", "--json"]);
    assert_eq!(ran.code, Some(3));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(document["version"], 1);
    assert_eq!(document["servers"][0]["state"], "not_running");
    assert_eq!(lock_dir.llmlb(&["status", "-p", "0"]).code, Some(2));
}

#[test]
fn server_that_does_not_respond_is_running_without_health() {
    let lock_dir = LockDir::new();
    // The stand-in holds the lock of the port and listens nowhere, like a server that hangs.
    let server = lock_dir.stand_in(2, "end");
    let ran = lock_dir.llmlb(&["status", "-p", "2"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let pid = format!("  PID        {}\n", server.pid());
    assert!(ran.stdout.contains(&pid), "{ran:?}");
    let has_no_response = ran.stdout.contains("  health     no response (");
    assert!(has_no_response, "{ran:?}");
}

#[test]
fn response_of_another_process_is_reported_as_wrong_process() {
    let lock_dir = LockDir::new();
    let status_server = status_server(r#"{"status":"ok","pid":1,"backends":[]}"#);
    let address = status_server.address;
    let port = address.port().to_string();
    let server = lock_dir.stand_in(address.port(), "end");
    let ran = lock_dir.llmlb(&["status", "--json"]);
    assert_eq!(ran.code, Some(0));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let entry = &document["servers"][0];
    assert_eq!(entry["pid"], server.pid());
    assert_eq!(entry["health"], "wrong_process");
    if cfg!(target_os = "linux") {
        // The test process itself listens on the port, so `llmlb status` must name its pid.
        assert_eq!(entry["port_in_use_by"]["pid"], std::process::id());
    }
    let ran = lock_dir.llmlb(&["status", "-p", &port]);
    assert!(
        ran.stdout.contains("another process responded (PID: 1)"),
        "{ran:?}"
    );
}

#[cfg(unix)]
#[test]
fn suspended_server_is_reported_without_waiting() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    let lock_dir = LockDir::new();
    let server = lock_dir.stand_in(3, "end");
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a pid"), Signal::STOP).expect("a signal");
    waitpid(pid, WaitOptions::UNTRACED).expect("suspended");
    let ran = lock_dir.llmlb(&["status", "-p", "3"]);
    assert!(
        ran.stdout.contains("  state      running (suspended)\n"),
        "{ran:?}"
    );
    assert!(
        ran.stdout
            .contains("  health     no response (the process is suspended)\n"),
        "{ran:?}"
    );
}

#[test]
fn lock_file_of_a_killed_server_is_stale() {
    let lock_dir = LockDir::new();
    let mut server = lock_dir.stand_in(5, "ignore");
    server.kill();
    let ran = lock_dir.llmlb(&["status", "-p", "5"]);
    assert_eq!(ran.code, Some(3));
    assert!(
        ran.stdout.starts_with("No server running on port 5\n")
            && ran.stdout.contains("is the stale lock file of PID")
            && ran.stdout.contains("it is harmless"),
        "{ran:?}"
    );
    fs::write(lock_dir.lock_file(5), "garbage").expect("written");
    let ran = lock_dir.llmlb(&["status", "--json"]);
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(ran.code, Some(0));
    assert_eq!(document["servers"][0]["state"], "unreadable");
    assert_eq!(document["servers"][0]["reason"], "it is not a JSON object");
}
