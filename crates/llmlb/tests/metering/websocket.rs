//! A WebSocket is one request with one record, from its handshake to the last byte of either side.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use crate::records;
use testkit::{
    Connection, LlmlbServer, Sandbox,
    raw::{self, Raw},
};

const HANDSHAKE: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\r\n\
    connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const HANDSHAKE_RESPONSE: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

#[test]
fn websocket_has_one_record_when_it_ends() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let client = connect_and_echo(&server);
    assert_eq!(records::all(&sandbox), [Value::Null; 0]);
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["status"], 101, "{record:#}");
    assert_eq!(record["outcome"], "complete", "{record:#}");
    assert_eq!(record["path"], "/v1/realtime", "{record:#}");
    assert_eq!(record["bytes"], 5, "{record:#}");
    assert_eq!(record["backend"], raw.address.to_string(), "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    server.until_in_flight(0);
    assert_eq!(records::all(&sandbox).len(), 1);
}

/// Starts a backend that accepts the handshake, echoes five bytes and then runs `then`.
fn echoing(then: impl Fn(&mut BufReader<TcpStream>) + Send + Sync + 'static) -> Raw {
    raw::heads(move |_, reader| {
        reader
            .get_mut()
            .write_all(HANDSHAKE_RESPONSE.as_bytes())
            .unwrap();
        let mut received = [0; 5];
        reader.read_exact(&mut received).unwrap();
        reader.get_mut().write_all(&received).unwrap();
        then(reader);
    })
}

/// Returns a WebSocket client that has received its echo.
fn connect_and_echo(server: &LlmlbServer) -> Connection {
    let mut client = Connection::open(server.address);
    client.send(HANDSHAKE);
    assert_eq!(client.head().status(), 101);
    client.send("hello");
    let mut reply = [0; 5];
    client.reader.read_exact(&mut reply).unwrap();
    client
}

fn assert_record(sandbox: &Sandbox, outcome: &str) -> Value {
    let record = records::eventually(sandbox, "a");
    assert_eq!(record["outcome"], outcome, "{record:#}");
    assert_eq!(record["bytes"], 5, "{record:#}");
    assert!(record["first_byte_ms"].is_u64(), "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    record
}

#[test]
fn websocket_reset_by_the_client_is_recorded_as_cancelled() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let client = connect_and_echo(&server);
    raw::reset(client.reader.get_ref());
    assert_record(&sandbox, "cancelled");
    server.until_in_flight(0);
}

/// The last bytes of a WebSocket are not known in advance. The record is persisted before the client
/// sees the end of the connection. (L9)
#[test]
fn websocket_is_recorded_before_the_client_sees_its_end() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
        reader.get_ref().shutdown(Shutdown::Write).unwrap();
        let _ = reader.read(&mut [0]);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = connect_and_echo(&server);
    client.send("x");
    assert!(client.is_closed());
    // The client has seen the end of the backend's bytes and has not closed its own side yet. The
    // record must exist already, and must not wait for the client.
    let record = records::one(&sandbox, "a");
    assert_record(&sandbox, "complete");
    drop(client);
    server.until_in_flight(0);
    assert_eq!(records::one(&sandbox, "a"), record);
}

#[test]
fn websocket_reset_by_the_backend_is_recorded_before_the_client_sees_it() {
    for _ in 0..10 {
        let sandbox = testkit::sandbox!();
        let raw = echoing(|reader| {
            // Wait until the client has received everything.
            let _ = reader.read(&mut [0]);
            raw::reset(reader.get_ref());
        });
        let server = sandbox.serve(&format!("--backend {}", raw.url()));
        let mut client = connect_and_echo(&server);
        client.send("x");
        assert!(client.is_closed());
        let record = records::one(&sandbox, "a");
        assert_record(&sandbox, "cut");
        server.until_in_flight(0);
        assert_eq!(records::one(&sandbox, "a"), record);
    }
}

#[test]
fn websocket_open_at_the_drain_deadline_is_recorded_with_its_bytes() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "100ms"));
    let _client = connect_and_echo(&server);
    sandbox.run(&format!("stop -p {}", server.port()));
    assert_record(&sandbox, "cut");
}

/// After one side has closed, a silent other side must not occupy the backend's slot forever.
#[test]
fn websocket_closed_by_one_side_is_closed_after_the_idle_timeout() {
    for is_client in [true, false] {
        let sandbox = testkit::sandbox!();
        let raw = echoing(move |reader| {
            if !is_client {
                reader.get_mut().shutdown(Shutdown::Write).unwrap();
            }
            // Wait until llmlb closes the connection.
            let _ = reader.read_to_end(&mut Vec::new());
            let _ = reader.get_ref().peek(&mut [0]);
            std::thread::park();
        });
        let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
        let server = sandbox.serve_with(command.env("LLMLB_IDLE_TIMEOUT", "200ms"));
        let mut client = connect_and_echo(&server);
        if is_client {
            client.reader.get_ref().shutdown(Shutdown::Write).unwrap();
        }
        assert!(client.is_closed());
        assert_record(&sandbox, if is_client { "cancelled" } else { "complete" });
        server.until_in_flight(0);
    }
}

#[test]
fn silent_tunnel_is_closed_and_its_record_names_the_limit() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_TUNNEL_IDLE", "200ms"));
    let mut client = connect_and_echo(&server);
    assert!(client.is_closed());
    let record = assert_record(&sandbox, "cancelled");
    assert_eq!(record["reason"], "tunnel_idle", "{record:#}");
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
    let line = "GET /v1/realtime 101 tunnel_idle";
    server.process.until_output(line);
}

#[test]
fn tunnel_stays_open_while_one_side_sends_now_and_then() {
    for is_client in [true, false] {
        let sandbox = testkit::sandbox!();
        let raw = echoing(move |reader| {
            for _ in 0..30 {
                if is_client {
                    reader.read_exact(&mut [0]).unwrap();
                } else {
                    reader.get_mut().write_all(b".").unwrap();
                    std::thread::sleep(std::time::Duration::from_millis(100));
                }
            }
            reader.get_mut().write_all(b"end").unwrap();
            let _ = reader.read(&mut [0]);
        });
        let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
        let server = sandbox.serve_with(command.env("LLMLB_TUNNEL_IDLE", "2s"));
        let mut client = connect_and_echo(&server);
        for _ in 0..30 {
            if is_client {
                client.send(".");
                std::thread::sleep(std::time::Duration::from_millis(100));
            } else {
                client.reader.read_exact(&mut [0]).unwrap();
            }
        }
        let mut end = [0; 3];
        client.reader.read_exact(&mut end).unwrap();
        assert_eq!(&end, b"end");
    }
}

/// `idle_timeout` is for responses. In a tunnel that neither side has closed, `tunnel_idle` counts.
#[test]
fn tunnel_open_on_both_sides_may_be_silent_longer_than_the_idle_timeout() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        reader.get_mut().write_all(b"later").unwrap();
        let _ = reader.read(&mut [0]);
        let _ = reader.get_ref().shutdown(Shutdown::Both);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_IDLE_TIMEOUT", "100ms"));
    let mut client = connect_and_echo(&server);
    let mut reply = [0; 5];
    client.reader.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"later");
}
