//! `llmlb explain` with running and stopped servers.

use testkit::backends::{UNPROBED, serve};

use crate::support::{ask, explain, explained, fail_over, failing, good};

#[test]
fn command_says_in_words_what_happened() {
    let sandbox = testkit::sandbox!();
    let (bad, fine) = (failing(503), good());
    let server = serve(&sandbox, &[&bad, &fine], UNPROBED);
    let id = fail_over(&server, &bad);
    let _ = explained(&sandbox, &server, &id);
    let done = sandbox.run(&format!("explain {id}"));
    done.assert_code(0);
    let text = done.output();
    for words in [
        &format!("Request {id}") as &str,
        "POST /v1/chat/completions",
        "the client received the whole response; status 200",
        &format!(
            "{}, because an earlier attempt at another backend failed",
            fine.address
        ),
        &format!("{} tried before", bad.address),
        "queue       no wait",
        &format!("attempt 1   {} failed at ", bad.address),
        "status 503",
        &format!("attempt 2   {} at ", fine.address),
        "7 prompt + 5 completion, reported by the backend",
        "recorded",
        &format!("the server on port {}", server.port()),
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("hello"), "the prompt is not shown: {text}");
}

#[test]
fn request_is_explained_from_its_record_after_a_restart() {
    let sandbox = testkit::sandbox!();
    let fine = good();
    let server = serve(&sandbox, &[&fine], UNPROBED);
    assert_eq!(ask(&server, "before").status(), 200);
    let known = explained(&sandbox, &server, "before");
    assert_eq!(known["server_port"], server.port());
    assert!(
        known["billing"] == "staged" || known["billing"] == "archived",
        "{known:#}"
    );
    assert_eq!(server.stop(), Some(0));
    let found = explain(&sandbox, "before");
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0]["server_port"], serde_json::Value::Null);
    assert_eq!(
        found[0]["billing"], "archived",
        "the server has delivered to archive/"
    );
    for name in ["id", "why", "candidates", "backend", "tokens", "outcome"] {
        assert_eq!(found[0][name], known[name], "{name}");
    }
    // The id of the record leads to the same request.
    let record = known["id"].as_str().unwrap();
    assert_eq!(explain(&sandbox, record), found);
    let words = sandbox.run("explain before");
    assert!(
        words
            .output()
            .contains("because no other backend serves the model")
    );
}

#[test]
fn unknown_id_exits_1_and_says_what_to_type() {
    let sandbox = testkit::sandbox!();
    let fine = good();
    let server = serve(&sandbox, &[&fine], UNPROBED);
    assert_eq!(ask(&server, "a").status(), 200);
    let done = sandbox.run("explain never-sent");
    done.assert_code(1);
    let text = done.output();
    for words in [
        "no finished request has the id never-sent",
        &format!("port {}", server.port()),
        "hint: search the log, which has every request: `journalctl -u llmlb | grep id=never-sent`",
        "hint: name the data directory of the server",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn hostile_ids_are_found_and_shown_safely() {
    let sandbox = testkit::sandbox!();
    let fine = good();
    let server = serve(&sandbox, &[&fine], UNPROBED);
    for id in [
        "a/b",
        "50%25",
        "q?x=1&y#z",
        "\"quoted\"",
        "back\\slash",
        "../status",
    ] {
        assert_eq!(ask(&server, id).status(), 200);
        let mut command = sandbox.command("explain --json");
        let done = sandbox.start(command.arg(id)).finish();
        done.assert_code(0);
        assert_eq!(done.json()["requests"][0]["request_id"], id);
    }
}

#[test]
fn requests_with_one_id_are_listed_latest_first() {
    let sandbox = testkit::sandbox!();
    let fine = good();
    let server = serve(&sandbox, &[&fine], UNPROBED);
    for _ in 0..3 {
        assert_eq!(ask(&server, "same").status(), 200);
    }
    let found = explain(&sandbox, "same");
    let ids: Vec<_> = found
        .iter()
        .map(|one| one["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids.len(), 3);
    assert!(ids.is_sorted_by(|one, other| one > other), "{ids:?}");
}

#[test]
fn last_failed_requests_are_listed_without_an_id() {
    let sandbox = testkit::sandbox!();
    sandbox.run("explain").assert_code(1);
    let bad = failing(400);
    let server = serve(&sandbox, &[&bad], UNPROBED);
    assert!(
        sandbox
            .run("explain")
            .output()
            .contains("No request has failed recently")
    );
    assert_eq!(ask(&server, "wrong").status(), 400);
    let _ = explained(&sandbox, &server, "wrong");
    let done = sandbox.run("explain");
    done.assert_code(0);
    let text = done.output();
    let row = text.lines().find(|line| line.ends_with("wrong"));
    assert!(row.is_some_and(|row| row.contains(" 400 ")), "{text}");
}
