//! Whole answers of every API: the record has what the backend says it made.

use std::process::Command;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::ask::{CHAT, ask, chat, send};
use crate::records;
use crate::stream::{DONE, STOP, Scripted, WORD};
use testkit::{
    Connection, LlmlbServer, Sandbox,
    api_server::{Backend, Produced, Reports, Sort},
    backends::{UNPROBED, backend, serve},
    until, wire,
};

/// A backend that speaks every API, and a server before it.
pub(crate) fn world(place: &Sandbox, reports: Reports) -> (Backend, LlmlbServer) {
    world_with(place, reports, "30s")
}

fn world_with(place: &Sandbox, reports: Reports, drain_timeout: &str) -> (Backend, LlmlbServer) {
    let backend = Backend::start(Sort {
        name: "b",
        models: &["m"],
        reports,
        key: None,
    });
    let mut command = place.command(&format!("serve -p 0 --backend {}", backend.mock.url()));
    command.env("LLMLB_DRAIN_TIMEOUT", drain_timeout);
    let server = place.serve_with(&mut command);
    (backend, server)
}

/// What the backend made for a request.
pub(crate) fn produced(backend: &Backend, id: &str) -> Produced {
    let lines = backend.state.ledger.lines();
    let mut lines = lines.into_iter().filter(|line| line.request_id == id);
    let line = lines.next().expect("the backend was asked");
    assert!(lines.next().is_none(), "it was asked twice");
    line
}

/// The numbers of the record are those of the backend's ledger.
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

/// Path, name of the API, and a question.
pub(crate) fn questions() -> Vec<(&'static str, &'static str, Value)> {
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
fn an_answer_of_every_api_is_written_down_with_what_the_backend_counted() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::IfAsked);
    for (path, api, mut question) in questions() {
        question["model"] = json!("m");
        for is_stream in [false, true] {
            if is_stream && api == "embeddings" {
                continue;
            }
            question["stream"] = json!(is_stream);
            let id = format!("{api}-{is_stream}");
            let answer = ask(&server, &id, path, &question);
            assert_eq!(answer.status(), 200, "{answer:?}");
            let record = records::one(&place, &id);
            let made = produced(&backend, &id);
            assert_agree(&record, &made);
            // Some tell nothing of what was cached.
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
    assert_eq!(records::all(&place).len(), 9);
}

#[test]
fn the_time_of_a_record_is_when_the_request_came() {
    let place = testkit::sandbox!();
    let (_backend, server) = world(&place, Reports::IfAsked);
    let before = jiff::Timestamp::now().as_millisecond();
    ask(&server, "a", CHAT, &chat("Hello", false));
    let after = jiff::Timestamp::now().as_millisecond();
    let record = records::one(&place, "a");
    let time = record["time"].as_str().unwrap();
    let time: jiff::Timestamp = time.parse().unwrap();
    assert!((before..=after).contains(&time.as_millisecond()), "{time}");
}

/// A backend may say that it will answer long before it does.
#[test]
fn the_first_byte_is_the_first_of_the_body() {
    const PAUSE: Duration = Duration::from_millis(300);
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| {
        wire::begin_stream(stream);
        thread::sleep(PAUSE);
        wire::chunk(stream, &[WORD, STOP, DONE].concat());
        wire::end_stream(stream);
    });
    let server = serve(&place, &[&mock], UNPROBED);
    assert_eq!(ask(&server, "a", CHAT, &chat("Hello", true)).status(), 200);
    let record = records::one(&place, "a");
    let first = record["first_byte_ms"].as_u64().unwrap();
    assert!(u128::from(first) >= PAUSE.as_millis(), "{record:#}");
    assert!(Some(first) <= record["ms"].as_u64(), "{record:#}");
}

/// The client has all of it, whatever it says.
#[test]
fn a_whole_answer_that_tells_of_an_error_is_complete() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
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
        let said = body.clone();
        scripted.next(move |_, stream| wire::json(stream, 200, &said));
        let id = format!("r-{number}");
        let question = json!({ "model": "m", "input": "Hello" });
        let answer = ask(&server, &id, "/v1/responses", &question);
        assert_eq!(answer.text(), body);
        let record = records::one(&place, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["tokens_from"], from, "{body} {record:#}");
    }
}

#[test]
fn requests_on_one_connection_have_a_record_each() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::IfAsked);
    let mut client = Connection::open(server.address);
    for number in 0..20 {
        let id = format!("r-{number}");
        let question = chat(&format!("[tokens {number}]"), number % 2 == 0);
        send(&mut client, &id, CHAT, &question.to_string());
        assert_eq!(client.answer().status(), 200);
        assert_agree(&records::one(&place, &id), &produced(&backend, &id));
    }
    assert_eq!(records::all(&place).len(), 20);
}

#[test]
fn many_at_once_have_a_record_each() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::IfAsked);
    thread::scope(|scope| {
        for client in 0..16 {
            let server = &server;
            scope.spawn(move || {
                for number in 0..10 {
                    let id = format!("r-{client}-{number}");
                    let question = chat(&format!("[tokens {}]", client * number), number % 2 == 0);
                    let answer = ask(server, &id, CHAT, &question);
                    assert_eq!(answer.status(), 200, "{answer:?}");
                }
            });
        }
    });
    assert_eq!(records::all(&place).len(), 160);
    for record in records::all(&place) {
        let id = record["request_id"].as_str().unwrap();
        assert_agree(&record, &produced(&backend, id));
    }
}

#[test]
fn two_requests_with_one_id_are_two_records() {
    let place = testkit::sandbox!();
    let (_backend, server) = world(&place, Reports::IfAsked);
    for _ in 0..2 {
        ask(&server, "same", CHAT, &chat("Hello", false));
    }
    let found = records::of_request(&place, "same");
    assert_eq!(found.len(), 2);
    assert_ne!(found[0]["id"], found[1]["id"]);
}

#[test]
fn what_is_cut_into_inconvenient_pieces_is_counted_as_well() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::IfAsked);
    for (path, api, mut question) in questions() {
        question["model"] = json!("m");
        question["stream"] = json!(api != "embeddings");
        question["note"] = json!("[ragged]");
        assert_eq!(ask(&server, api, path, &question).status(), 200);
        assert_agree(&records::one(&place, api), &produced(&backend, api));
    }
}

/// The last event of a response repeats all of it; vectors are megabytes long.
#[test]
fn what_stands_behind_much_is_found() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::IfAsked);
    for (path, api, mut question) in questions() {
        question["model"] = json!("m");
        question["stream"] = json!(api != "embeddings");
        question["max_tokens"] = json!(20_000);
        let text = format!("[tokens 20000] {}", "x".repeat(300_000));
        match api {
            "chat" | "messages" => question["messages"][0]["content"] = json!(text),
            "completions" => question["prompt"] = json!(text),
            "responses" => question["input"] = json!(text),
            _ => question["input"] = json!(vec!["x"; 255]),
        }
        assert_eq!(ask(&server, api, path, &question).status(), 200);
        assert_agree(&records::one(&place, api), &produced(&backend, api));
    }
}

#[test]
fn two_servers_may_write_into_one_directory() {
    let place = testkit::sandbox!();
    let (backend, first) = world(&place, Reports::IfAsked);
    let second = place.serve(&format!("--backend {}", backend.mock.url()));
    for number in 0..10 {
        for (name, server) in [("first", &first), ("second", &second)] {
            let id = format!("{name}-{number}");
            ask(server, &id, CHAT, &chat("Hello", number % 2 == 0));
            assert_agree(&records::one(&place, &id), &produced(&backend, &id));
        }
    }
    assert_eq!(records::all(&place).len(), 20);
}

/// A server with streams that do not end by themselves.
fn streaming(place: &Sandbox, drain_timeout: &str) -> (Backend, LlmlbServer, Vec<Connection>) {
    let (backend, server) = world_with(place, Reports::IfAsked, drain_timeout);
    let mut clients = Vec::new();
    for number in 0..8 {
        let mut client = Connection::open(server.address);
        let question = chat("[tokens 100000] [pace 20]", true).to_string();
        send(&mut client, &format!("r-{number}"), CHAT, &question);
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

fn assert_cut_short(place: &Sandbox) {
    for number in 0..8 {
        let record = records::one(place, &format!("r-{number}"));
        let outcome = record["outcome"].as_str().unwrap();
        assert!(["cancelled", "cut"].contains(&outcome), "{record:#}");
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    }
}

#[test]
fn what_was_not_over_when_the_time_was_up_has_a_record() {
    let place = testkit::sandbox!();
    let (_backend, server, _clients) = streaming(&place, "100ms");
    interrupt(&server);
    until("it has ended", || !server.process.is_running());
    assert_cut_short(&place);
}

#[test]
fn what_was_not_over_when_the_server_was_told_twice_has_a_record() {
    let place = testkit::sandbox!();
    let (_backend, server, _clients) = streaming(&place, "1h");
    interrupt(&server);
    until("it drains", || {
        server.process.stderr().contains("received: draining")
    });
    interrupt(&server);
    until("it has ended", || !server.process.is_running());
    assert_cut_short(&place);
}
