//! `status`: keys and their owners, as a table and as JSON.

use crate::support::{Owner, Sandbox, exit_with, json, sleeper};

#[test]
fn status_without_locks_succeeds_and_creates_nothing() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.tenure("status").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().starts_with("Nothing is held"), "{outcome:?}");
    assert!(
        !sandbox.locks().exists(),
        "status must not create the lock directory"
    );
}

#[test]
fn status_of_a_free_key_exits_with_3() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.tenure("status x").finish();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.text().contains("free"), "{outcome:?}");
}

#[test]
fn status_of_a_held_key_exits_with_0_and_names_the_owner() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let outcome = sandbox.tenure("status x").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let text = outcome.text();
    let row = text.lines().nth(1).unwrap();
    assert!(row.starts_with("x "), "{row}");
    for part in [
        "held (verified)".to_owned(),
        owner.process.id().to_string(),
        format!("running {} (pid {})", sleeper()[0], owner.command),
    ] {
        assert!(row.contains(&part), "{part:?} in {row}");
    }
}

#[test]
fn status_of_two_keys_exits_with_3_if_one_is_free() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    let outcome = sandbox.tenure("status x y").finish();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert_eq!(outcome.text().lines().count(), 3, "{outcome:?}");
}

#[test]
fn status_lists_every_held_key() {
    let sandbox = Sandbox::new();
    let _owners = [sandbox.hold("one"), sandbox.hold("two")];
    let port = sandbox.tenure("run --port 8082 --").args(sleeper()).start();
    let _port = Owner::wait_for(port, &sandbox.locks().join("port_8082.lock"));
    let outcome = sandbox.tenure("status").finish();
    let text = outcome.text();
    let keys: Vec<_> = text
        .lines()
        .skip(1)
        .filter_map(|row| row.split_once("  held ").map(|(key, _)| key.trim()))
        .collect();
    assert_eq!(keys, ["one", "two", "port 8082"], "{text}");
}

// T4
#[test]
fn repeated_status_does_not_refuse_a_run() {
    let sandbox = Sandbox::new();
    for _ in 0..10 {
        let looks: Vec<_> = (0..4).map(|_| sandbox.tenure("status x").start()).collect();
        let ran = sandbox.tenure("run x --").args(exit_with(0)).finish();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for look in looks {
            look.finish();
        }
    }
}

// Scripts rely on the fields that docs/status-json.md documents.
#[test]
fn json_of_a_held_key_has_all_fields() {
    let sandbox = Sandbox::new();
    let owner = sandbox.hold("x");
    let document = json(&sandbox.tenure("status --json x").finish());
    assert_eq!(document["version"], 1);
    let lock = &document["locks"][0];
    assert_eq!(lock["key"], "x");
    let file = sandbox.lock_file("x");
    assert_eq!(lock["path"], file.to_str().unwrap());
    assert_eq!(lock["state"], "held");
    assert_eq!(lock["proof"], "verified");
    assert_eq!(lock["pid"], owner.process.id());
    for flag in ["suspended", "command_only", "file_gone"] {
        assert_eq!(lock[flag], false, "{flag}");
    }
    let record = &lock["record"];
    assert_eq!(record["pid"], owner.process.id());
    assert_eq!(record["key"], "x");
    assert_eq!(record["program"], "tenure");
    assert_eq!(record["verb"], "run");
    assert!(record["stop"].as_str().unwrap().ends_with("tenure stop x"));
    assert_eq!(record["command"]["pid"], owner.command);
    assert_eq!(record["command"]["program"], sleeper()[0]);
    assert_eq!(record["version"], 1);
    assert!(record["token"].is_u64() && record["process"]["start"].is_u64());
    for text in ["started_at", "host", "user"] {
        assert!(record[text].is_string(), "{text}: {record}");
    }
    assert!(record["started_at"].as_str().unwrap().ends_with('Z'));
}

#[test]
fn json_without_locks_has_an_empty_list() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.tenure("status --json").finish();
    assert_eq!(outcome.code, Some(0));
    let expected = serde_json::json!({ "version": 1, "locks": [] });
    assert_eq!(json(&outcome), expected);
}

#[test]
fn json_of_a_free_key_has_state_free_and_exits_with_3() {
    let sandbox = Sandbox::new();
    let outcome = sandbox.tenure("status --json x").finish();
    assert_eq!(outcome.code, Some(3));
    assert_eq!(json(&outcome)["locks"][0]["state"], "free");
}

#[test]
fn json_of_a_port_key_contains_the_port() {
    let sandbox = Sandbox::new();
    let port = sandbox.tenure("run --port 8083 --").args(sleeper()).start();
    let _owner = Owner::wait_for(port, &sandbox.locks().join("port_8083.lock"));
    let document = json(&sandbox.tenure("status --json --port 8083").finish());
    assert_eq!(document["locks"][0]["record"]["port"], 8083);
    assert_eq!(document["locks"][0]["key"], "port 8083");
}

#[test]
fn status_into_a_pipe_has_no_escape_sequences() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    sandbox.leave_lock_file("stale", r#"{"pid":2147483647}"#);
    sandbox.leave_lock_file("garbage", "garbage");
    let outcome = sandbox.tenure("status").finish();
    assert!(outcome.text().contains("held (verified)"), "{outcome:?}");
    assert!(!outcome.stdout.contains(&0x1b), "{outcome:?}");
}

#[test]
fn status_into_a_closed_pipe_prints_no_error() {
    let sandbox = Sandbox::new();
    let _owner = sandbox.hold("x");
    for words in ["status", "status --json", "status --help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = sandbox.tenure(words).stdout(writer).finish();
        // The command ends by SIGPIPE, as usual on Unix, or with its normal exit code.
        assert!(
            matches!(outcome.code, None | Some(0)),
            "{words}: {outcome:?}"
        );
        assert_eq!(outcome.stderr, "", "{words}");
    }
}
