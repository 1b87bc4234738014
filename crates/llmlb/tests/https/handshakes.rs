//! Clients that do not complete a handshake: every such connection is bounded. (promise L11)

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use testkit::backends::{ASK, CHAT, code};
use testkit::{Connection, until};
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, ClientConnection};

use crate::tunnel::{self, H1};
use crate::world::{self, World};

/// Alert record of a server that rejects a connection beyond a limit.
const ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

fn connect(world: &World) -> TcpStream {
    let stream = TcpStream::connect(world.server.address).unwrap();
    stream.set_read_timeout(Some(testkit::DEADLINE)).unwrap();
    stream
}

fn client_hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(Arc::clone(config), name).unwrap();
    let mut hello = Vec::new();
    session.write_tls(&mut hello).unwrap();
    hello
}

fn until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    if let Err(error) = stream.read_to_end(&mut received) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    received
}

#[test]
fn request_without_tls_gets_a_readable_error() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    for body in [
        ASK.to_owned(),
        format!(r#"{{"x":"{}"}}"#, "y".repeat(200_000)),
    ] {
        let mut client = Connection::open(world.server.address);
        client.send_post(CHAT, &body);
        let answer = client.answer();
        assert_eq!(answer.status(), 400);
        assert_eq!(code(&answer), "https_required");
        assert!(answer.text().contains("https://"), "{answer:?}");
        assert!(client.is_closed());
    }
    let tls = world.tls_status();
    assert_eq!(tls["plain_http"], 2);
    assert_eq!(tls["failed_handshakes"], 0);
}

#[test]
fn handshake_that_stops_is_ended_by_a_timeout() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[("server.idle_timeout", "\"2s\"")]) else {
        return;
    };
    let config = tunnel::client_config(&world.authority.certificate, &H1);
    let hello = client_hello(&config);
    // Clients stop before the first byte, within the first message (ClientHello), and after it.
    // Each connection must be closed by the timeout.
    let streams: Vec<_> = [0, 1, 100, hello.len()]
        .into_iter()
        .map(|length| {
            let mut stream = connect(&world);
            stream.write_all(&hello[..length]).unwrap();
            stream
        })
        .collect();
    for stream in streams {
        until_closed(stream);
    }
    until("the failures are counted", || {
        world.failed_handshakes() >= 4
    });
    assert_eq!(world.post(ASK).status(), 200);
}

#[test]
fn handshake_of_one_byte_at_a_time_is_ended_by_a_timeout() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[("server.idle_timeout", "\"2s\"")]) else {
        return;
    };
    let config = tunnel::client_config(&world.authority.certificate, &H1);
    let hello = client_hello(&config);
    let mut stream = connect(&world);
    // Every byte arrives in time for a limit on pauses, but not for a limit on the whole handshake.
    let sent = hello.iter().take_while(|byte| {
        thread::sleep(Duration::from_millis(50));
        stream.write_all(&[**byte]).is_ok()
    });
    let sent = sent.count();
    assert!(sent < hello.len(), "{sent} bytes were accepted");
    until("the failure is counted", || world.failed_handshakes() >= 1);
}

#[test]
fn bytes_that_are_no_handshake_are_rejected() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let endless = [vec![22, 3, 1, 64, 0, 1, 0, 255, 255], vec![0; 100_000]].concat();
    for bytes in [vec![0; 100], vec![0x80; 40_000], vec![22; 100_000], endless] {
        let mut stream = connect(&world);
        let _ = stream.write_all(&bytes);
        until_closed(stream);
    }
    until("the failures are counted", || {
        world.failed_handshakes() >= 4
    });
    // Failed handshakes must not be logged at the default level, otherwise any client could fill
    // the log.
    assert!(!world.server.log().contains("handshake"));
}

#[test]
fn open_handshake_counts_as_a_connection() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[("server.max_connections", "2")]) else {
        return;
    };
    let mut silent = Vec::new();
    // Clients on this machine may open a few connections more than `server.max_connections`, so
    // open connections until one is rejected.
    let rejected = loop {
        let mut stream = connect(&world);
        stream
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        let mut received = Vec::new();
        let ended = stream.read_to_end(&mut received);
        if ended.is_ok() || !received.is_empty() {
            break received;
        }
        silent.push(stream);
        assert!(silent.len() < 100);
    };
    assert_eq!(rejected, ALERT);
    drop(silent);
    until("connections are accepted again", || {
        let mut client = Connection::open(world.tunnel);
        let _ = testkit::Http1::send(
            &mut client,
            "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n",
        );
        testkit::Head::read(&mut client.reader).is_some()
    });
}

#[test]
fn handshake_is_not_completed_with_an_untrusted_certificate() {
    let sandbox = testkit::sandbox!();
    let Some(world) = world::start(&sandbox, &[]) else {
        return;
    };
    let Some(others) = testkit::certificates::Authority::create(sandbox.root(), "others") else {
        return;
    };
    let tunnel = world::open(&others, &world.server, &H1);
    let mut client = Connection::open(tunnel);
    client.send_get("/healthz");
    assert!(client.is_closed());
    until("the failure is counted", || world.failed_handshakes() >= 1);
}
