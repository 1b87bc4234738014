//! Requests that llmlb refuses itself, such as for an unknown model, have a usage record too.

use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, post, send, send_with};
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

fn send_body(sandbox: &Sandbox, server: &LlmlbServer, body: &str) -> (u16, Value) {
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, body);
    let status = client.answer().status();
    (status, records::one(sandbox, "a"))
}

#[test]
fn unknown_model_is_recorded_by_its_requested_name() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut request_body = chat("Hello", true);
    request_body["model"] = json!("unserved-model");
    let answer = post(&server, "a", CHAT, &request_body);
    assert_eq!(answer.status(), 404);
    let record = records::one(&sandbox, "a");
    assert_refused(&record, 404, "refused");
    assert_eq!(record["model"], "unserved-model", "{record:#}");
    assert_eq!(record["api"], "chat", "{record:#}");
    assert_eq!(record["stream"], true, "{record:#}");
}

#[test]
fn invalid_body_is_recorded_with_the_api_of_its_path() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let (status, record) = send_body(&sandbox, &server, "{\"model\":");
    assert_eq!(status, 400);
    assert_refused(&record, 400, "refused");
    assert_eq!(record["model"], Value::Null, "{record:#}");
    assert_eq!(record["api"], "chat", "{record:#}");
}

#[test]
fn too_large_body_is_recorded_with_the_api_of_its_path() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_MAX_BODY", "1KiB")]);
    let request_body = chat(&"x".repeat(2000), false).to_string();
    let (status, record) = send_body(&sandbox, &server, &request_body);
    assert_eq!(status, 413);
    assert_refused(&record, 413, "refused");
    assert_eq!(record["api"], "chat", "{record:#}");
}

#[test]
fn request_is_recorded_as_failed_when_all_backends_are_down() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    mock.stop();
    let answer = post(&server, "a", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 503, "{answer:?}");
    let record = records::one(&sandbox, "a");
    assert_refused(&record, 503, "failed");
    assert_eq!(record["attempts"][0]["backend"], mock.address.to_string());
    // The failure has marked the backend down, so this request is not tried at any backend and must
    // be recorded all the same.
    let answer = post(&server, "b", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 503, "{answer:?}");
    assert_refused(&records::one(&sandbox, "b"), 503, "failed");
}

#[test]
fn request_is_recorded_as_failed_when_the_backend_times_out() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    let settings = [
        ("LLMLB_FIRST_BYTE_TIMEOUT", "200ms"),
        ("LLMLB_PROBE_INTERVAL", "1h"),
    ];
    let server = serve(&sandbox, &[&mock], &settings);
    let answer = post(&server, "a", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 504, "{answer:?}");
    let record = records::one(&sandbox, "a");
    assert_eq!(record["status"], 504, "{record:#}");
    assert_eq!(record["outcome"], "failed", "{record:#}");
    assert_eq!(record["backend"], Value::Null, "{record:#}");
    // The backend has received the prompt and may be processing it, so the prompt's estimated
    // tokens are recorded.
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
fn requests_that_no_backend_serves_are_not_recorded() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
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
    assert_eq!(records::all(&sandbox), [Value::Null; 0]);
}
