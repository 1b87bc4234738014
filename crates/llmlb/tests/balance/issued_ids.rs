//! Requests with an id that a backend issued go to that backend. (promise L6)

use std::io::Write;
use std::net::TcpStream;
use testkit::{
    Connection, FakeLlm, LlmlbServer, Received, Sandbox,
    backends::{asked, backend_of, code, serve},
    until, wire,
};

/// Returns a backend that issues ids which end in its name.
fn issuing_backend(name: &'static str, models: &[&str]) -> FakeLlm {
    backend_of(models, move |request: &Received, stream: &mut TcpStream| {
        let path = request.target().trim_start_matches("/v1/");
        let kind = path.split(['/', '?']).next().unwrap_or_default();
        if request.text().contains("\"stream\":true") {
            wire::begin_stream(stream);
            wire::chunk(
                stream,
                &format!(
                    "event: response.created\ndata: {{\"type\":\"response.created\",\
                     \"response\":{{\"id\":\"resp_stream_{name}\",\"object\":\"response\"}}}}\n\n"
                ),
            );
            wire::chunk(stream, "event: response.completed\ndata: {}\n\n");
            return wire::end_stream(stream);
        }
        let id = match kind {
            "responses" => format!("resp_{name}"),
            "files" => format!("file-{name}"),
            other => format!("{other}_{name}"),
        };
        let body = format!("{{\n  \"id\": \"{id}\",\n  \"object\": \"{kind}\"\n}}");
        wire::json(stream, 200, &body);
    })
}

/// Returns two backends that issue ids. Requests with unknown ids go to the first one.
fn issuing_backends() -> (FakeLlm, FakeLlm) {
    (
        issuing_backend("a", &["both", "only-a"]),
        issuing_backend("b", &["both", "only-b"]),
    )
}

fn id(server: &LlmlbServer, path: &str, body: &str) -> String {
    let answer = server.post(path, body);
    assert_eq!(answer.status(), 200, "{answer:?}");
    answer.json()["id"].as_str().unwrap().to_owned()
}

fn assert_last_of_b(b: &FakeLlm, line: &str) {
    let last = asked(b).last().map(|request| request.head.line.clone());
    assert_eq!(last, Some(format!("{line} HTTP/1.1")));
}

#[test]
fn id_in_a_path_selects_the_backend_that_issued_it() {
    let sandbox = testkit::sandbox!();
    let (a, b) = issuing_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
    for (path, expected) in [
        ("/v1/responses", "resp_b"),
        ("/v1/files", "file-b"),
        ("/v1/batches", "batches_b"),
        ("/v1/conversations", "conversations_b"),
    ] {
        let id = id(&server, path, r#"{"model":"only-b"}"#);
        assert_eq!(id, expected);
        let before = asked(&a).len();
        for rest in ["", "/content", "?after=1", "/input_items?limit=2"] {
            let path = format!("{path}/{id}{rest}");
            assert_eq!(server.get(&path).status(), 200, "{path}");
            assert_last_of_b(&b, &format!("GET {path}"));
        }
        let path = format!("{path}/{id}");
        let mut client = Connection::open(server.address);
        client.send(format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
        assert_eq!(client.answer().status(), 200);
        assert_last_of_b(&b, &format!("DELETE {path}"));
        assert_eq!(server.post(&format!("{path}/cancel"), "{}").status(), 200);
        assert_last_of_b(&b, &format!("POST {path}/cancel"));
        assert_eq!(asked(&a).len(), before);
    }
}

#[test]
fn unknown_id_selects_the_first_backend() {
    let sandbox = testkit::sandbox!();
    let (a, b) = issuing_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
    for path in [
        "/v1/files/file-unknown",
        "/v1/files",
        "/v1/responses/resp_x",
    ] {
        assert_eq!(server.get(path).status(), 200);
    }
    assert_eq!((asked(&a).len(), asked(&b).len()), (3, 0));
}

#[test]
fn previous_response_id_selects_the_backend_that_issued_it() {
    let sandbox = testkit::sandbox!();
    let (a, b) = issuing_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
    for (model, expected) in [("only-b", &b), ("only-a", &a)] {
        let id = id(
            &server,
            "/v1/responses",
            &format!(r#"{{"model":"{model}"}}"#),
        );
        let before = asked(expected).len();
        for _ in 0..20 {
            let body = format!(r#"{{"model":"both","previous_response_id":"{id}"}}"#);
            assert_eq!(server.post("/v1/responses", &body).status(), 200);
        }
        assert_eq!(asked(expected).len(), before + 20);
    }
}

#[test]
fn id_of_a_streamed_response_selects_the_backend_that_issued_it() {
    let sandbox = testkit::sandbox!();
    let (a, b) = issuing_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
    let body = r#"{"model":"only-b","stream":true}"#;
    assert!(
        server
            .post("/v1/responses", body)
            .text()
            .contains("resp_stream_b")
    );
    for _ in 0..10 {
        assert_eq!(server.get("/v1/responses/resp_stream_b").status(), 200);
        let body = r#"{"model":"both","previous_response_id":"resp_stream_b"}"#;
        assert_eq!(server.post("/v1/responses", body).status(), 200);
    }
    assert_eq!(asked(&a).len(), 0);
}

#[test]
fn request_with_an_id_of_a_backend_that_is_gone_gets_503() {
    let sandbox = testkit::sandbox!();
    let (a, b) = issuing_backends();
    let server = serve(&sandbox, &[&a, &b], &[("LLMLB_PROBE_INTERVAL", "1h")]);
    let id = id(&server, "/v1/responses", r#"{"model":"only-b"}"#);
    b.stop();
    // Another backend would respond 404, and the client would believe that the object is deleted.
    for _ in 0..3 {
        let body = format!(r#"{{"model":"both","previous_response_id":"{id}"}}"#);
        let path = format!("/v1/responses/{id}");
        for answer in [server.post("/v1/responses", &body), server.get(&path)] {
            assert_eq!(answer.status(), 503, "{answer:?}");
            assert_eq!(code(&answer), "all_backends_down");
            assert!(answer.head.header("retry-after").is_some());
        }
    }
    assert_eq!(asked(&a).len(), 0);
}

/// Returns a backend that responds with this body, as an event stream if it begins with `data:`.
fn responding(models: &[&str], answer: &'static str) -> FakeLlm {
    backend_of(models, move |_, stream| {
        if answer.starts_with("data:") {
            wire::begin_stream(stream);
            // Chunks of 7 bytes split fields and events, so that an id must be found across chunks.
            for piece in answer.as_bytes().chunks(7) {
                wire::chunk(stream, std::str::from_utf8(piece).unwrap());
            }
            wire::end_stream(stream);
        } else {
            wire::json(stream, 200, answer);
        }
    })
}

#[test]
fn id_in_client_data_of_a_response_is_not_learned() {
    let sandbox = testkit::sandbox!();
    let a = issuing_backend("a", &["only-a"]);
    for (path, answer) in [
        // Responses repeat metadata that the client chose. An id in it must not be learned,
        // otherwise a client could redirect the requests of others.
        (
            "/v1/responses",
            r#"{"metadata":{"id":"resp_a"},"id":"resp_b"}"#,
        ),
        (
            "/v1/responses",
            r#"{"id":"resp_b","metadata":{"id":"resp_a"}}"#,
        ),
        (
            "/v1/responses",
            r#"{"id":"resp_b","input":[{"id":"resp_a"}],"x":"\"id\":\"resp_a\""}"#,
        ),
        (
            "/v1/responses",
            r#"{"id":"resp_b","response":{"id":"resp_a"}}"#,
        ),
        (
            "/v1/responses",
            "data: {\"type\":\"x\",\"response\":{\"metadata\":{\"id\":\"resp_a\"},\"id\":\"resp_b\"}}\n\n",
        ),
        (
            "/v1/responses",
            "data: {\"response\":{\"id\":\"resp_b\"},\"x\":{\"id\":\"resp_a\"}}\n\n\
             data: {\"item\":{\"id\":\"resp_a\"}}\n\n",
        ),
    ] {
        let b = responding(&["only-b"], answer);
        let server = serve(&sandbox, &[&a, &b], &[]);
        assert_eq!(id(&server, path, r#"{"model":"only-a"}"#), "resp_a");
        let response = server.post(path, r#"{"model":"only-b"}"#);
        assert_eq!(response.status(), 200);
        let before = asked(&b).len();
        let answer = server.get("/v1/responses/resp_a");
        assert_eq!(testkit::backends::served_by(&answer), a.address.to_string());
        assert_eq!(asked(&b).len(), before);
        assert_eq!(server.get("/v1/responses/resp_b").status(), 200);
        assert_last_of_b(&b, "GET /v1/responses/resp_b");
    }
}

#[test]
fn id_is_learned_from_the_beginning_of_a_large_event() {
    let sandbox = testkit::sandbox!();
    let a = issuing_backend("a", &["only-a"]);
    let long = "x".repeat(100_000);
    let b = backend_of(&["only-b"], move |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(
            stream,
            &format!(
                "event: response.created\ndata: {{\"type\":\"response.created\",\"response\":\
                 {{\"id\":\"resp_long\",\"instructions\":\"{long}\"}}}}\n\n"
            ),
        );
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &[&a, &b], &[]);
    let body = r#"{"model":"only-b","stream":true}"#;
    assert_eq!(server.post("/v1/responses", body).status(), 200);
    assert_eq!(server.get("/v1/responses/resp_long").status(), 200);
    assert_last_of_b(&b, "GET /v1/responses/resp_long");
}

#[test]
fn id_of_a_chat_completion_is_learned_if_the_request_stores_it() {
    let sandbox = testkit::sandbox!();
    let a = issuing_backend("a", &["only-a"]);
    let whole = r#"{"id":"chatcmpl-1","object":"chat.completion"}"#;
    let stream = "data: {\"id\":\"chatcmpl-1\",\"choices\":[]}\n\ndata: [DONE]\n\n";
    for answer in [whole, stream] {
        for (body, is_stored) in [
            (r#"{"model":"only-b"}"#, false),
            (r#"{"model":"only-b","store":false}"#, false),
            (r#"{"model":"only-b","store":true}"#, true),
        ] {
            let b = responding(&["only-b"], answer);
            let server = serve(&sandbox, &[&a, &b], &[]);
            assert_eq!(server.post("/v1/chat/completions", body).status(), 200);
            let answer = server.get("/v1/chat/completions/chatcmpl-1");
            let is_known = testkit::backends::served_by(&answer) == b.address.to_string();
            assert_eq!(is_known, is_stored, "{body}");
        }
    }
}

#[test]
fn id_of_the_file_of_a_completed_upload_is_learned() {
    let sandbox = testkit::sandbox!();
    let a = issuing_backend("a", &["only-a"]);
    let b = responding(
        &["only-b"],
        r#"{"id":"upload_1","status":"completed","file":{"id":"file-1"}}"#,
    );
    let server = serve(&sandbox, &[&a, &b], &[]);
    assert_eq!(
        id(&server, "/v1/uploads", r#"{"model":"only-b"}"#),
        "upload_1"
    );
    assert_eq!(
        server.post("/v1/uploads/upload_1/complete", "{}").status(),
        200
    );
    assert_eq!(server.get("/v1/files/file-1").status(), 200);
    assert_last_of_b(&b, "GET /v1/files/file-1");
}

/// `{"id": "file-gzip"}`, compressed with gzip.
const COMPRESSED: &[u8] = &[
    0x1f, 0x8b, 0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x03, 0xab, 0x56, 0xca, 0x4c, 0x51, 0xb2,
    0x52, 0x50, 0x4a, 0xcb, 0xcc, 0x49, 0xd5, 0x4d, 0xaf, 0xca, 0x2c, 0x50, 0xaa, 0x05, 0x00, 0xa1,
    0x86, 0xb9, 0x95, 0x13, 0x00, 0x00, 0x00,
];

#[test]
fn id_is_learned_when_the_client_accepts_compressed_responses() {
    let sandbox = testkit::sandbox!();
    let b = backend_of(&["only-b"], |request, stream| {
        let accepted = request.head.header("accept-encoding").unwrap_or_default();
        if accepted.contains("gzip") {
            let length = COMPRESSED.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {length}\r\n\r\n"
            );
            let _ = stream.write_all(&[head.as_bytes(), COMPRESSED].concat());
        } else {
            wire::json(stream, 200, r#"{"id": "file-gzip"}"#);
        }
    });
    let a = issuing_backend("a", &["only-a"]);
    let server = serve(&sandbox, &[&a, &b], &[]);
    let mut client = Connection::open(server.address);
    let body = r#"{"model":"only-b"}"#;
    client.send_post_with("/v1/files", "accept-encoding: gzip, deflate\r\n", body);
    assert_eq!(client.answer().status(), 200);
    assert_eq!(server.get("/v1/files/file-gzip").status(), 200);
    assert_last_of_b(&b, "GET /v1/files/file-gzip");
}

/// Waits until the file of issued ids has this many lines: it is written in the background.
fn until_persisted(sandbox: &Sandbox, count: usize) -> String {
    let path = sandbox.data_dir().join("issued-ids");
    let text = || std::fs::read_to_string(&path).unwrap_or_default();
    until("the ids are written", || text().lines().count() == count);
    text()
}

#[test]
fn id_selects_its_backend_after_kill_nine_and_a_reordered_configuration() {
    let sandbox = testkit::sandbox!();
    let (a, b) = issuing_backends();
    let server = serve(&sandbox, &[&a, &b], &[]);
    let of_b = id(&server, "/v1/responses", r#"{"model":"only-b"}"#);
    let of_a = id(&server, "/v1/files", r#"{"model":"only-a"}"#);
    let text = until_persisted(&sandbox, 2);
    assert!(!text.contains(&of_b) && !text.contains("resp"), "{text}");
    server.process.kill();
    drop(server);
    for order in [[&a, &b], [&b, &a]] {
        let server = serve(&sandbox, &order, &[]);
        for (path, issuer) in [
            (format!("/v1/responses/{of_b}"), &b),
            (format!("/v1/files/{of_a}"), &a),
        ] {
            let answer = server.get(&path);
            assert_eq!(
                testkit::backends::served_by(&answer),
                issuer.address.to_string()
            );
        }
        let body = format!(r#"{{"model":"both","previous_response_id":"{of_b}"}}"#);
        let before = asked(&a).len();
        for _ in 0..10 {
            assert_eq!(server.post("/v1/responses", &body).status(), 200);
        }
        assert_eq!(asked(&a).len(), before);
    }
}

#[test]
fn damaged_file_of_issued_ids_is_harmless() {
    let sandbox = testkit::sandbox!();
    let (a, b) = issuing_backends();
    let path = sandbox.data_dir().join("issued-ids");
    let server = serve(&sandbox, &[&a, &b], &[]);
    let of_b = id(&server, "/v1/responses", r#"{"model":"only-b"}"#);
    let line = until_persisted(&sandbox, 1);
    server.process.kill();
    drop(server);
    // A valid line between garbage must still be used, otherwise one damaged byte would lose all
    // ids.
    let garbage = vec![b'z'; 1 << 20];
    let text = [b"\xff\0{}\n".as_slice(), line.as_bytes(), &garbage].concat();
    std::fs::write(&path, text).unwrap();
    let server = serve(&sandbox, &[&a, &b], &[]);
    assert_eq!(server.get(&format!("/v1/responses/{of_b}")).status(), 200);
    assert_last_of_b(&b, &format!("GET /v1/responses/{of_b}"));
    drop(server);
    // A directory in place of the file: the server must still start and serve requests.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    let server = serve(&sandbox, &[&a, &b], &[]);
    id(&server, "/v1/responses", r#"{"model":"only-b"}"#);
    assert_eq!(server.get(&format!("/v1/responses/{of_b}")).status(), 200);
    assert_last_of_b(&b, &format!("GET /v1/responses/{of_b}"));
}
