//! `status`: who holds what, for people and for programs.

use crate::support::{Owner, Place, exit_with, json, sleeper};

// Command: nothing is an answer, too.
#[test]
fn nothing_held_is_said_and_no_error() {
    let here = Place::new();
    let outcome = here.tenure("status").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.text().starts_with("Nothing is held"), "{outcome:?}");
    assert!(!here.locks().exists(), "looking must not create anything");
}

// Command: 3 if a key that was asked for is not held.
#[test]
fn a_key_that_nobody_holds_is_3() {
    let here = Place::new();
    let outcome = here.tenure("status x").finish();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert!(outcome.text().contains("free"), "{outcome:?}");
}

// Command: 0 if it is held.
#[test]
fn a_key_that_is_held_is_0_and_named_with_its_owner() {
    let here = Place::new();
    let owner = here.hold("x");
    let outcome = here.tenure("status x").finish();
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

// Command: one of several is enough for 3.
#[test]
fn two_keys_of_which_one_is_free_are_3() {
    let here = Place::new();
    let _owner = here.hold("x");
    let outcome = here.tenure("status x y").finish();
    assert_eq!(outcome.code, Some(3), "{outcome:?}");
    assert_eq!(outcome.text().lines().count(), 3, "{outcome:?}");
}

// Command: without a key, everything.
#[test]
fn every_held_key_has_a_row() {
    let here = Place::new();
    let _owners = [here.hold("one"), here.hold("two")];
    let port = here.tenure("run --port 8082 --").args(sleeper()).start();
    let _port = Owner::found(port, &here.locks().join("port_8082.lock"));
    let outcome = here.tenure("status").finish();
    let text = outcome.text();
    let keys: Vec<_> = text
        .lines()
        .skip(1)
        .filter_map(|row| row.split_once("  held ").map(|(key, _)| key.trim()))
        .collect();
    assert_eq!(keys, ["one", "two", "port 8082"], "{text}");
}

// T4: looking does not disturb.
#[test]
fn looking_at_a_key_again_and_again_does_not_keep_anyone_from_it() {
    let here = Place::new();
    for _ in 0..10 {
        let looks: Vec<_> = (0..4).map(|_| here.tenure("status x").start()).collect();
        let ran = here.tenure("run x --").args(exit_with(0)).finish();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        for look in looks {
            look.finish();
        }
    }
}

// Command: the documented form.
#[test]
fn json_of_a_held_key_has_every_field() {
    let here = Place::new();
    let owner = here.hold("x");
    let document = json(&here.tenure("status --json x").finish());
    assert_eq!(document["version"], 1);
    let lock = &document["locks"][0];
    assert_eq!(lock["key"], "x");
    let file = here.lock_file("x");
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

// Command: a program can rely on the document being there.
#[test]
fn json_of_nothing_is_an_empty_list() {
    let here = Place::new();
    let outcome = here.tenure("status --json").finish();
    assert_eq!(outcome.code, Some(0));
    let expected = serde_json::json!({ "version": 1, "locks": [] });
    assert_eq!(json(&outcome), expected);
}

// Command
#[test]
fn json_of_a_free_key_says_so_and_exits_with_3() {
    let here = Place::new();
    let outcome = here.tenure("status --json x").finish();
    assert_eq!(outcome.code, Some(3));
    assert_eq!(json(&outcome)["locks"][0]["state"], "free");
}

// File store: a port key names its port, as a number.
#[test]
fn json_of_a_port_names_the_number() {
    let here = Place::new();
    let port = here.tenure("run --port 8083 --").args(sleeper()).start();
    let _owner = Owner::found(port, &here.locks().join("port_8083.lock"));
    let document = json(&here.tenure("status --json --port 8083").finish());
    assert_eq!(document["locks"][0]["record"]["port"], 8083);
    assert_eq!(document["locks"][0]["key"], "port 8083");
}

// Command: colour is for terminals.
#[test]
fn a_pipe_gets_no_escape_bytes() {
    let here = Place::new();
    let _owner = here.hold("x");
    here.leave_lock_file("stale", r#"{"pid":2147483647}"#);
    here.leave_lock_file("garbage", "garbage");
    let outcome = here.tenure("status").finish();
    assert!(outcome.text().contains("held (verified)"), "{outcome:?}");
    assert!(!outcome.stdout.contains(&0x1b), "{outcome:?}");
}

// Command: a reader that went away is no reason to complain.
#[test]
fn a_reader_that_went_away_is_passed_over_in_silence() {
    let here = Place::new();
    let _owner = here.hold("x");
    for words in ["status", "status --json", "status --help"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = here.tenure(words).stdout(writer).finish();
        // Ended by the signal, as programs are on Unix, or as if nothing had happened.
        assert!(
            matches!(outcome.code, None | Some(0)),
            "{words}: {outcome:?}"
        );
        assert_eq!(outcome.stderr, "", "{words}");
    }
}
