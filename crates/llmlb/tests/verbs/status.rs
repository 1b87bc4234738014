//! L3: `llmlb status`.

use std::fs;

use serde_json::Value;

use crate::support::{Place, answering};

#[test]
fn nothing_at_all_is_said_and_is_no_failure() {
    let place = Place::new();
    let ran = place.llmlb(&["status"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "No servers running\n")
    );
    assert_eq!(ran.stderr, "");
    let ran = place.llmlb(&["status", "-p", "1"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(3), "No server running on port 1\n")
    );
    let ran = place.llmlb(&["status", "-p", "1", "--json"]);
    assert_eq!(ran.code, Some(3));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(document["version"], 1);
    assert_eq!(document["servers"][0]["state"], "not_running");
    assert_eq!(place.llmlb(&["status", "-p", "0"]).code, Some(2));
}

#[test]
fn a_server_that_does_not_answer_still_runs() {
    let place = Place::new();
    // Nobody listens on port 2: the stand-in has only the lock.
    let server = place.stand_in(2, "end");
    let ran = place.llmlb(&["status", "-p", "2"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let pid = format!("  PID        {}\n", server.pid());
    assert!(ran.stdout.contains(&pid), "{ran:?}");
    let silent = ran.stdout.contains("  health     no response (");
    assert!(silent, "{ran:?}");
}

#[test]
fn somebody_else_who_answers_is_not_the_server() {
    let place = Place::new();
    let answering = answering(r#"{"status":"ok","pid":1,"backends":[]}"#);
    let address = answering.address;
    let port = address.port().to_string();
    let server = place.stand_in(address.port(), "end");
    let ran = place.llmlb(&["status", "--json"]);
    assert_eq!(ran.code, Some(0));
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let entry = &document["servers"][0];
    assert_eq!(entry["pid"], server.pid());
    assert_eq!(entry["health"], "wrong_process");
    if cfg!(target_os = "linux") {
        // This very test listens there.
        assert_eq!(entry["port_in_use_by"]["pid"], std::process::id());
    }
    let ran = place.llmlb(&["status", "-p", &port]);
    assert!(
        ran.stdout.contains("another process responded (PID: 1)"),
        "{ran:?}"
    );
}

#[cfg(unix)]
#[test]
fn a_suspended_server_is_told_and_not_waited_for() {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    let place = Place::new();
    let server = place.stand_in(3, "end");
    let pid = i32::try_from(server.pid()).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a pid"), Signal::STOP).expect("a signal");
    waitpid(pid, WaitOptions::UNTRACED).expect("suspended");
    let ran = place.llmlb(&["status", "-p", "3"]);
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
fn what_a_killed_server_leaves_is_stale_and_harmless() {
    let place = Place::new();
    let mut server = place.stand_in(5, "ignore");
    server.kill();
    let ran = place.llmlb(&["status", "-p", "5"]);
    assert_eq!(ran.code, Some(3));
    assert!(
        ran.stdout.starts_with("No server running on port 5\n")
            && ran.stdout.contains("is the stale lock file of PID")
            && ran.stdout.contains("it is harmless"),
        "{ran:?}"
    );
    fs::write(place.lock_file(5), "garbage").expect("written");
    let ran = place.llmlb(&["status", "--json"]);
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(ran.code, Some(0));
    assert_eq!(document["servers"][0]["state"], "unreadable");
    assert_eq!(document["servers"][0]["reason"], "it is not a JSON object");
}
