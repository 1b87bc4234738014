//! Reuse of idle backend connections, also when the backend closes them as a request is sent.
//! (promise L8)

use std::collections::HashSet;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::thread;
use testkit::{
    Connection, FakeLlm, Head, LlmlbServer, Received,
    backends::{ASK, CHAT, Occupied, UNPROBED, asked, backend, close, ok, serve},
    raw::{self, Raw},
    wire,
};

/// Asserts that 300 requests, 75 from each of four clients, get status 200, and that the backend is still up.
fn assert_all_served(server: &LlmlbServer, body: &str) {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut client = Connection::open(server.address);
                for _ in 0..75 {
                    client.send_post(CHAT, body);
                    let answer = client.answer();
                    assert_eq!(answer.status(), 200, "{answer:?}");
                }
            });
        }
    });
    let status = server.status();
    assert_eq!(status["backends"][0]["up"], true, "{status}");
}

/// Returns a backend that serves the first request of each connection. When the second one arrives,
/// `end` closes the connection.
fn serving_one_request_per_connection(end: impl Fn(&TcpStream) + Send + Sync + 'static) -> FakeLlm {
    let served = Mutex::new(HashSet::new());
    backend(move |request, stream| {
        if served.lock().unwrap().insert(request.connection) {
            ok(request, stream);
        } else {
            end(stream);
        }
    })
}

#[test]
fn request_is_retried_when_the_backend_closes_an_idle_connection_on_it() {
    let sandbox = testkit::sandbox!();
    let mock = serving_one_request_per_connection(close);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    assert_all_served(&server, ASK);
}

#[test]
fn request_is_retried_when_the_backend_resets_an_idle_connection_on_it() {
    let sandbox = testkit::sandbox!();
    let mock = serving_one_request_per_connection(raw::reset);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    assert_all_served(&server, ASK);
}

#[test]
fn request_is_served_when_the_backend_closes_after_each_response() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| {
        ok(request, stream);
        close(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    assert_all_served(&server, ASK);
}

/// Serves one request, reads only the head of the next one and closes the connection.
fn serve_one_and_close(_: &Head, reader: &mut BufReader<TcpStream>, body: usize) {
    let _ = reader.read_exact(&mut vec![0; body]);
    wire::json(reader.get_mut(), 200, "{}");
    if Head::read(reader).is_some() {
        close(reader.get_mut());
    }
}

#[test]
fn request_is_retried_when_the_backend_closes_before_it_has_read_the_body() {
    let sandbox = testkit::sandbox!();
    let body = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(300_000));
    let length = body.len();
    let raw: Raw = raw::heads(move |head, reader| serve_one_and_close(head, reader, length));
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.envs(UNPROBED.iter().copied()));
    assert_all_served(&server, &body);
}

#[test]
fn stale_connection_does_not_count_as_a_failure() {
    let sandbox = testkit::sandbox!();
    let (stale, mut other) = (serving_one_request_per_connection(close), Occupied::new());
    // If stale connections counted as failures, the backend would be ejected and requests rejected.
    let server = other.beside(&sandbox, &stale);
    let mut client = Connection::open(server.address);
    for _ in 0..200 {
        client.send_post(CHAT, ASK);
        let answer = client.answer();
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
}

fn responding(answer: &'static str) -> FakeLlm {
    backend(move |_: &Received, stream: &mut TcpStream| {
        let _ = stream.write_all(answer.as_bytes());
    })
}

#[test]
fn connection_is_not_reused_when_the_backend_will_close_it() {
    for answer in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nConnection: x, Close\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ] {
        let sandbox = testkit::sandbox!();
        let mock = responding(answer);
        let server = serve(&sandbox, &[&mock], UNPROBED);
        for _ in 0..10 {
            assert_eq!(server.post(CHAT, ASK).text(), "{}");
        }
        let connections: HashSet<_> = asked(&mock)
            .iter()
            .map(|request| request.connection)
            .collect();
        assert_eq!(connections.len(), 10, "{answer}");
    }
}

#[test]
fn http_1_0_connection_with_keep_alive_is_reused() {
    let sandbox = testkit::sandbox!();
    let mock =
        responding("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}");
    let server = serve(&sandbox, &[&mock], UNPROBED);
    // Send all requests on one client connection: one worker serves it, and each worker has its own
    // idle backend connections.
    let mut client = Connection::open(server.address);
    for _ in 0..10 {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().text(), "{}");
    }
    let connections: Vec<_> = asked(&mock)
        .iter()
        .map(|request| request.connection)
        .collect();
    assert_eq!(connections, [connections[0]; 10]);
}
