//! Requests that take no tokens are recorded without.

use serde_json::{Value, json};

use crate::answers::{produced, world};
use crate::ask::{ask, chat, send_with};
use crate::records;
use crate::stream::{Scripted, send};
use testkit::{
    Answer, Connection, LlmlbServer, Sandbox,
    api_server::Reports,
    backends::{UNPROBED, serve},
    wire,
};

fn of_method(server: &LlmlbServer, id: &str, method: &str, path: &str) -> Answer {
    let mut client = Connection::open(server.address);
    send_with(&mut client, method, id, path, "", "");
    if method == "HEAD" {
        let head = client.head();
        return Answer {
            head,
            body: Ok(Vec::new()),
        };
    }
    client.answer()
}

fn assert_no_tokens(place: &Sandbox, id: &str, path: &str) -> Value {
    let record = records::one(place, id);
    assert_eq!(record["tokens"], 0, "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    assert_eq!(record["path"], path, "{record:#}");
    record
}

#[test]
fn what_is_fetched_or_deleted_or_only_looked_for_is_recorded_without_tokens() {
    let place = testkit::sandbox!();
    let (_backend, server) = world(&place, Reports::IfAsked);
    for (id, method, path, kind) in [
        ("get", "GET", "/v1/files", "/v1/files"),
        ("head", "HEAD", "/v1/files", "/v1/files"),
        ("one", "GET", "/v1/files/file-1?x=y", "/v1/files"),
        ("delete", "DELETE", "/v1/files/file-1", "/v1/files"),
        ("unknown", "GET", "/v1/threads/t/runs/r", "/v1/threads"),
        ("empty", "POST", "/v1/batches", "/v1/batches"),
    ] {
        let answer = of_method(&server, id, method, path);
        let record = assert_no_tokens(&place, id, kind);
        assert_eq!(record["status"], answer.status(), "{record:#}");
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["api"], "other", "{record:#}");
        assert_eq!(record["model"], Value::Null, "{record:#}");
    }
    assert_eq!(records::all(&place).len(), 6);
}

#[test]
fn an_upload_and_what_is_made_of_sound_and_pictures_is_recorded() {
    let place = testkit::sandbox!();
    let (_backend, server) = world(&place, Reports::IfAsked);
    let form = "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
        --x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--x--\r\n";
    for (id, path) in [("file", "/v1/files"), ("sound", "/v1/audio/transcriptions")] {
        let mut client = Connection::open(server.address);
        let fields = "content-type: multipart/form-data; boundary=x\r\n";
        send_with(&mut client, "POST", id, path, fields, form);
        assert_eq!(client.answer().status(), 200);
        let record = assert_no_tokens(&place, id, path);
        // Uploaded files are streamed unread.
        let model = (id == "sound").then_some("m");
        assert_eq!(record["model"].as_str(), model, "{record:#}");
        assert_eq!(record["outcome"], "complete", "{record:#}");
    }
    let question = json!({ "model": "m", "input": "Hello", "prompt": "Hello" });
    let answer = ask(&server, "speech", "/v1/audio/speech", &question);
    assert_eq!(answer.status(), 200);
    assert_no_tokens(&place, "speech", "/v1/audio/speech");
    // Some tell what a picture took.
    let path = "/v1/images/generations";
    let answer = ask(&server, "picture", path, &question).json();
    let record = records::one(&place, "picture");
    assert_eq!(
        record["tokens"], answer["usage"]["total_tokens"],
        "{record:#}"
    );
    assert_eq!(record["tokens_from"], "reported", "{record:#}");
    assert_eq!(records::all(&place).len(), 4);
}

#[test]
fn an_answer_that_is_fetched_again_is_not_counted_again() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::IfAsked);
    let question = json!({ "model": "m", "input": "Hello" });
    let answer = ask(&server, "made", "/v1/responses", &question).json();
    let made = produced(&backend, "made");
    assert_eq!(records::one(&place, "made")["prompt_tokens"], made.prompt);
    let path = format!("/v1/responses/{}", answer["id"].as_str().unwrap());
    let fetched = of_method(&server, "fetched", "GET", &path);
    assert_eq!(fetched.json()["usage"], answer["usage"]);
    assert_no_tokens(&place, "fetched", "/v1/responses");
}

#[test]
fn counting_tokens_takes_none() {
    let place = testkit::sandbox!();
    let (_backend, server) = world(&place, Reports::IfAsked);
    let answer = ask(
        &server,
        "a",
        "/v1/messages/count_tokens",
        &chat("Hello", false),
    );
    assert!(answer.json()["input_tokens"].as_u64() > Some(0));
    assert_no_tokens(&place, "a", "/v1/messages/count_tokens");
}

/// A transcription is what somebody said, and people say anything.
#[test]
fn a_text_that_begins_like_an_event_is_a_text() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
    for (number, text) in [
        "data: that is what we need.\n",
        "everyone is here.",
        "it rains.",
        "ready when you are.",
        "do you hear me?",
        ": a smile.",
        "id: 7",
    ]
    .into_iter()
    .enumerate()
    {
        for kind in ["content-type: text/plain\r\n", ""] {
            scripted.next(move |_, stream| send(stream, kind, text.as_bytes()));
            let id = format!("r-{number}-{}", kind.len());
            let path = "/v1/audio/transcriptions";
            let answer = ask(&server, &id, path, &json!({ "model": "m" }));
            assert_eq!(answer.text(), text);
            let record = assert_no_tokens(&place, &id, path);
            assert_eq!(record["outcome"], "complete", "{text}");
        }
    }
}

/// It is made later; what is here says so, and is no answer.
#[test]
fn a_response_that_is_made_in_the_background_has_only_its_prompt_counted() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
    for status in ["queued", "in_progress"] {
        let body = json!({
            "id": "resp_1", "object": "response", "background": true, "status": status,
            "output": [], "usage": null, "error": null, "model": "m",
            "instructions": "word ".repeat(500),
        });
        let body = body.to_string();
        scripted.next(move |_, stream| wire::json(stream, 200, &body));
        let question = json!({ "model": "m", "input": "Hello", "background": true });
        ask(&server, status, "/v1/responses", &question);
        let record = records::one(&place, status);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["completion_tokens"], 0, "{record:#}");
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
        assert_eq!(record["tokens"], record["prompt_tokens"], "{record:#}");
    }
}
