//! Rejected requests and their error responses.

use http::Method;
use serde_json::{Value, json};

use super::super::routes::BODY_LIMIT;
use super::support::{AT_ONCE, Demo, DemoResponse, RawConnection, chat};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

fn assert_refused(response: &DemoResponse, status: u16, param: Option<&str>, code: Option<&str>) {
    let body = response.json();
    assert_eq!(response.status, status, "{body}");
    assert_eq!(response.headers["content-type"], "application/json");
    assert_eq!(response.headers["x-demo-backend"], "demo-fast");
    let error = body["error"].as_object().unwrap();
    assert_eq!(error.len(), 4, "{body}");
    assert!(!error["message"].as_str().unwrap().is_empty());
    assert_eq!(error["type"], "invalid_request_error");
    assert_eq!(error["param"], json!(param), "{body}");
    assert_eq!(error["code"], json!(code), "{body}");
}

#[tokio::test]
async fn body_that_is_not_a_json_object_is_rejected() {
    let demo = Demo::start(AT_ONCE).await;
    for path in [CHAT, TEXT, EMBEDDINGS] {
        for body in ["", "{", "[]", "\"model\"", "{\"model\": \"demo\"} x"] {
            let response = demo.send(Method::POST, path, body).await;
            assert_refused(&response, 400, None, None);
        }
    }
}

#[tokio::test]
async fn unknown_or_unsuitable_model_is_rejected() {
    let demo = Demo::start(AT_ONCE).await;
    let not_found = Some("model_not_found");
    // The fast backend lacks `demo-large`, although other demo backends have it.
    for model in ["gpt-7", "demo-large", ""] {
        let response = demo.post(CHAT, &chat(&json!({"model": model}))).await;
        assert_refused(&response, 404, Some("model"), not_found);
    }
    let response = demo.send(Method::GET, "/v1/models/demo-large", "").await;
    assert_refused(&response, 404, Some("model"), not_found);

    let response = demo
        .post(CHAT, &chat(&json!({"model": "demo-embed"})))
        .await;
    assert_refused(&response, 400, Some("model"), None);
    let response = demo
        .post(EMBEDDINGS, &json!({"model": "demo", "input": "x"}))
        .await;
    assert_refused(&response, 400, Some("model"), None);
    let response = demo.post(CHAT, &chat(&json!({"model": 1}))).await;
    assert_refused(&response, 400, Some("model"), None);
}

#[tokio::test]
async fn missing_field_is_rejected() {
    let demo = Demo::start(AT_ONCE).await;
    for (path, body, param) in [
        (CHAT, json!({"messages": []}), "model"),
        (CHAT, json!({"model": "demo"}), "messages"),
        (CHAT, json!({"model": "demo", "messages": null}), "messages"),
        (TEXT, json!({"model": "demo"}), "prompt"),
        (EMBEDDINGS, json!({"model": "demo-embed"}), "input"),
    ] {
        let response = demo.post(path, &body).await;
        assert_refused(
            &response,
            400,
            Some(param),
            Some("missing_required_parameter"),
        );
    }
}

#[tokio::test]
async fn invalid_field_is_rejected() {
    let demo = Demo::start(AT_ONCE).await;
    let embedding = |name: &str, value: Value| {
        let mut body = json!({"model": "demo-embed", "input": "x"});
        body[name] = value;
        (EMBEDDINGS, body, name.to_owned())
    };
    let talk = |name: &str, value: Value| (CHAT, chat(&json!({name: value})), name.to_owned());
    for (path, body, param) in [
        talk("messages", json!([])),
        talk("messages", json!([{"role": "user", "content": 1}])),
        talk("stream", json!("yes")),
        talk("n", json!(0)),
        talk("n", json!(2)),
        talk("max_tokens", json!(0)),
        talk("max_tokens", json!(-1)),
        talk("max_completion_tokens", json!(1.5)),
        talk("stream_options", json!({"include_usage": true})),
        (
            TEXT,
            json!({"model": "demo", "prompt": ["a", "b"]}),
            "prompt".to_owned(),
        ),
        embedding("input", json!("")),
        embedding("input", json!([])),
        embedding("dimensions", json!(0)),
        embedding("dimensions", json!(1025)),
        embedding("encoding_format", json!("hex")),
        embedding("encoding_format", json!(1)),
    ] {
        let response = demo.post(path, &body).await;
        assert_refused(&response, 400, Some(&param), None);
    }
    for options in [json!(1), json!({"include_usage": 1})] {
        let body = chat(&json!({"stream": true, "stream_options": options}));
        assert_refused(
            &demo.post(CHAT, &body).await,
            400,
            Some("stream_options"),
            None,
        );
    }
}

#[tokio::test]
async fn unknown_path_is_rejected() {
    let demo = Demo::start(AT_ONCE).await;
    for (method, path, body) in [
        (Method::GET, "/", ""),
        (Method::GET, "/v1", ""),
        (Method::POST, "/v1/responses", "{}"),
        (Method::POST, "/v1/chat/completions/", "{}"),
    ] {
        let response = demo.send(method, path, body).await;
        assert_refused(&response, 404, None, Some("unknown_url"));
    }
}

#[tokio::test]
async fn unneeded_body_does_not_close_the_connection() {
    let demo = Demo::start(AT_ONCE).await;
    let raw = RawConnection::connect(demo.backend("demo-fast")).await;
    let body = vec![b' '; 4 * 1024 * 1024];
    let head = format!("Host: demo\r\nContent-Length: {}", body.len());
    let first = format!("POST /v1/responses HTTP/1.1\r\n{head}\r\n\r\n");
    raw.send(first.as_bytes()).await;
    raw.send(&body).await;
    assert_eq!(raw.read(12).await, "HTTP/1.1 404");
    let second = "GET /v1/models HTTP/1.1\r\nHost: demo\r\nConnection: close\r\n\r\n";
    raw.send(second.as_bytes()).await;
    let rest = raw.read(usize::from(u16::MAX)).await;
    assert!(rest.contains("HTTP/1.1 200 OK"), "{rest}");
}

#[tokio::test]
async fn wrong_method_is_rejected_with_the_allowed_one() {
    let demo = Demo::start(AT_ONCE).await;
    for (method, path, allow) in [
        (Method::GET, CHAT, "POST"),
        (Method::PUT, TEXT, "POST"),
        (Method::DELETE, EMBEDDINGS, "POST"),
        (Method::POST, "/v1/models", "GET"),
        (Method::DELETE, "/v1/models/demo", "GET"),
    ] {
        let response = demo.send(method, path, "").await;
        assert_refused(&response, 405, None, Some("method_not_supported"));
        assert_eq!(response.headers["allow"], allow);
    }
}

/// Sends a raw request head and body, and returns the status line of the response.
async fn raw(demo: &Demo, head: &str, body: &[u8]) -> String {
    let raw = RawConnection::connect(demo.backend("demo-fast")).await;
    let head = format!("POST {CHAT} HTTP/1.1\r\nHost: demo\r\n{head}\r\n\r\n");
    raw.send(head.as_bytes()).await;
    raw.send(body).await;
    raw.read(12).await
}

#[tokio::test]
async fn overlong_body_is_rejected() {
    let demo = Demo::start(AT_ONCE).await;
    let declared = format!("Content-Length: {}", BODY_LIMIT + 1);
    assert_eq!(raw(&demo, &declared, b"").await, "HTTP/1.1 413");

    // The body has no declared length, so the server counts the bytes. The body ends one byte
    // beyond the maximum, so that no byte is unread when the connection closes.
    let mut body = format!("{:x}\r\n", BODY_LIMIT + 1).into_bytes();
    body.resize(body.len() + BODY_LIMIT + 1, b' ');
    let chunked = "Transfer-Encoding: chunked";
    assert_eq!(raw(&demo, chunked, &body).await, "HTTP/1.1 413");
}

#[tokio::test]
async fn body_of_maximum_size_is_accepted() {
    let demo = Demo::start(AT_ONCE).await;
    let mut body = chat(&json!({})).to_string();
    body.push_str(&" ".repeat(BODY_LIMIT - body.len()));
    assert_eq!(demo.send(Method::POST, CHAT, &body).await.status, 200);
}
