//! Servers in containers: their numbers mean something else outside.

use llmlb::lock::{LockError, ServerLock};
use serde_json::Value;

use crate::support::{Place, answering, this_test};

const INSIDE: [&str; 5] = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"];

fn is_possible(place: &Place) -> bool {
    let possible = place.run(&[INSIDE.as_slice(), &["true"]].concat()).code == Some(0);
    if !possible {
        testkit::skip("the right to make a PID namespace").expect("nothing is missing");
    }
    possible
}

#[test]
fn a_server_inside_is_known_outside_by_the_number_that_means_it_there() {
    let place = Place::new();
    if !is_possible(&place) {
        return;
    }
    // It calls itself process 1, in its record and when it is asked.
    let answering = answering(r#"{"status":"ok","pid":1,"backends":[]}"#);
    let address = answering.address;
    let _server = place.stand_in_under(&INSIDE, address.port(), "end", 30_000);
    let ran = place.llmlb(&["status", "--json"]);
    let document: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let entry = &document["servers"][0];
    assert_eq!(entry["proof"], "verified");
    assert_ne!(entry["pid"], 1);
    assert_eq!(entry["health"], "ok");
}

#[test]
fn a_server_outside_is_neither_named_nor_stopped_from_inside() {
    let place = Place::new();
    if !is_possible(&place) {
        return;
    }
    let server = place.stand_in(4007, "end");
    let llmlb = env!("CARGO_BIN_EXE_llmlb");
    let inside = |words: &[&str]| place.run(&[INSIDE.as_slice(), words].concat());
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

    let refused = "pid_namespaces::refused_inside";
    let ran = inside(&[&this_test(), "--exact", refused, "--ignored"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("1 passed"), "{ran:?}");
}

/// Not a test of its own: what is run inside while a server outside has port 4007.
#[test]
#[ignore = "another test runs it in a PID namespace"]
fn refused_inside() {
    let refused = ServerLock::acquire(4007).expect_err("it is held");
    assert!(matches!(refused, LockError::AlreadyRunning { .. }));
    assert_eq!(
        refused.to_string(),
        "Server already running on port 4007 (PID: unknown, started: unknown)"
    );
    let hint = refused.hint().unwrap_or_default();
    assert!(hint.contains("not visible from here"), "{hint}");
}
