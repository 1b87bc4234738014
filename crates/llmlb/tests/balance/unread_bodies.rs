//! A backend connection is reused only if the backend is known to have consumed the request.
//! (promise L8)
//!
//! Some servers respond to a request without reading its body (cpp-httplib to a bad `Range` or
//! `Accept`, many others to any error) and then parse the body as the next request. Its response
//! must never reach another client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use testkit::{
    Connection, Head, LlmlbServer, Sandbox,
    backends::{CHAT, UNPROBED},
    eventually,
    raw::{self, Raw},
    wire,
};

const SMUGGLED_PATH: &str = "/v1/smuggled";

/// Backend that behaves like cpp-httplib: if `rejects` is true for a head, it responds with
/// `status` and does not read the body, which is then parsed as the next request.
struct UnreadBodyBackend {
    raw: Raw,
    /// Number of smuggled requests that were executed.
    executed: Arc<AtomicUsize>,
}

impl UnreadBodyBackend {
    fn start(status: &'static str, rejects: fn(&Head) -> bool) -> Self {
        let executed = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&executed);
        let raw = raw::heads(move |head, reader| {
            if head.line.contains(SMUGGLED_PATH) {
                counter.fetch_add(1, Ordering::SeqCst);
                // Delay the response to the smuggled request. If llmlb reused this connection, it
                // would meanwhile send the next client's request, and that client would get this
                // response.
                thread::sleep(Duration::from_millis(100));
                wire::json(reader.get_mut(), 200, r#"{"secret":"of the attacker"}"#);
            } else if rejects(head) {
                let text = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
                let _ = reader.get_mut().write_all(text.as_bytes());
            } else {
                consume(head, reader);
                wire::json(reader.get_mut(), 200, r#"{"answer":"own"}"#);
            }
        });
        Self { raw, executed }
    }

    fn serve(&self, sandbox: &Sandbox, flags: &str) -> LlmlbServer {
        let arguments = format!("serve -p 0 --backend {} {flags}", self.raw.url());
        let mut command = sandbox.command(&arguments);
        command.env("LLMLB_WORKERS", "1");
        sandbox.serve_with(command.envs(UNPROBED.iter().copied()))
    }
}

fn consume(head: &Head, reader: &mut BufReader<TcpStream>) {
    if head.header("transfer-encoding").is_some() {
        let mut line = String::new();
        while line.trim() != "0" && reader.read_line(&mut line).is_ok() {
            line = line.lines().last().unwrap_or_default().to_owned();
        }
    }
    let length = head.header("content-length").unwrap_or_default();
    let _ = reader.read_exact(&mut vec![0; length.parse().unwrap_or(0)]);
}

fn smuggled() -> String {
    format!("GET {SMUGGLED_PATH} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}

/// Sends this request several times, each followed by a victim's request. Asserts that the victim
/// always receives its own response.
fn assert_not_crossed(server: &LlmlbServer, request: &str) {
    let mut victim = Connection::open(server.address);
    for _ in 0..6 {
        let mut attacker = Connection::open(server.address);
        attacker.send(request.as_bytes());
        let _ = attacker
            .reader
            .get_ref()
            .set_read_timeout(Some(Duration::from_millis(300)));
        let mut ignored = [0; 1024];
        let _ = attacker.reader.read(&mut ignored);
        victim.send_post(CHAT, r#"{"model":"m","messages":[]}"#);
        assert_eq!(victim.answer().text(), r#"{"answer":"own"}"#, "{request}");
    }
}

fn rejects_all_but_the_victim(head: &Head) -> bool {
    head.header("x-stainless-attack").is_some()
}

#[test]
fn unread_body_of_a_rejected_post_is_never_parsed_as_the_next_request() {
    for status in [
        "400 Bad Request",
        "416 Range Not Satisfiable",
        "500 Internal Server Error",
    ] {
        let sandbox = testkit::sandbox!();
        let backend = UnreadBodyBackend::start(status, rejects_all_but_the_victim);
        let server = backend.serve(&sandbox, "");
        let body = smuggled();
        let request = format!(
            "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nx-stainless-attack: 1\r\n\
             content-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        assert_not_crossed(&server, &request);
    }
}

#[test]
fn get_with_a_body_is_rejected_and_reaches_no_backend() {
    let sandbox = testkit::sandbox!();
    let backend = UnreadBodyBackend::start("400 Bad Request", |head| head.line.starts_with("GET"));
    let server = backend.serve(&sandbox, "");
    let body = smuggled();
    for method in ["GET", "HEAD", "OPTIONS"] {
        for framing in [
            format!("content-length: {}\r\n\r\n{body}", body.len()),
            format!(
                "transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            ),
        ] {
            let request = format!("{method} /v1/files HTTP/1.1\r\nhost: localhost\r\n{framing}");
            assert_not_crossed(&server, &request);
            let mut client = Connection::open(server.address);
            client.send(request.as_bytes());
            assert_eq!(client.head().status(), 400, "{request}");
        }
    }
    assert_eq!(backend.executed.load(Ordering::SeqCst), 0);
}

#[test]
fn range_and_condition_fields_are_forwarded_for_get_only() {
    let sandbox = testkit::sandbox!();
    let backend = UnreadBodyBackend::start("416 Range Not Satisfiable", |head| {
        [
            "range",
            "if-range",
            "if-match",
            "if-none-match",
            "if-modified-since",
        ]
        .iter()
        .any(|name| head.header(name).is_some())
            && !head.line.starts_with("GET")
    });
    let server = backend.serve(&sandbox, "");
    let body = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(10));
    for field in [
        "range: bytes=x-",
        "if-range: x",
        "if-match: \"a\"",
        "if-none-match: *",
    ] {
        let request = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{field}\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut client = Connection::open(server.address);
        client.send(request.as_bytes());
        assert_eq!(client.head().status(), 200, "{field}");
    }
    let (received, raw) = recorder();
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    let fields = "range: bytes=0-1\r\nif-none-match: \"a\"\r\n";
    client.send(
        format!("GET /v1/files/f-1/content HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n").as_bytes(),
    );
    let _ = client.answer();
    let heads = received.lock().unwrap();
    assert_eq!(heads[0].header("range").as_deref(), Some("bytes=0-1"));
    assert_eq!(heads[0].header("if-none-match").as_deref(), Some("\"a\""));
}

type Heads = Arc<std::sync::Mutex<Vec<Head>>>;

/// Returns a backend and the heads of the requests that it has received.
fn recorder() -> (Heads, Raw) {
    let received = Heads::default();
    let kept = Arc::clone(&received);
    let raw = raw::heads(move |head, reader| {
        consume(head, reader);
        kept.lock().unwrap().push(head.clone());
        wire::json(reader.get_mut(), 200, "{}");
    });
    (received, raw)
}

#[test]
fn malformed_accept_is_replaced() {
    let sandbox = testkit::sandbox!();
    let (received, raw) = recorder();
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    for (sent, forwarded) in [
        ("application/json", "application/json"),
        (
            "text/event-stream, */*;q=0.5",
            "text/event-stream, */*;q=0.5",
        ),
        ("*/*", "*/*"),
        ("garbage", "*/*"),
        ("text/html;q=abc", "*/*"),
        ("text/html;q=1.5", "*/*"),
        ("text/html,,application/json", "*/*"),
        ("text/html;q=", "*/*"),
        ("a/b/c", "*/*"),
    ] {
        let mut client = Connection::open(server.address);
        client.send(
            format!("GET /v1/files HTTP/1.1\r\nhost: localhost\r\naccept: {sent}\r\n\r\n")
                .as_bytes(),
        );
        let _ = client.answer();
        let heads = received.lock().unwrap();
        let head = heads.last().unwrap();
        assert_eq!(head.header("accept").as_deref(), Some(forwarded), "{sent}");
    }
}

#[test]
fn delete_with_a_body_closes_the_backend_connection() {
    let sandbox = testkit::sandbox!();
    let (received, raw) = recorder();
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    for (body, connection) in [("", None), ("{}", Some("close".to_owned()))] {
        let mut client = Connection::open(server.address);
        let request = format!(
            "DELETE /v1/files/f-1 HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        client.send(request.as_bytes());
        let _ = client.answer();
        assert_eq!(
            received
                .lock()
                .unwrap()
                .last()
                .unwrap()
                .header("connection"),
            connection
        );
    }
}

/// Sends ten requests to a backend that responds with this status. Returns the number of backend
/// connections that they used.
fn connections_used(status: &'static str, settings: &str) -> usize {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(move |head, reader| {
        consume(head, reader);
        let text = format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\n{{}}");
        let _ = reader.get_mut().write_all(text.as_bytes());
    });
    let file = format!(
        "[server]\nworkers = 1\n[upstream]\nprobe_interval = \"1h\"\n[[backend]]\nurl = \"{}\"\n{settings}",
        raw.url()
    );
    let server = testkit::backends::serve_file(&sandbox, &file);
    let before = raw.accepted();
    let mut client = Connection::open(server.address);
    for _ in 0..10 {
        client.send_post(CHAT, r#"{"model":"m"}"#);
        let _ = client.answer();
    }
    raw.accepted() - before
}

#[test]
fn connection_is_reused_after_success_and_closed_after_an_error_response() {
    assert_eq!(connections_used("200 OK", ""), 1);
    assert_eq!(connections_used("429 Too Many Requests", ""), 10);
    assert_eq!(connections_used("400 Bad Request", ""), 10);
    assert_eq!(
        connections_used("400 Bad Request", "reuse_after_errors = true\n"),
        1
    );
}

#[test]
fn connection_with_two_lengths_is_not_reused() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|head, reader| {
        consume(head, reader);
        let text = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n\
                    2\r\n{}\r\n0\r\n\r\n";
        let _ = reader.get_mut().write_all(text.as_bytes());
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(
        command
            .env("LLMLB_WORKERS", "1")
            .envs(UNPROBED.iter().copied()),
    );
    let before = raw.accepted();
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send_post(CHAT, r#"{"model":"m"}"#);
        assert_eq!(client.answer().text(), "{}");
    }
    assert_eq!(raw.accepted() - before, 5);
}

#[test]
fn connection_on_which_the_backend_sent_more_than_its_response_is_not_reused() {
    let sandbox = testkit::sandbox!();
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let raw = raw::heads(move |head, reader| {
        consume(head, reader);
        wire::json(reader.get_mut(), 200, r#"{"answer":"own"}"#);
        // The backend sends a second response that belongs to no request, while the connection is
        // idle.
        thread::sleep(Duration::from_millis(50));
        wire::json(reader.get_mut(), 200, r#"{"secret":"of another client"}"#);
        counter.fetch_add(1, Ordering::SeqCst);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(
        command
            .env("LLMLB_WORKERS", "1")
            .envs(UNPROBED.iter().copied()),
    );
    let mut client = Connection::open(server.address);
    for round in 1..=5 {
        client.send_post(CHAT, r#"{"model":"m"}"#);
        assert_eq!(client.answer().text(), r#"{"answer":"own"}"#);
        // Loopback delivers at once: after `write` has returned at the backend, the bytes are in
        // the server's socket.
        eventually("the second response is sent", || {
            (sent.load(Ordering::SeqCst) == round).then_some(())
        });
    }
}
