//! Request ids in requests to backends, responses and errors. (promises L8, L13)

use std::io::Write;
use testkit::{
    Answer, Connection, LlmlbServer,
    backends::{ASK, CHAT, UNPROBED, asked, backend, count, ok, serve},
    until, wire,
};

fn post_with(server: &LlmlbServer, field: &str) -> Answer {
    let mut client = Connection::open(server.address);
    client.send_post_with(CHAT, field, ASK);
    client.answer()
}

fn id(answer: &Answer) -> String {
    answer.head.header("x-request-id").expect("an id")
}

#[test]
fn request_id_of_the_client_is_kept() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let long = "x".repeat(128);
    for own in ["a", "req-1/2:{3}", &long] {
        let answer = post_with(&server, &format!("X-Request-Id: {own}\r\n"));
        assert_eq!(id(&answer), own);
        let asked = asked(&mock);
        let forwarded = asked.last().unwrap().head.header("x-request-id");
        assert_eq!(forwarded.as_deref(), Some(own));
    }
}

#[test]
fn request_id_is_generated_when_it_is_missing_or_invalid() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let long = "x".repeat(129);
    let mut seen = std::collections::HashSet::new();
    for bad in [
        String::new(),
        "x-request-id: \r\n".to_owned(),
        "x-request-id: two words\r\n".to_owned(),
        "x-request-id: é\r\n".to_owned(),
        "x-request-id: a\tb\r\n".to_owned(),
        format!("x-request-id: {long}\r\n"),
    ] {
        let answer = post_with(&server, &bad);
        let id = id(&answer);
        assert!((1..=128).contains(&id.len()), "{bad}: {id}");
        assert!(
            id.bytes().all(|byte| byte.is_ascii_graphic()),
            "{bad}: {id}"
        );
        assert!(!bad.contains(&id), "{bad}: {id}");
        let asked = asked(&mock);
        let forwarded = asked.last().unwrap().head.header("x-request-id");
        assert_eq!(forwarded, Some(id.clone()));
        assert!(seen.insert(id), "{bad}: the id is not unique");
    }
}

#[test]
fn every_response_has_a_request_id() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for answer in [
        server.get("/v1/models"),
        server.get("/v1/files"),
        server.get("/elsewhere"),
        server.get("/healthz"),
        server.get("/v1/../x"),
        server.post(CHAT, "{"),
        server.post(CHAT, r#"{"model":"other"}"#),
        server.post("/v1/messages", r#"{"model":"other"}"#),
    ] {
        assert!(!id(&answer).is_empty());
    }
    mock.stop();
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 503);
    assert!(!id(&answer).is_empty());
}

#[test]
fn request_id_of_the_backend_is_forwarded_in_another_field() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let _ = stream.write_all(
            b"HTTP/1.1 200 OK\r\nX-Request-Id: upstream-1\r\ncontent-length: 2\r\n\r\n{}",
        );
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = post_with(&server, "x-request-id: mine\r\n");
    assert_eq!(id(&answer), "mine");
    let upstream = answer.head.header("x-upstream-request-id");
    assert_eq!(upstream.as_deref(), Some("upstream-1"));
}

#[test]
fn retried_request_keeps_its_id() {
    let sandbox = testkit::sandbox!();
    let bad = backend(|_, stream| wire::json(stream, 503, "{}"));
    let good = backend(ok);
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    until("the bad backend is tried", || {
        let answer = post_with(&server, "");
        assert_eq!(answer.status(), 200);
        count(&bad) > 0 && {
            let both = [&bad, &good].map(|backend| {
                let asked = asked(backend);
                asked.last().unwrap().head.header("x-request-id")
            });
            assert_eq!(both, [Some(id(&answer)), Some(id(&answer))]);
            true
        }
    });
}

#[test]
fn errors_under_messages_have_the_format_of_that_api() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = server.post("/v1/messages", r#"{"model":"other"}"#);
    assert_eq!(answer.status(), 404);
    let error = answer.json();
    assert_eq!(error["type"], "error");
    assert!(error["error"]["type"].is_string(), "{error}");
    assert!(error["error"]["message"].is_string(), "{error}");
    assert_eq!(error["request_id"], id(&answer));
}
