//! `server.body_memory` bounds the memory that clients can make the server use. (promise L11)
//!
//! In each test clients hold as much as they can get, and the memory of the process is measured.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::memory::peak;
use ::http::{Method, Request};
use bytes::Bytes;
use h2::client::Builder;
use testkit::{
    FakeLlm, LlmlbServer,
    backends::{CHAT, backend, backend_of, ok, serve},
    h2_client::{Client, connect, request, run},
};

const MIB: usize = 1 << 20;
const BOUND: usize = 16 * MIB;
/// Memory that the limit does not count: fragmentation, stacks, and pages of the program that are
/// used for the first time.
const UNCOUNTED: usize = 16 * MIB;

const LIMITS: &[(&str, &str)] = &[
    ("LLMLB_BODY_MEMORY", "16MiB"),
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_WORKERS", "2"),
    // A client that times out would release its memory, so the timeouts are longer than the test.
    ("LLMLB_BODY_TIMEOUT", "1h"),
    ("LLMLB_SEND_TIMEOUT", "1h"),
];

/// Waits until the server's memory stops growing, and returns the growth.
fn growth(server: &LlmlbServer, before: usize) -> usize {
    let mut last = 0;
    loop {
        let now = peak(server);
        if now == last {
            return now.saturating_sub(before);
        }
        last = now;
        std::thread::sleep(Duration::from_millis(1500));
    }
}

#[track_caller]
fn assert_bound(server: &LlmlbServer, before: usize) {
    let growth = growth(server, before);
    assert!(
        growth <= BOUND + UNCOUNTED,
        "memory grew by {} MiB",
        growth / MIB
    );
}

/// Sends a request and the beginning of its body. Returns `None` if the connection is closed.
async fn open_upload(
    client: &Client,
    head: Request<()>,
    sent: usize,
) -> Option<(h2::client::ResponseFuture, h2::SendStream<Bytes>)> {
    let mut ready = client.clone().ready().await.ok()?;
    let (response, mut body) = ready.send_request(head, false).ok()?;
    let text = Bytes::from(vec![b' '; sent]);
    body.send_data(text, false).ok()?;
    Some((response, body))
}

/// Opens connections with this many streams each. Every stream sends the beginning of a body and
/// stops. Asserts that the memory stays within the bound.
fn hold_uploads(
    server: &LlmlbServer,
    connections: usize,
    streams: usize,
    sent: usize,
    head: impl Fn() -> Request<()>,
) {
    let before = peak(server);
    run(async {
        let mut held = Vec::new();
        for _ in 0..connections {
            let Ok(stream) = tokio::net::TcpStream::connect(server.address).await else {
                break;
            };
            let builder = Builder::new().initial_max_send_streams(streams).clone();
            let Ok((client, connection)) = builder.handshake::<_, Bytes>(stream).await else {
                continue;
            };
            tokio_util::task::TaskTracker::new().spawn(connection);
            for _ in 0..streams {
                let upload = open_upload(&client, head(), sent);
                match tokio::time::timeout(Duration::from_millis(200), upload).await {
                    Ok(Some(upload)) => held.push(upload),
                    // The server has stopped reading this connection or has closed it, for example
                    // to limit its memory. Continue with the next connection.
                    Ok(None) | Err(_) => break,
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!held.is_empty());
        assert_bound(server, before);
    });
}

fn chat() -> Request<()> {
    request(Method::POST, CHAT)
}

fn upload_head() -> Request<()> {
    let mut head = request(Method::PUT, "/v1/whatever");
    let kind = "application/octet-stream".parse().unwrap();
    head.headers_mut().insert("content-type", kind);
    head
}

/// Returns a request with the maximum number of header fields.
fn with_fields() -> Request<()> {
    let mut head = chat();
    for number in 0..300 {
        let name: ::http::HeaderName = format!("x-{number}").parse().unwrap();
        head.headers_mut().insert(name, "1".parse().unwrap());
    }
    head
}

#[test]
fn small_bodies_over_http_2_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    hold_uploads(&server, 60, 50, 15_000, chat);
}

#[test]
fn large_bodies_over_http_2_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    hold_uploads(&server, 60, 20, 500_000, chat);
}

#[test]
fn forwarded_bodies_over_http_2_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    // The backend reads no body, so llmlb cannot forward the bodies and must limit what it buffers.
    let raw = testkit::raw::heads(|_, _| std::thread::park());
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.envs(LIMITS.iter().copied()));
    hold_uploads(&server, 60, 20, 500_000, upload_head);
}

#[test]
fn header_fields_over_http_2_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    hold_uploads(&server, 12, 60, 100, with_fields);
}

/// Opens connections on which the client sends these bytes until the server stops reading, and
/// reads no response. Asserts that the memory stays within the bound.
fn hold_sent(server: &LlmlbServer, connections: usize, sent: &[u8]) {
    let before = peak(server);
    let mut held = Vec::new();
    for _ in 0..connections {
        let Ok(mut stream) = TcpStream::connect(server.address) else {
            break;
        };
        stream.set_nonblocking(true).unwrap();
        let mut rest = sent;
        let mut waits = 0;
        while !rest.is_empty() && waits < 20 {
            match stream.write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    waits += 1;
                    std::thread::sleep(Duration::from_millis(5));
                }
                // The server has closed the connection, for example to limit its memory. Continue
                // with the next connection.
                Err(_) => break,
            }
        }
        held.push(stream);
    }
    assert_bound(server, before);
}

fn partial(kind: &str, path: &str, sent: usize) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         content-length: 30000000\r\n\r\n"
    );
    [head.as_bytes(), &vec![b' '; sent]].concat()
}

#[test]
fn bodies_over_http_1_stay_within_the_bound() {
    for sent in [15_000, 300_000] {
        let sandbox = testkit::sandbox!();
        let mock = backend(ok);
        let server = serve(&sandbox, &[&mock], LIMITS);
        hold_sent(&server, 800, &partial("application/json", CHAT, sent));
    }
}

#[test]
fn forwarded_bodies_over_http_1_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let raw = testkit::raw::heads(|_, _| std::thread::park());
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.envs(LIMITS.iter().copied()));
    let sent = partial("application/octet-stream", "/v1/whatever", 3_000_000);
    hold_sent(&server, 300, &sent);
}

#[test]
fn unfinished_heads_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    let head = format!(
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {}",
        "y".repeat(30_000)
    );
    hold_sent(&server, 1000, head.as_bytes());
}

fn backend_with_long_responses() -> FakeLlm {
    backend(|_, stream| {
        let head = "HTTP/1.1 200 OK\r\ncontent-length: 100000000\r\n\r\n";
        let _ = stream.write_all(head.as_bytes());
        let piece = vec![b'x'; MIB];
        while stream.write_all(&piece).is_ok() {}
    })
}

#[test]
fn unread_responses_over_http_1_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend_with_long_responses();
    let server = serve(&sandbox, &[&mock], LIMITS);
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: 13\r\n\r\n{{\"model\":\"m\"}}"
    );
    hold_sent(&server, 400, head.as_bytes());
}

#[test]
fn unread_model_lists_over_http_1_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let names: Vec<_> = (0..1000).map(|number| format!("{number:0>100}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mock = backend_of(&names, ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    let head = "GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(40);
    hold_sent(&server, 300, head.as_bytes());
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let head = [&length[1..], &[kind, flags], &stream.to_be_bytes()].concat();
    [&head, payload].concat()
}

/// Returns an HTTP/2 head with as many fields as the limit allows and without its end.
fn unfinished_head_over_http_2() -> Vec<u8> {
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[]));
    let mut fields = vec![0x83, 0x86];
    for number in 0..900 {
        // A literal field without indexing, with a new name and an empty value.
        let name = format!("{number:03}");
        fields.extend([0, 3]);
        fields.extend(name.as_bytes());
        fields.push(0);
    }
    sent.extend(frame(1, 0, 1, &fields));
    sent
}

#[test]
fn unfinished_heads_over_http_2_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    hold_sent(&server, 400, &unfinished_head_over_http_2());
}

/// Returns the bytes of an HTTP/2 client that requests long responses on many streams and opens all
/// flow-control windows, so that the window never stops the server from buffering responses.
fn requests_over_http_2(streams: u32) -> Vec<u8> {
    const WINDOW: u32 = 0x7fff_ffff;
    let settings = [&[0, 4], &WINDOW.to_be_bytes()[..]].concat();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &settings));
    sent.extend(frame(8, 0, 0, &(WINDOW - 65_535).to_be_bytes()));
    // Header block of HPACK: the method `POST` and the scheme `http` are indexes in the static
    // table, path and authority are literals.
    let mut fields = vec![0x83, 0x86];
    for (name, value) in [(4_u8, CHAT), (1, "localhost")] {
        fields.extend([name, u8::try_from(value.len()).unwrap()]);
        fields.extend(value.as_bytes());
    }
    for number in 0..streams {
        let stream = 2 * number + 1;
        sent.extend(frame(1, 4, stream, &fields));
        sent.extend(frame(0, 1, stream, br#"{"model":"m"}"#));
    }
    sent
}

#[test]
fn unread_responses_over_http_2_with_open_windows_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend_with_long_responses();
    let server = serve(&sandbox, &[&mock], LIMITS);
    hold_sent(&server, 20, &requests_over_http_2(20));
    assert!(testkit::backends::count(&mock) >= 100);
}

/// Opens HTTP/2 connections that send requests on many streams and read no response. Asserts that
/// the memory stays within the bound.
fn hold_responses(
    server: &LlmlbServer,
    connections: usize,
    window: u32,
    head: impl Fn() -> Request<()>,
    body: &'static str,
) {
    let before = peak(server);
    run(async {
        let mut held = Vec::new();
        for _ in 0..connections {
            let builder = Builder::new().initial_window_size(window).clone();
            let (client, _) = connect(server.address, &builder).await;
            for _ in 0..100 {
                let Ok(mut ready) = client.clone().ready().await else {
                    break;
                };
                let Ok((response, mut sender)) = ready.send_request(head(), body.is_empty()) else {
                    break;
                };
                if !body.is_empty() {
                    let _ = sender.send_data(body.into(), true);
                }
                held.push(response);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_bound(server, before);
    });
}

#[test]
fn unread_responses_over_http_2_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let mock = backend_with_long_responses();
    let server = serve(&sandbox, &[&mock], LIMITS);
    hold_responses(&server, 8, 1, chat, r#"{"model":"m"}"#);
}

#[test]
fn unread_model_lists_over_http_2_stay_within_the_bound() {
    let sandbox = testkit::sandbox!();
    let names: Vec<_> = (0..1000).map(|number| format!("{number:0>100}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let mock = backend_of(&names, ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    hold_responses(&server, 20, 1, || request(Method::GET, "/v1/models"), "");
}
