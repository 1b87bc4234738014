//! Connections that wait for the next request, and end at the worst moment. (L8)

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

/// Several clients ask hundreds of questions; each gets its answer.
fn assert_all_answered(server: &LlmlbServer, body: &str) {
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

/// A backend that answers the first request of each connection; of the second, only its arrival is
/// noticed.
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
fn a_backend_that_closes_when_the_next_request_comes_is_not_noticed() {
    let place = testkit::sandbox!();
    let mock = serving_one_request_per_connection(close);
    let server = serve(&place, &[&mock], UNPROBED);
    assert_all_answered(&server, ASK);
}

#[test]
fn a_backend_that_resets_when_the_next_request_comes_is_not_noticed() {
    let place = testkit::sandbox!();
    let mock = serving_one_request_per_connection(raw::reset);
    let server = serve(&place, &[&mock], UNPROBED);
    assert_all_answered(&server, ASK);
}

#[test]
fn a_backend_that_closes_right_after_its_answer_is_not_noticed() {
    let place = testkit::sandbox!();
    let mock = backend(|request, stream| {
        ok(request, stream);
        close(stream);
    });
    let server = serve(&place, &[&mock], UNPROBED);
    assert_all_answered(&server, ASK);
}

/// Serves one request, and of the next one reads nothing but the head.
fn half_reader(_: &Head, reader: &mut BufReader<TcpStream>, body: usize) {
    let _ = reader.read_exact(&mut vec![0; body]);
    wire::json(reader.get_mut(), 200, "{}");
    if Head::read(reader).is_some() {
        close(reader.get_mut());
    }
}

#[test]
fn a_backend_that_closes_before_it_has_read_the_next_request_is_not_noticed() {
    let place = testkit::sandbox!();
    let body = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(300_000));
    let length = body.len();
    let raw: Raw = raw::heads(move |head, reader| half_reader(head, reader, length));
    let mut command = place.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = place.serve_with(command.envs(UNPROBED.iter().copied()));
    assert_all_answered(&server, &body);
}

#[test]
fn a_stale_connection_is_nobodys_failure() {
    let place = testkit::sandbox!();
    let (stale, mut other) = (serving_one_request_per_connection(close), Occupied::new());
    // If three of them counted as failures in a row, requests would have to wait for the other.
    let server = other.beside(&place, &stale);
    let mut client = Connection::open(server.address);
    for _ in 0..200 {
        client.send_post(CHAT, ASK);
        let answer = client.answer();
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
}

/// Answers so, and keeps the connection.
fn answering(answer: &'static str) -> FakeLlm {
    backend(move |_: &Received, stream: &mut TcpStream| {
        let _ = stream.write_all(answer.as_bytes());
    })
}

#[test]
fn a_connection_that_the_backend_will_not_use_again_is_not() {
    for answer in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nConnection: x, Close\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ] {
        let place = testkit::sandbox!();
        let mock = answering(answer);
        let server = serve(&place, &[&mock], UNPROBED);
        for _ in 0..10 {
            assert_eq!(server.post(CHAT, ASK).text(), "{}");
        }
        let connections: HashSet<_> = asked(&mock).iter().map(|one| one.connection).collect();
        assert_eq!(connections.len(), 10, "{answer}");
    }
}

#[test]
fn a_connection_of_an_old_backend_that_offers_to_keep_it_is_used_again() {
    let place = testkit::sandbox!();
    let mock =
        answering("HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\n{}");
    let server = serve(&place, &[&mock], UNPROBED);
    // One client, and so one thread of the server, each of which has its own.
    let mut client = Connection::open(server.address);
    for _ in 0..10 {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().text(), "{}");
    }
    let connections: Vec<_> = asked(&mock).iter().map(|one| one.connection).collect();
    assert_eq!(connections, [connections[0]; 10]);
}
