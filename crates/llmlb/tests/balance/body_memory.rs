//! Limit on the memory of all request bodies together (`server.body_memory`). (promises L10, L11)

use std::io::Read;
use testkit::{
    Connection, LlmlbServer,
    backends::{ASK, CHAT, backend, code, count, ok, serve},
    eventually,
    h2_client::{connect, request, run, send},
    until, wire,
};

const LIMITS: &[(&str, &str)] = &[
    ("LLMLB_MAX_BODY", "1MiB"),
    ("LLMLB_BODY_MEMORY", "1MiB"),
    ("LLMLB_PROBE_INTERVAL", "1h"),
];

fn body_of_length(length: usize) -> String {
    let (before, after) = (r#"{"model":"m","x":""#, r#""}"#);
    let text = "y".repeat(length - before.len() - after.len());
    format!("{before}{text}{after}")
}

/// Returns a client that has sent the head of a request and the first `sent` bytes of its body.
fn client_with_partial_body(server: &LlmlbServer, body: &str, sent: usize) -> Connection {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{}",
        body.len(),
        &body[..sent]
    ));
    client
}

/// Returns a client whose incomplete body fills `server.body_memory`, so that a second request with
/// this body is rejected.
fn client_that_fills_the_memory(server: &LlmlbServer, body: &str) -> Connection {
    eventually("the memory for bodies is full", || {
        // The server may read the second request in front of the incomplete one. The second request
        // is then served, and the attempt is repeated with new requests.
        let first = client_with_partial_body(server, body, 500_000);
        let answer = server.post(CHAT, body);
        if answer.status() == 200 {
            return None;
        }
        assert_eq!(answer.status(), 503, "{answer:?}");
        assert_eq!(code(&answer), "overloaded");
        assert!(answer.head.header("retry-after").is_some(), "{answer:?}");
        Some(first)
    })
}

/// Waits until no client holds memory for bodies, which is shown by a body of the whole limit that
/// is served.
fn until_released(server: &LlmlbServer) {
    until("the memory is released", || {
        server.post(CHAT, &body_of_length(1 << 20)).status() == 200
    });
}

#[test]
fn body_beyond_the_memory_limit_is_rejected_until_memory_is_released() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    let large = body_of_length(600_000);
    // Two bodies that arrive at the same moment may both be rejected, so repeat until the first one
    // is served.
    until("the first request is served", || {
        let mut first = client_that_fills_the_memory(&server, &large);
        // While the memory for bodies is full, a small request must still be served.
        assert_eq!(server.post(CHAT, ASK).status(), 200);
        first.send(&large[500_000..]);
        first.answer().status() == 200
    });
    until_released(&server);
}

#[test]
fn memory_of_a_disconnected_client_is_released_exactly_once() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    let large = body_of_length(600_000);
    for _ in 0..3 {
        drop(client_that_fills_the_memory(&server, &large));
        until_released(&server);
    }
    // If the memory of the disconnected client were released twice, two large bodies would fit at a
    // time.
    until("a second large body is rejected", || {
        let _first = client_that_fills_the_memory(&server, &large);
        server.post(CHAT, &large).status() == 503
    });
}

#[test]
fn memory_of_a_body_is_released_when_the_response_begins() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| {
        if request.text().contains("silent") {
            let _ = stream.read(&mut [0]);
        } else if request.text().contains("endless") {
            wire::begin_stream(stream);
            wire::chunk(stream, "data: 1\n\n");
            let _ = stream.read(&mut [0]);
        } else {
            ok(request, stream);
        }
    });
    let server = serve(&sandbox, &[&mock], LIMITS);
    let send_large = |word: &str| {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, &body_of_length(900_000).replacen("yyyyyyy", word, 1));
        client
    };
    let waiting = send_large("silent!");
    until("the backend has the request", || count(&mock) == 1);
    assert_eq!(server.post(CHAT, &body_of_length(900_000)).status(), 503);
    drop(waiting);
    until_released(&server);
    let mut answered = send_large("endless");
    assert_eq!(answered.head().status(), 200);
    until_released(&server);
}

#[cfg(target_os = "linux")]
fn address_space(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse::<u64>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn announced_content_length_allocates_no_memory() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], testkit::backends::UNPROBED);
    let limit = Some(address_space(server.process.pid()) + (256 << 20));
    let limit = rustix::process::Rlimit {
        current: limit,
        maximum: limit,
    };
    let pid = i32::try_from(server.process.pid())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::prlimit(pid, rustix::process::Resource::As, limit).unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        32 << 20
    );
    let part = vec![b' '; 30_000];
    let held: Vec<_> = (0..40)
        .map(|_| {
            let mut client = Connection::open(server.address);
            client.send(head.as_bytes());
            client.send(&part);
            client
        })
        .collect();
    // Incomplete bodies must not reserve their announced length, so the server still has memory for
    // other requests.
    for _ in 0..20 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    drop(held);
}

#[test]
fn client_that_keeps_sending_after_a_rejection_gets_the_response() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    for _ in 0..5 {
        let mut client = Connection::open(server.address);
        // The announced length alone causes the rejection. The client sends more than the socket
        // buffers hold, so it can only read the response if the server keeps reading.
        client.send_post(CHAT, &body_of_length(16 << 20));
        let answer = client.answer();
        assert_eq!(answer.status(), 413, "{answer:?}");
        assert_eq!(code(&answer), "body_too_large");
        assert!(client.is_closed());
    }
}

#[test]
fn idle_http_2_connections_leave_the_memory_to_others() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], LIMITS);
    run(async {
        let mut idle = Vec::new();
        for _ in 0..12 {
            let (client, _) = connect(server.address, &h2::client::Builder::new()).await;
            let head = request(::http::Method::POST, CHAT);
            let response = send(&client, head, ASK).await.await;
            assert_eq!(response.unwrap().status(), 200);
            idle.push(client);
        }
        // Each of the twelve idle connections counts as 32 KiB, so 600 KiB of the 1 MiB are left
        // for bodies.
        assert_eq!(server.post(CHAT, &body_of_length(500_000)).status(), 200);
    });
}
