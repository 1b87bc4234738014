//! What is refused here is recorded, too, as what it was.

use serde_json::{Value, json};

use crate::ask::{CHAT, ask, chat, send, send_with};
use crate::records;
use testkit::{
    Connection, LlmlbServer, Sandbox,
    backends::{UNPROBED, backend, ok, serve},
};

fn assert_refused(record: &Value, status: u16, outcome: &str) {
    assert_eq!(record["status"], status, "{record:#}");
    assert_eq!(record["outcome"], outcome, "{record:#}");
    assert_eq!(record["backend"], Value::Null, "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    assert_eq!(record["path"], CHAT, "{record:#}");
}

fn of(place: &Sandbox, server: &LlmlbServer, body: &str) -> (u16, Value) {
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, body);
    let status = client.answer().status();
    (status, records::one(place, "a"))
}

#[test]
fn an_unknown_model_is_recorded_by_the_name_that_was_asked_for() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let mut question = chat("Hello", true);
    question["model"] = json!("nobody-has-it");
    let answer = ask(&server, "a", CHAT, &question);
    assert_eq!(answer.status(), 404);
    let record = records::one(&place, "a");
    assert_refused(&record, 404, "refused");
    assert_eq!(record["model"], "nobody-has-it", "{record:#}");
    assert_eq!(record["api"], "chat", "{record:#}");
    assert_eq!(record["stream"], true, "{record:#}");
}

#[test]
fn what_is_no_question_is_recorded_as_one_to_its_api() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let (status, record) = of(&place, &server, "{\"model\":");
    assert_eq!(status, 400);
    assert_refused(&record, 400, "refused");
    assert_eq!(record["model"], Value::Null, "{record:#}");
    assert_eq!(record["api"], "chat", "{record:#}");
}

#[test]
fn what_is_too_large_is_recorded_as_one_to_its_api() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], &[("LLMLB_MAX_BODY", "1KiB")]);
    let question = chat(&"x".repeat(2000), false).to_string();
    let (status, record) = of(&place, &server, &question);
    assert_eq!(status, 413);
    assert_refused(&record, 413, "refused");
    assert_eq!(record["api"], "chat", "{record:#}");
}

#[test]
fn when_all_are_down_the_request_has_failed() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    mock.stop();
    let answer = ask(&server, "a", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 503, "{answer:?}");
    let record = records::one(&place, "a");
    assert_refused(&record, 503, "failed");
    assert_eq!(record["attempts"][0]["backend"], mock.address.to_string());
    // Now it is known to be down, and not tried any more.
    let answer = ask(&server, "b", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 503, "{answer:?}");
    assert_refused(&records::one(&place, "b"), 503, "failed");
}

#[test]
fn a_backend_that_takes_too_long_has_failed() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    let settings = [
        ("LLMLB_FIRST_BYTE_TIMEOUT", "200ms"),
        ("LLMLB_PROBE_INTERVAL", "1h"),
    ];
    let server = serve(&place, &[&mock], &settings);
    let answer = ask(&server, "a", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 504, "{answer:?}");
    let record = records::one(&place, "a");
    assert_eq!(record["status"], 504, "{record:#}");
    assert_eq!(record["outcome"], "failed", "{record:#}");
    assert_eq!(record["backend"], Value::Null, "{record:#}");
    // It has the prompt, and may be at work on it.
    assert!(record["prompt_tokens"].as_u64() > Some(0), "{record:#}");
    assert_eq!(record["completion_tokens"], 0, "{record:#}");
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    assert_eq!(
        record["attempts"].as_array().unwrap().len(),
        1,
        "{record:#}"
    );
}

#[test]
fn what_is_answered_here_or_not_let_in_is_no_request_for_usage() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    for path in [
        "/",
        "/healthz",
        "/readyz",
        "/status",
        "/v1/models",
        "/v1/models/m",
        "/nothing",
    ] {
        let mut client = Connection::open(server.address);
        send_with(&mut client, "GET", "a", path, "", "");
        client.answer();
    }
    assert_eq!(records::all(&place), [Value::Null; 0]);
}
