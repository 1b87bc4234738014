//! A WebSocket is one request, from its handshake to the last byte of either side.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use crate::records;
use testkit::{
    Connection, LlmlbServer, Sandbox,
    raw::{self, Raw},
};

const HELLO: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\r\n\
    connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const WELCOME: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

#[test]
fn a_websocket_is_one_record_when_it_is_over() {
    let place = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        reader.get_mut().write_all(WELCOME.as_bytes()).unwrap();
        let mut heard = [0; 5];
        reader.read_exact(&mut heard).unwrap();
        reader.get_mut().write_all(&heard).unwrap();
        let _ = reader.read(&mut [0]);
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    });
    let server = place.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(HELLO);
    assert_eq!(client.head().status(), 101);
    client.send("hello");
    let mut back = [0; 5];
    client.reader.read_exact(&mut back).unwrap();
    assert_eq!(records::all(&place), [Value::Null; 0]);
    drop(client);
    let record = records::eventually(&place, "a");
    assert_eq!(record["status"], 101, "{record:#}");
    assert_eq!(record["outcome"], "complete", "{record:#}");
    assert_eq!(record["path"], "/v1/realtime", "{record:#}");
    assert_eq!(record["bytes"], 5, "{record:#}");
    assert_eq!(record["backend"], raw.address.to_string(), "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    server.until_in_flight(0);
    assert_eq!(records::all(&place).len(), 1);
}

/// A backend that agrees and echoes five bytes, and then goes on as told.
fn echoing(go_on: impl Fn(&mut BufReader<TcpStream>) + Send + Sync + 'static) -> Raw {
    raw::heads(move |_, reader| {
        reader.get_mut().write_all(WELCOME.as_bytes()).unwrap();
        let mut heard = [0; 5];
        reader.read_exact(&mut heard).unwrap();
        reader.get_mut().write_all(&heard).unwrap();
        go_on(reader);
    })
}

/// A client that has heard its echo.
fn echoed(server: &LlmlbServer) -> Connection {
    let mut client = Connection::open(server.address);
    client.send(HELLO);
    assert_eq!(client.head().status(), 101);
    client.send("hello");
    let mut back = [0; 5];
    client.reader.read_exact(&mut back).unwrap();
    client
}

fn assert_record(place: &Sandbox, outcome: &str) -> Value {
    let record = records::eventually(place, "a");
    assert_eq!(record["outcome"], outcome, "{record:#}");
    assert_eq!(record["bytes"], 5, "{record:#}");
    assert!(record["first_byte_ms"].is_u64(), "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    record
}

#[test]
fn who_resets_a_websocket_has_left_it() {
    let place = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let server = place.serve(&format!("--backend {}", raw.url()));
    let client = echoed(&server);
    raw::reset(client.reader.get_ref());
    assert_record(&place, "cancelled");
    server.until_in_flight(0);
}

/// Which bytes are the last cannot be known before the end: it is that for which the record does not
/// come too late. (L9)
#[test]
fn who_sees_the_end_of_a_websocket_is_recorded() {
    let place = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
        reader.get_ref().shutdown(Shutdown::Write).unwrap();
        let _ = reader.read(&mut [0]);
    });
    let server = place.serve(&format!("--backend {}", raw.url()));
    let mut client = echoed(&server);
    client.send("x");
    assert!(client.is_closed());
    // Its own side is still open.
    let record = records::one(&place, "a");
    assert_record(&place, "complete");
    drop(client);
    server.until_in_flight(0);
    assert_eq!(records::one(&place, "a"), record);
}

#[test]
fn who_sees_a_websocket_break_off_is_recorded() {
    for _ in 0..10 {
        let place = testkit::sandbox!();
        let raw = echoing(|reader| {
            // The client has everything before it ends.
            let _ = reader.read(&mut [0]);
            raw::reset(reader.get_ref());
        });
        let server = place.serve(&format!("--backend {}", raw.url()));
        let mut client = echoed(&server);
        client.send("x");
        assert!(client.is_closed());
        let record = records::one(&place, "a");
        assert_record(&place, "cut");
        server.until_in_flight(0);
        assert_eq!(records::one(&place, "a"), record);
    }
}

#[test]
fn a_websocket_that_is_open_when_the_server_ends_has_its_bytes() {
    let place = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let mut command = place.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = place.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "100ms"));
    let _client = echoed(&server);
    place.run(&format!("stop -p {}", server.port()));
    assert_record(&place, "cut");
}

/// One side has gone, and the other says nothing: nobody else would ever have its place.
#[test]
fn a_websocket_that_one_side_has_left_has_a_limit() {
    for is_client in [true, false] {
        let place = testkit::sandbox!();
        let raw = echoing(move |reader| {
            if !is_client {
                reader.get_mut().shutdown(Shutdown::Write).unwrap();
            }
            // Until the other side gives up.
            let _ = reader.read_to_end(&mut Vec::new());
            let _ = reader.get_ref().peek(&mut [0]);
            std::thread::park();
        });
        let mut command = place.command(&format!("serve -p 0 --backend {}", raw.url()));
        let server = place.serve_with(command.env("LLMLB_IDLE_TIMEOUT", "200ms"));
        let mut client = echoed(&server);
        if is_client {
            client.reader.get_ref().shutdown(Shutdown::Write).unwrap();
        }
        assert!(client.is_closed());
        assert_record(&place, if is_client { "cancelled" } else { "complete" });
        server.until_in_flight(0);
    }
}

#[test]
fn tunnel_that_carries_nothing_is_closed_and_its_record_names_the_limit() {
    let place = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let mut command = place.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = place.serve_with(command.env("LLMLB_TUNNEL_IDLE", "200ms"));
    let mut client = echoed(&server);
    assert!(client.is_closed());
    let record = assert_record(&place, "cancelled");
    assert_eq!(record["reason"], "tunnel_idle", "{record:#}");
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
    let line = "GET /v1/realtime 101 tunnel_idle";
    testkit::until("it is logged", || server.process.stderr().contains(line));
}

#[test]
fn tunnel_in_which_one_side_sends_now_and_then_stays_open() {
    for is_client in [true, false] {
        let place = testkit::sandbox!();
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
        let mut command = place.command(&format!("serve -p 0 --backend {}", raw.url()));
        let server = place.serve_with(command.env("LLMLB_TUNNEL_IDLE", "2s"));
        let mut client = echoed(&server);
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

/// The limit on a silent backend is for responses: while both sides are there, `tunnel_idle` counts.
#[test]
fn tunnel_that_nobody_has_left_may_be_silent_longer_than_a_backend() {
    let place = testkit::sandbox!();
    let raw = echoing(|reader| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        reader.get_mut().write_all(b"later").unwrap();
        let _ = reader.read(&mut [0]);
        let _ = reader.get_ref().shutdown(Shutdown::Both);
    });
    let mut command = place.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = place.serve_with(command.env("LLMLB_IDLE_TIMEOUT", "100ms"));
    let mut client = echoed(&server);
    let mut back = [0; 5];
    client.reader.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"later");
}
