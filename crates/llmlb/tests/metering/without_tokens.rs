//! Requests that use no tokens are recorded without tokens.

use serde_json::{Value, json};

use crate::records;
use crate::requests::{chat, post, send_with};
use crate::responses::{produced, world};
use crate::stream::{Scripted, send};
use testkit::{
    Answer, Connection, LlmlbServer, Sandbox,
    api_server::Reports,
    backends::{UNPROBED, serve},
    wire,
};

fn request(server: &LlmlbServer, id: &str, method: &str, path: &str) -> Answer {
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

fn assert_no_tokens(sandbox: &Sandbox, id: &str, path: &str) -> Value {
    let record = records::one(sandbox, id);
    assert_eq!(record["tokens"], 0, "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    assert_eq!(record["path"], path, "{record:#}");
    record
}

#[test]
fn get_head_and_delete_are_recorded_without_tokens() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = world(&sandbox, Reports::IfAsked);
    for (id, method, path, kind) in [
        ("get", "GET", "/v1/files", "/v1/files"),
        ("head", "HEAD", "/v1/files", "/v1/files"),
        ("one", "GET", "/v1/files/file-1?x=y", "/v1/files"),
        ("delete", "DELETE", "/v1/files/file-1", "/v1/files"),
        ("unknown", "GET", "/v1/threads/t/runs/r", "/v1/threads"),
        ("empty", "POST", "/v1/batches", "/v1/batches"),
    ] {
        let answer = request(&server, id, method, path);
        let record = assert_no_tokens(&sandbox, id, kind);
        assert_eq!(record["status"], answer.status(), "{record:#}");
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["api"], "other", "{record:#}");
        assert_eq!(record["model"], Value::Null, "{record:#}");
    }
    assert_eq!(records::all(&sandbox).len(), 6);
}

#[test]
fn uploads_audio_and_images_are_recorded() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = world(&sandbox, Reports::IfAsked);
    let form = "--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nm\r\n\
        --x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\nRIFF\r\n--x--\r\n";
    for (id, path) in [("file", "/v1/files"), ("sound", "/v1/audio/transcriptions")] {
        let mut client = Connection::open(server.address);
        let fields = "content-type: multipart/form-data; boundary=x\r\n";
        send_with(&mut client, "POST", id, path, fields, form);
        assert_eq!(client.answer().status(), 200);
        let record = assert_no_tokens(&sandbox, id, path);
        // The model of an upload to `/v1/files` is not known, because llmlb streams the file
        // unread. Only the form for audio has a model.
        let model = (id == "sound").then_some("m");
        assert_eq!(record["model"].as_str(), model, "{record:#}");
        assert_eq!(record["outcome"], "complete", "{record:#}");
    }
    let request_body = json!({ "model": "m", "input": "Hello", "prompt": "Hello" });
    let answer = post(&server, "speech", "/v1/audio/speech", &request_body);
    assert_eq!(answer.status(), 200);
    assert_no_tokens(&sandbox, "speech", "/v1/audio/speech");
    // Images use no tokens of text, but if the backend reports usage, the record must have it.
    let path = "/v1/images/generations";
    let answer = post(&server, "picture", path, &request_body).json();
    let record = records::one(&sandbox, "picture");
    assert_eq!(
        record["tokens"], answer["usage"]["total_tokens"],
        "{record:#}"
    );
    assert_eq!(record["tokens_from"], "reported", "{record:#}");
    assert_eq!(records::all(&sandbox).len(), 4);
}

#[test]
fn stored_response_that_is_fetched_again_has_no_tokens() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::IfAsked);
    let request_body = json!({ "model": "m", "input": "Hello" });
    let answer = post(&server, "made", "/v1/responses", &request_body).json();
    let made = produced(&backend, "made");
    assert_eq!(records::one(&sandbox, "made")["prompt_tokens"], made.prompt);
    let path = format!("/v1/responses/{}", answer["id"].as_str().unwrap());
    let fetched = request(&server, "fetched", "GET", &path);
    assert_eq!(fetched.json()["usage"], answer["usage"]);
    assert_no_tokens(&sandbox, "fetched", "/v1/responses");
}

#[test]
fn token_count_request_has_no_tokens() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = world(&sandbox, Reports::IfAsked);
    let answer = post(
        &server,
        "a",
        "/v1/messages/count_tokens",
        &chat("Hello", false),
    );
    assert!(answer.json()["input_tokens"].as_u64() > Some(0));
    assert_no_tokens(&sandbox, "a", "/v1/messages/count_tokens");
}

/// A transcription in plain text may begin like a field of an event stream. It must not count as a
/// stream that was cut.
#[test]
fn plain_text_that_begins_like_an_event_is_complete_without_tokens() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
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
            let answer = post(&server, &id, path, &json!({ "model": "m" }));
            assert_eq!(answer.text(), text);
            let record = assert_no_tokens(&sandbox, &id, path);
            assert_eq!(record["outcome"], "complete", "{text}");
        }
    }
}

/// The response object only reports that generation is queued or in progress. Its text must not be
/// counted as generated text.
#[test]
fn background_response_counts_only_its_prompt() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    for status in ["queued", "in_progress"] {
        let body = json!({
            "id": "resp_1", "object": "response", "background": true, "status": status,
            "output": [], "usage": null, "error": null, "model": "m",
            "instructions": "word ".repeat(500),
        });
        let body = body.to_string();
        scripted.next(move |_, stream| wire::json(stream, 200, &body));
        let request_body = json!({ "model": "m", "input": "Hello", "background": true });
        post(&server, status, "/v1/responses", &request_body);
        let record = records::one(&sandbox, status);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["completion_tokens"], 0, "{record:#}");
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
        assert_eq!(record["tokens"], record["prompt_tokens"], "{record:#}");
    }
}
