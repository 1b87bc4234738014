//! Complete responses of every API: the record has the tokens that the backend produced.

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, post, send};
use crate::stream::{DONE, STOP, Scripted, WORD, counting_backend};
use testkit::{
    Connection, LlmlbServer, Sandbox,
    api_server::{Backend, Produced, Reports},
    backends::{UNPROBED, backend, serve},
    until, wire,
};

/// Starts a backend that implements every API, and a server in front of it.
pub(crate) fn world(sandbox: &Sandbox, reports: Reports) -> (Backend, LlmlbServer) {
    world_with(sandbox, reports, "30s")
}

fn world_with(sandbox: &Sandbox, reports: Reports, drain_timeout: &str) -> (Backend, LlmlbServer) {
    let backend = counting_backend(reports);
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
    command.env("LLMLB_DRAIN_TIMEOUT", drain_timeout);
    let server = sandbox.serve_with(&mut command);
    (backend, server)
}

/// Returns the line for a request in the backend's ledger, with the tokens that the backend
/// counted.
pub(crate) fn produced(backend: &Backend, id: &str) -> Produced {
    let lines = backend.state.ledger.lines();
    let mut lines = lines.into_iter().filter(|line| line.request_id == id);
    let line = lines.next().expect("the backend received the request");
    assert!(
        lines.next().is_none(),
        "the backend received the request twice"
    );
    line
}

/// Checks that the record has the token counts of the backend's ledger, marked as reported.
pub(crate) fn assert_agree(record: &Value, made: &Produced) {
    assert_eq!(record["tokens_from"], "reported", "{record:#}");
    assert_eq!(record["prompt_tokens"], made.prompt, "{record:#}");
    assert_eq!(record["completion_tokens"], made.completion, "{record:#}");
    assert_eq!(
        record["tokens"],
        made.prompt + made.completion,
        "{record:#}"
    );
    assert!(record.get("estimated_tokens").is_none(), "{record:#}");
}

/// Returns the path, the name of the API and a request body for every API.
pub(crate) fn bodies_of_every_api() -> Vec<(&'static str, &'static str, Value)> {
    let text = "Say something, please.";
    let messages = json!([{ "role": "user", "content": text }]);
    vec![
        (CHAT, "chat", json!({ "messages": messages })),
        ("/v1/completions", "completions", json!({ "prompt": text })),
        ("/v1/responses", "responses", json!({ "input": text })),
        (
            "/v1/messages",
            "messages",
            json!({ "messages": messages, "max_tokens": 100 }),
        ),
        (
            "/v1/embeddings",
            "embeddings",
            json!({ "input": [text, text] }),
        ),
    ]
}

#[test]
fn response_of_every_api_is_recorded_with_the_tokens_the_backend_counted() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::IfAsked);
    for (path, api, mut request_body) in bodies_of_every_api() {
        request_body["model"] = json!("m");
        for is_stream in [false, true] {
            if is_stream && api == "embeddings" {
                continue;
            }
            request_body["stream"] = json!(is_stream);
            let id = format!("{api}-{is_stream}");
            let answer = post(&server, &id, path, &request_body);
            assert_eq!(answer.status(), 200, "{answer:?}");
            let record = records::one(&sandbox, &id);
            let made = produced(&backend, &id);
            assert_agree(&record, &made);
            // The embeddings API has no field for cached tokens, so the record has none although
            // the backend counted some.
            let cached = if api == "embeddings" { 0 } else { made.cached };
            assert_eq!(record["cached_tokens"], cached, "{record:#}");
            assert_eq!(record["outcome"], "complete");
            assert_eq!(record["status"], 200);
            assert_eq!(record["api"], api);
            assert_eq!(record["path"], path);
            assert_eq!(record["stream"], is_stream);
            assert_eq!(record["model"], "m");
            assert_eq!(record["backend"], backend.mock.address.to_string());
            assert_eq!(record["attempts"], json!([]));
            assert_eq!(record["key"], Value::Null);
            assert!(record["first_byte_ms"].as_u64() <= record["ms"].as_u64());
            if !is_stream {
                let length = answer.body.as_ref().unwrap().len();
                assert_eq!(record["bytes"], length, "{record:#}");
            }
        }
    }
    assert_eq!(records::all(&sandbox).len(), 9);
}

#[test]
fn record_has_the_time_at_which_the_request_arrived() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = world(&sandbox, Reports::IfAsked);
    let before = jiff::Timestamp::now().as_millisecond();
    post(&server, "a", CHAT, &chat("Hello", false));
    let after = jiff::Timestamp::now().as_millisecond();
    let record = records::one(&sandbox, "a");
    let time = record["time"].as_str().unwrap();
    let time: jiff::Timestamp = time.parse().unwrap();
    assert!((before..=after).contains(&time.as_millisecond()), "{time}");
}

/// A backend may send the head of a response long before the body, so the time to the first byte
/// must be that of the body.
#[test]
fn first_byte_time_is_that_of_the_body_not_of_the_head() {
    const PAUSE: Duration = Duration::from_millis(300);
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        wire::begin_stream(stream);
        thread::sleep(PAUSE);
        wire::chunk(stream, &[WORD, STOP, DONE].concat());
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    assert_eq!(post(&server, "a", CHAT, &chat("Hello", true)).status(), 200);
    let record = records::one(&sandbox, "a");
    let first = record["first_byte_ms"].as_u64().unwrap();
    assert!(u128::from(first) >= PAUSE.as_millis(), "{record:#}");
    assert!(Some(first) <= record["ms"].as_u64(), "{record:#}");
}

/// A response that the client received completely has the outcome `complete`, even if its content
/// is an error.
#[test]
fn complete_response_with_an_error_is_recorded_as_complete() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let usage = r#""usage":{"input_tokens":5,"output_tokens":2}"#;
    for (number, (error, usage, from)) in [
        (
            r#"{"code":"server_error","message":"no"}"#,
            usage,
            "reported",
        ),
        (r#"{"code":"server_error","message":"no"}"#, "", "none"),
        (r#""""#, usage, "reported"),
        (r#""""#, "", "estimated"),
        ("false", "", "estimated"),
        ("null", "", "estimated"),
    ]
    .into_iter()
    .enumerate()
    {
        let comma = if usage.is_empty() { "" } else { "," };
        let body = format!(r#"{{"id":"resp_1","status":"failed","error":{error}{comma}{usage}}}"#);
        let response = body.clone();
        scripted.next(move |_, stream| wire::json(stream, 200, &response));
        let id = format!("r-{number}");
        let request_body = json!({ "model": "m", "input": "Hello" });
        let answer = post(&server, &id, "/v1/responses", &request_body);
        assert_eq!(answer.text(), body);
        let record = records::one(&sandbox, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["tokens_from"], from, "{body} {record:#}");
    }
}

#[test]
fn every_request_of_a_connection_has_one_record() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::IfAsked);
    let mut client = Connection::open(server.address);
    for number in 0..20 {
        let id = format!("r-{number}");
        let request_body = chat(&format!("[tokens {number}]"), number % 2 == 0);
        send(&mut client, &id, CHAT, &request_body.to_string());
        assert_eq!(client.answer().status(), 200);
        assert_agree(&records::one(&sandbox, &id), &produced(&backend, &id));
    }
    assert_eq!(records::all(&sandbox).len(), 20);
}

#[test]
fn every_concurrent_request_has_one_record() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::IfAsked);
    thread::scope(|scope| {
        for client in 0..16 {
            let server = &server;
            scope.spawn(move || {
                for number in 0..10 {
                    let id = format!("r-{client}-{number}");
                    let request_body =
                        chat(&format!("[tokens {}]", client * number), number % 2 == 0);
                    let answer = post(server, &id, CHAT, &request_body);
                    assert_eq!(answer.status(), 200, "{answer:?}");
                }
            });
        }
    });
    assert_eq!(records::all(&sandbox).len(), 160);
    for record in records::all(&sandbox) {
        let id = record["request_id"].as_str().unwrap();
        assert_agree(&record, &produced(&backend, id));
    }
}

#[test]
fn requests_with_the_same_id_have_one_record_each() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = world(&sandbox, Reports::IfAsked);
    for _ in 0..2 {
        post(&server, "same", CHAT, &chat("Hello", false));
    }
    let found = records::of_request(&sandbox, "same");
    assert_eq!(found.len(), 2);
    assert_ne!(found[0]["id"], found[1]["id"]);
}

#[test]
fn response_in_small_pieces_is_metered_like_any_other() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::IfAsked);
    for (path, api, mut request_body) in bodies_of_every_api() {
        request_body["model"] = json!("m");
        request_body["stream"] = json!(api != "embeddings");
        request_body["note"] = json!("[ragged]");
        assert_eq!(post(&server, api, path, &request_body).status(), 200);
        assert_agree(&records::one(&sandbox, api), &produced(&backend, api));
    }
}

/// Usage is at the end of the body, after megabytes of vectors, or after a last event that repeats
/// the whole response.
#[test]
fn usage_at_the_end_of_a_large_response_is_found() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::IfAsked);
    for (path, api, mut request_body) in bodies_of_every_api() {
        request_body["model"] = json!("m");
        request_body["stream"] = json!(api != "embeddings");
        request_body["max_tokens"] = json!(20_000);
        let text = format!("[tokens 20000] {}", "x".repeat(300_000));
        match api {
            "chat" | "messages" => request_body["messages"][0]["content"] = json!(text),
            "completions" => request_body["prompt"] = json!(text),
            "responses" => request_body["input"] = json!(text),
            _ => request_body["input"] = json!(vec!["x"; 255]),
        }
        assert_eq!(post(&server, api, path, &request_body).status(), 200);
        assert_agree(&records::one(&sandbox, api), &produced(&backend, api));
    }
}

#[test]
fn servers_that_share_a_data_directory_record_every_request() {
    let sandbox = testkit::sandbox!();
    let (backend, first) = world(&sandbox, Reports::IfAsked);
    let second = sandbox.serve(&format!("--backend {}", backend.mock.url()));
    for number in 0..10 {
        for (name, server) in [("first", &first), ("second", &second)] {
            let id = format!("{name}-{number}");
            post(server, &id, CHAT, &chat("Hello", number % 2 == 0));
            assert_agree(&records::one(&sandbox, &id), &produced(&backend, &id));
        }
    }
    assert_eq!(records::all(&sandbox).len(), 20);
}

/// Starts a server with 8 streams that are still open when the test stops the server.
fn streaming(sandbox: &Sandbox, drain_timeout: &str) -> (Backend, LlmlbServer, Vec<Connection>) {
    let (backend, server) = world_with(sandbox, Reports::IfAsked, drain_timeout);
    let mut clients = Vec::new();
    for number in 0..8 {
        let mut client = Connection::open(server.address);
        let request_body = chat("[tokens 100000] [pace 20]", true).to_string();
        send(&mut client, &format!("r-{number}"), CHAT, &request_body);
        assert_eq!(client.head().status(), 200);
        clients.push(client);
    }
    (backend, server, clients)
}

fn interrupt(server: &LlmlbServer) {
    let pid = server.process.pid().to_string();
    let sent = Command::new("kill").args(["-INT", &pid]).status();
    assert!(sent.unwrap().success());
}

fn assert_streams_recorded(sandbox: &Sandbox) {
    for number in 0..8 {
        let record = records::one(sandbox, &format!("r-{number}"));
        let outcome = record["outcome"].as_str().unwrap();
        assert!(["cancelled", "cut"].contains(&outcome), "{record:#}");
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    }
}

#[test]
fn stream_aborted_at_the_drain_deadline_has_a_record() {
    let sandbox = testkit::sandbox!();
    let (_backend, server, _clients) = streaming(&sandbox, "100ms");
    interrupt(&server);
    until("the server has ended", || !server.process.is_running());
    assert_streams_recorded(&sandbox);
}

#[test]
fn stream_aborted_by_a_second_signal_has_a_record() {
    let sandbox = testkit::sandbox!();
    let (_backend, server, _clients) = streaming(&sandbox, "1h");
    interrupt(&server);
    until("the server drains", || {
        server.process.stderr().contains("received: draining")
    });
    interrupt(&server);
    until("the server has ended", || !server.process.is_running());
    assert_streams_recorded(&sandbox);
}
