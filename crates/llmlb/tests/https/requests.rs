//! Requests over TLS: both versions of HTTP, streams, uploads and WebSockets. (promise L5)

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};

use testkit::backends::{ASK, CHAT, backend};
use testkit::{Connection, Received, Sandbox, h2_client, raw, read_chunk, until, wire};

use crate::tunnel::{H1, H2, Options};
use crate::world::{self, World};

/// Responds with the length of the request's body, so that the test can check that all of it
/// arrived.
fn length(request: &Received, stream: &mut TcpStream) {
    wire::json(stream, 200, &request.body.len().to_string());
}

#[test]
fn request_over_http_1_is_served() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start_before(&sandbox, &[], backend(length)) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    for size in [0, 1000, 20_000, 3_000_000] {
        let body = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(size));
        client.send_post(CHAT, &body);
        let answer = client.answer();
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(answer.text(), body.len().to_string());
    }
}

#[test]
fn request_over_http_2_is_served() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start_before(&sandbox, &[], backend(length)) else {
        return;
    };
    let tunnel = world::open(&world.authority, &world.server, &H2);
    h2_client::connected(tunnel, async |client| {
        for size in [0, 20_000, 300_000] {
            let body = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(size));
            let answer = h2_client::post(&client, CHAT, &body).await;
            assert_eq!(answer.status, 200, "{answer:?}");
            assert_eq!(answer.text(), body.len().to_string());
        }
    });
}

#[test]
fn protocol_is_detected_for_clients_without_alpn() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let none = Options { alpn: &[], ..H1 };
    let tunnel = world::open(&world.authority, &world.server, &none);
    assert_eq!(testkit::post(tunnel, CHAT, ASK).status(), 200);
    h2_client::connected(tunnel, async |client| {
        assert_eq!(h2_client::post(&client, CHAT, ASK).await.status, 200);
    });
}

#[test]
fn client_that_offers_both_versions_gets_http_2() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let both = Options {
        alpn: &["http/1.1", "h2"],
        ..H1
    };
    let tunnel = world::open(&world.authority, &world.server, &both);
    h2_client::connected(tunnel, async |client| {
        assert_eq!(h2_client::post(&client, CHAT, ASK).await.status, 200);
    });
}

/// Starts a server whose backend sends an event for each message in the channel.
fn stepwise(sandbox: &Sandbox) -> Option<(World, Sender<()>)> {
    let (next, steps) = mpsc::channel();
    let steps = Mutex::new(steps);
    let stepping = backend(move |_: &Received, stream: &mut TcpStream| {
        wire::begin_stream(stream);
        for number in 0..3 {
            wire::chunk(stream, &format!("data: {number}\n\n"));
            if steps.lock().unwrap().recv().is_err() {
                return;
            }
        }
        wire::end_stream(stream);
    });
    Some((world::start_before(sandbox, &[], stepping)?, next))
}

#[test]
fn each_event_reaches_the_client_before_the_next_one_is_sent() {
    let sandbox = testkit::sandbox!();
    let Some((world, next)) = stepwise(&sandbox) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    for number in 0..3 {
        let event = read_chunk(&mut client.reader).unwrap().unwrap();
        assert_eq!(event, format!("data: {number}\n\n").into_bytes());
        next.send(()).unwrap();
    }
    assert_eq!(read_chunk(&mut client.reader), Some(None));
}

#[test]
fn client_disconnect_cancels_the_request() {
    let sandbox = testkit::sandbox!();
    let Some((world, _next)) = stepwise(&sandbox) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    read_chunk(&mut client.reader).unwrap().unwrap();
    drop(client);
    world.until_in_flight(0);
    until("the cancellation is recorded", || {
        let records = sandbox.records().unwrap();
        records
            .iter()
            .any(|record| record["outcome"] == "cancelled")
    });
}

#[test]
fn websocket_is_forwarded_over_tls() {
    let sandbox = testkit::sandbox!();
    let echo = raw::heads(|_, reader| {
        let head = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
            Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";
        reader.get_mut().write_all(head.as_bytes()).unwrap();
        let mut buffer = vec![0; 64 << 10];
        while let Ok(count @ 1..) = reader.read(&mut buffer) {
            if reader.get_mut().write_all(&buffer[..count]).is_err() {
                return;
            }
        }
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    });
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let issued = world
        .authority
        .issue("second", testkit::certificates::LOCAL, 2);
    let server = world::serve(&sandbox, &issued, &echo.url(), &[]);
    let mut client = Connection::open(world::open(&world.authority, &server, &H1));
    client.send(
        "GET /v1/realtime?model=m HTTP/1.1\r\nhost: localhost\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert_eq!(client.head().status(), 101);
    for size in [1, 100, 100_000] {
        let sent = vec![b'z'; size];
        client.send(&sent);
        let mut received = vec![0; size];
        client.reader.read_exact(&mut received).unwrap();
        assert!(received == sent);
    }
}

#[test]
fn web_page_of_another_site_is_rejected_over_https_too() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    for (origin, status) in [
        ("https://localhost:3000", 200),
        ("https://evil.example", 403),
    ] {
        client.send_post_with(CHAT, &format!("origin: {origin}\r\n"), ASK);
        assert_eq!(client.answer().status(), status, "{origin}");
    }
}
