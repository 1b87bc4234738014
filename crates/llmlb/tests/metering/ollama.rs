//! Ollama's own API: its requests go to Ollama backends and are metered like all others.

use serde_json::{Value, json};

use crate::records;
use crate::requests::{post, send_with};
use testkit::{
    Connection, FakeLlm, Received,
    backends::{ok, serve, serve_file, served_by},
    ollama, wire,
};

const CHAT: &str = "/api/chat";

fn other(model: &'static str) -> FakeLlm {
    FakeLlm::handling(&[model], |request: &Received, stream| {
        match request.target() {
            path if path.starts_with("/v1/") => ok(request, stream),
            _ => wire::json(stream, 404, "{}"),
        }
    })
}

fn request_body(model: &str, text: &str) -> Value {
    json!({ "model": model, "prompt": text, "messages": [{ "role": "user", "content": text }] })
}

#[test]
fn ollama_request_goes_to_an_ollama_backend_and_is_recorded() {
    let sandbox = testkit::sandbox!();
    let (other, ollama) = (other("m"), ollama("m"));
    let server = serve(&sandbox, &[&other, &ollama], &[]);
    for (path, api) in [(CHAT, "ollama.chat"), ("/api/generate", "ollama.generate")] {
        for is_stream in [true, false] {
            let id = format!("{api}-{is_stream}");
            let mut body = request_body("m", "hello");
            if !is_stream {
                body["stream"] = false.into(); // Ollama streams by default.
            }
            let answer = post(&server, &id, path, &body);
            assert_eq!(answer.status(), 200, "{answer:?}");
            assert_eq!(served_by(&answer), ollama.address.to_string());
            let last = answer.text();
            let last: Value =
                serde_json::from_str(last.trim_end().lines().last().unwrap()).unwrap();
            assert_eq!(last["eval_count"], 4, "the usage is not removed");
            let record = records::one(&sandbox, &id);
            assert_eq!(record["api"], api);
            assert_eq!(record["stream"], is_stream, "{record:#}");
            assert_eq!(record["outcome"], "complete");
            assert_eq!(record["tokens_from"], "reported");
            assert_eq!(record["prompt_tokens"], 26);
            assert_eq!(record["completion_tokens"], 4);
        }
    }
    let vectors = post(
        &server,
        "vectors",
        "/api/embed",
        &json!({ "model": "m", "input": "a" }),
    );
    assert_eq!(vectors.status(), 200);
    let record = records::one(&sandbox, "vectors");
    assert_eq!(
        (&record["api"], &record["tokens"]),
        (&json!("ollama.embed"), &json!(8))
    );
    assert_eq!(other.count(), 0, "this backend is not Ollama");
}

#[test]
fn ollama_stream_without_its_end_is_recorded_as_cut() {
    let sandbox = testkit::sandbox!();
    let ollama = ollama("m");
    let server = serve(&sandbox, &[&ollama], &[]);
    let mut client = Connection::open(server.address);
    let body = request_body("m", "cut").to_string();
    send_with(&mut client, "POST", "cut", CHAT, "", &body);
    assert!(client.head().body(&mut client.reader).is_err());
    let record = records::eventually(&sandbox, "cut");
    assert_eq!(record["outcome"], "cut");
    assert_eq!(record["tokens_from"], "estimated");
}

#[test]
fn model_that_no_ollama_backend_has_is_an_error_in_ollamas_format() {
    let sandbox = testkit::sandbox!();
    let (other, ollama) = (other("theirs"), ollama("ours"));
    let server = serve(&sandbox, &[&other, &ollama], &[]);
    let answer = post(&server, "1", CHAT, &request_body("theirs", "hello"));
    assert_eq!(answer.status(), 404);
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(error.contains("`theirs`"), "{error}");
    assert!(error.contains("Available: ours."), "{error}");
    assert_eq!(records::one(&sandbox, "1")["outcome"], "refused");
}

#[test]
fn requests_that_change_a_backend_are_rejected() {
    let sandbox = testkit::sandbox!();
    let ollama = ollama("m");
    let server = serve(&sandbox, &[&ollama], &[]);
    let body = json!({ "model": "m", "name": "m" }).to_string();
    for (method, path) in [
        ("POST", "/api/pull"),
        ("POST", "/api/create"),
        ("POST", "/api/copy"),
        ("POST", "/api/push"),
        ("DELETE", "/api/delete"),
        ("GET", "/api/chat"),
        ("POST", "/api/tags"),
        ("POST", "/api//pull"),
    ] {
        let mut client = Connection::open(server.address);
        send_with(&mut client, method, "1", path, "", &body);
        assert_eq!(client.answer().status(), 404, "{method} {path}");
    }
    let answer = server.post("/api/../api/pull", &body);
    assert_eq!(answer.status(), 400, "{answer:?}");
    assert_eq!(ollama.count(), 0);
}

#[test]
fn model_list_version_and_model_details_are_served() {
    let sandbox = testkit::sandbox!();
    let (one, two, other) = (ollama("one"), ollama("two"), other("theirs"));
    let server = serve(&sandbox, &[&other, &one, &two], &[]);
    let tags = server.get("/api/tags").json();
    let names: Vec<_> = (tags["models"].as_array().unwrap().iter())
        .map(|model| model["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["one", "two"]);
    assert_eq!(tags["models"][0]["modified_at"], "2023-11-14T22:13:20Z");
    assert_eq!(server.get("/api/version").json()["version"], "0.12.0");
    let shown = post(&server, "1", "/api/show", &json!({ "model": "two" }));
    assert_eq!(served_by(&shown), two.address.to_string());
}

#[test]
fn alias_is_replaced_by_the_ollama_model_and_fails_over() {
    let sandbox = testkit::sandbox!();
    let (gone, there) = (ollama("real:latest"), ollama("real:latest"));
    let file = format!(
        "[aliases]\nfast = \"real\"\n[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\n",
        gone.url(),
        there.url()
    );
    let server = serve_file(&sandbox, &file);
    gone.stop();
    for name in ["fast", "real", "real:latest"] {
        let answer = post(&server, name, CHAT, &request_body(name, "hello"));
        assert_eq!(answer.status(), 200);
        assert_eq!(served_by(&answer), "backend-2");
        let sent = there.requests().pop().unwrap().text();
        assert!(sent.contains(r#""model":"real:latest""#), "{sent}");
    }
}
