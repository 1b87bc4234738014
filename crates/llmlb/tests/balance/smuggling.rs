//! Requests that two servers could parse differently. (promise L11)

use std::io::Read;
use std::time::Duration;
use testkit::{
    Connection, LlmlbServer,
    backends::{ASK, CHAT, UNPROBED, asked, backend, ok, serve},
};

/// Time to wait for further responses. A smuggled request that was executed would be answered
/// within it.
const RESPONSE_TIME: Duration = Duration::from_secs(2);

const SMUGGLED: &str = "GET /v1/smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// Sends these bytes. Returns everything that is received until the connection ends or is silent.
fn all_responses(server: &LlmlbServer, bytes: &[u8]) -> String {
    let mut client = Connection::open(server.address);
    let stream = client.reader.get_ref();
    stream.set_read_timeout(Some(RESPONSE_TIME)).unwrap();
    client.send(bytes);
    let mut all = Vec::new();
    let _ = client.reader.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// Heads whose length can be parsed in two ways. The bytes that follow are a request to one parser
/// and a body to another.
const AMBIGUOUS: &[&str] = &[
    "content-length: 0\r\ncontent-length: 60\r\n",
    "content-length: 60\r\ncontent-length: 0\r\n",
    "content-length: 0, 60\r\n",
    "content-length: +0\r\n",
    "content-length: 0x0\r\n",
    "content-length: 0 0\r\n",
    "content-length: -1\r\n",
    "content-length: 00000000000000000000000000000000000000000x\r\n",
    "content-length : 0\r\n",
    "content-length\t: 0\r\n",
    " content-length: 0\r\n",
    "x: 1\r\n content-length: 0\r\n",
    "x: 1\r\n\tfolded\r\n",
    "content-length: 0\r\ntransfer-encoding: xchunked\r\n",
    "transfer-encoding: chunked, identity\r\n",
    "transfer-encoding: identity\r\ncontent-length: 0\r\n",
    "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
    "transfer-encoding: gzip\r\n",
    "transfer-encoding: \x0bchunked\r\n",
    "transfer-encoding : chunked\r\n",
    "x: a\0b\r\ncontent-length: 0\r\n",
    "x: a\rcontent-length: 0\r\n",
    "\r\rcontent-length: 0\r\n",
    "no colon\r\ncontent-length: 0\r\n",
    ": no name\r\ncontent-length: 0\r\n",
];

#[test]
fn head_with_an_ambiguous_length_is_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for head in AMBIGUOUS {
        let bytes = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/octet-stream\r\n\
             {head}\r\n{SMUGGLED}"
        );
        let responses = all_responses(&server, bytes.as_bytes());
        assert!(
            responses.is_empty() || responses.starts_with("HTTP/1.1 400"),
            "{head:?}: {responses}"
        );
        assert_eq!(
            responses.matches("HTTP/1.1 ").count().min(1),
            responses.matches("HTTP/1.1 ").count()
        );
    }
    let smuggled: Vec<_> = asked(&mock)
        .iter()
        .map(|request| request.head.line.clone())
        .collect();
    assert_eq!(smuggled, [""; 0]);
}

#[test]
fn content_length_of_a_chunked_request_is_rejected_or_ignored() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for order in [
        "content-length: 5\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        "Transfer-Encoding: CHUNKED\r\nContent-Length: 5\r\n",
    ] {
        let bytes = format!(
            "POST /v1/first HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/octet-stream\r\n{order}\r\n0\r\n\r\n{SMUGGLED}"
        );
        all_responses(&server, bytes.as_bytes());
    }
    for request in asked(&mock) {
        assert_ne!(request.target(), "/v1/smuggled");
        assert!(request.body.is_empty());
        let both = [
            request.head.header("content-length"),
            request.head.header("transfer-encoding"),
        ];
        assert!(both.iter().flatten().count() <= 1, "{both:?}");
    }
}

#[test]
fn ambiguous_chunks_are_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for chunks in [
        "0x5\r\nhello\r\n0\r\n\r\n",
        "5 \nhello\r\n0\r\n\r\n",
        "+5\r\nhello\r\n0\r\n\r\n",
        "5\rhello\r\n0\r\n\r\n",
        "5\r\nhelloXX0\r\n\r\n",
        "ffffffffffffffff5\r\nhello\r\n0\r\n\r\n",
        "10000000000000005\r\nhello\r\n0\r\n\r\n",
        "5;a\nb\r\nhello\r\n0\r\n\r\n",
    ] {
        for kind in ["application/json", "application/octet-stream"] {
            let bytes = format!(
                "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
                 transfer-encoding: chunked\r\n\r\n{chunks}{SMUGGLED}"
            );
            let responses = all_responses(&server, bytes.as_bytes());
            assert!(
                responses.is_empty() || responses.starts_with("HTTP/1.1 400"),
                "{chunks:?}: {responses}"
            );
        }
    }
    assert!(
        asked(&mock)
            .iter()
            .all(|request| request.target() != "/v1/smuggled")
    );
}

#[test]
fn invalid_request_line_is_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for line in [
        "GET  /v1/x HTTP/1.1",
        "GET /v1/x y HTTP/1.1",
        "GET /v1/x\tHTTP/1.1",
        "GET /v1/x",
        "GET /v1/x HTTP/1.9",
        "GET /v1/x HTTP/3.0",
        "GET /v1/x\0 HTTP/1.1",
        "GET /v1/x\x7f HTTP/1.1",
        "G(T /v1/x HTTP/1.1",
        " GET /v1/x HTTP/1.1",
    ] {
        let bytes = format!("{line}\r\nhost: localhost\r\n\r\n");
        let responses = all_responses(&server, bytes.as_bytes());
        let first = responses.lines().next().unwrap_or_default();
        assert!(
            first.is_empty() || first.contains(" 4") || first.contains(" 505"),
            "{line:?}: {responses}"
        );
    }
    assert_eq!(asked(&mock).len(), 0);
}

#[test]
fn line_breaks_in_a_model_name_are_not_copied_to_headers_or_the_log() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let body =
        r#"{"model":"m\r\nx-evil: 1\r\n\r\nHTTP/1.1 200 OK\u001b[31m\nllmlb: error: forged"}"#;
    let answer = server.post(CHAT, body);
    assert_eq!(answer.status(), 404);
    assert_eq!(answer.head.header("x-evil"), None);
    assert_eq!(answer.json()["error"]["code"], "model_not_found");
    server.until_in_flight(0);
    let log = server.process.stderr();
    assert!(!log.contains('\u{1b}'), "{log}");
    assert!(
        !log.lines()
            .any(|line| line.starts_with("llmlb: error: forged")),
        "{log}"
    );
}

#[test]
fn repeated_or_invalid_host_is_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for hosts in ["host: localhost\r\nhost: localhost\r\n", "host: a b\r\n"] {
        let responses = all_responses(
            &server,
            format!("GET /v1/x HTTP/1.1\r\n{hosts}\r\n").as_bytes(),
        );
        assert!(
            !responses.starts_with("HTTP/1.1 2"),
            "{hosts:?}: {responses}"
        );
    }
    assert_eq!(asked(&mock).len(), 0);
}

#[test]
fn absolute_target_is_accepted_for_this_server_only() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let responses = all_responses(
        &server,
        b"GET http://localhost/v1/files?a=b HTTP/1.1\r\nhost: localhost\r\n\r\n",
    );
    assert!(responses.starts_with("HTTP/1.1 200"), "{responses}");
    let line = asked(&mock)[0].head.line.clone();
    assert_eq!(line, "GET /v1/files?a=b HTTP/1.1");
    // The server is no forward proxy: requests for other hosts are rejected and not sent to a
    // backend.
    for line in [
        "GET http://evil.example/v1/files HTTP/1.1",
        "CONNECT localhost:80 HTTP/1.1",
        "CONNECT /v1/files HTTP/1.1",
        "OPTIONS * HTTP/1.1",
    ] {
        let bytes = format!("{line}\r\nhost: localhost\r\n\r\n");
        let responses = all_responses(&server, bytes.as_bytes());
        assert!(!responses.starts_with("HTTP/1.1 2"), "{line}: {responses}");
    }
    let lines: Vec<_> = asked(&mock)
        .iter()
        .map(|request| request.head.line.clone())
        .collect();
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn request_received_byte_by_byte_is_served() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    // Methods that begin with `P` could be the beginning of HTTP/2's preface, `PRI * HTTP/2.0`. The
    // server must detect HTTP/1.1 although only single bytes arrive.
    let good = ["POST", "PUT", "PATCH", "DELETE"].map(|method| (method, 200));
    for (method, expected) in good.into_iter().chain([("PROPFIND", 501), ("P", 501)]) {
        let mut client = Connection::open(server.address);
        let head = format!("{method} /v1/whatever HTTP/1.1\r\nhost: localhost\r\n");
        let rest = format!("content-length: {}\r\n\r\n{ASK}", ASK.len());
        for byte in (head + &rest).into_bytes() {
            client.send([byte]);
        }
        let status = client.answer().status();
        assert_eq!(status, expected, "{method}");
    }
    assert_eq!(asked(&mock).len(), 4);
}

#[test]
fn requests_are_served_after_invalid_ones_on_other_connections() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for _ in 0..20 {
        all_responses(&server, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03");
        all_responses(&server, &[0xff; 1000]);
        all_responses(&server, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense");
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    server.until_in_flight(0);
}
