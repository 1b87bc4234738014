//! How long a backend may take. (L8)

use std::io::Read;
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use crate::backends::{ASK, CHAT, backend, code, count, cut_answer, ok, serve};
use crate::mock::{self, Mock, Request};
use crate::process::until;
use crate::support::Place;

/// Takes the question, and says nothing until the other side leaves.
fn silent(_: &Request, stream: &mut TcpStream) {
    let _ = stream.read(&mut [0]);
}

const SHORT_WAIT: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_FIRST_BYTE_TIMEOUT", "300ms"),
];

#[test]
fn an_answer_that_does_not_begin_in_time_is_a_timeout() {
    let place = Place::new();
    let mock = backend(silent);
    let server = serve(&place, &[&mock], SHORT_WAIT);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 504);
    assert_eq!(code(&answer), "upstream_timeout");
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn an_answer_that_does_not_begin_in_time_costs_no_more_than_a_timeout() {
    let place = Place::new();
    let (bad, good) = (backend(silent), backend(ok));
    let server = serve(&place, &[&bad, &good], SHORT_WAIT);
    until("the bad one is tried", || {
        let answer = server.post(CHAT, ASK);
        if answer.status() == 504 {
            assert_eq!(code(&answer), "upstream_timeout");
        } else {
            assert_eq!(answer.status(), 200, "{answer:?}");
        }
        count(&bad) > 0
    });
    server.until_in_flight(0);
}

/// A stream whose pieces come at this pace.
fn paced(pieces: u32, pace: Duration) -> Mock {
    backend(move |_, stream| {
        mock::begin_stream(stream);
        for number in 0..pieces {
            if !mock::chunk(stream, &format!("data: {number}\n\n")) {
                return;
            }
            thread::sleep(pace);
        }
        mock::end_stream(stream);
    })
}

#[test]
fn an_answer_that_stops_is_cut() {
    let place = Place::new();
    let mock = backend(|_, stream| {
        mock::begin_stream(stream);
        mock::chunk(stream, "data: 1\n\n");
        let _ = stream.read(&mut [0]);
    });
    let server = serve(&place, &[&mock], &[("LLMLB_IDLE_TIMEOUT", "300ms")]);
    let (head, part) = cut_answer(&server, ASK);
    assert_eq!(head.status(), 200);
    assert_eq!(part, b"data: 1\n\n");
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn an_answer_of_known_length_that_stops_is_cut_too() {
    let place = Place::new();
    let mock = backend(|_, stream| {
        use std::io::Write;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
        let _ = stream.read(&mut [0]);
    });
    let server = serve(&place, &[&mock], &[("LLMLB_IDLE_TIMEOUT", "300ms")]);
    assert_eq!(cut_answer(&server, ASK).0.status(), 200);
    server.until_in_flight(0);
}

#[test]
fn an_answer_that_is_slow_but_steady_is_not_cut() {
    let place = Place::new();
    // It lasts longer than any of the limits.
    let mock = paced(45, Duration::from_millis(100));
    let limits = [
        ("LLMLB_IDLE_TIMEOUT", "3s"),
        ("LLMLB_FIRST_BYTE_TIMEOUT", "3s"),
        ("LLMLB_PROBE_INTERVAL", "100ms"),
    ];
    let server = serve(&place, &[&mock], &limits);
    let answer = server.post(CHAT, ASK);
    assert!(answer.text().ends_with("data: 44\n\n"), "{answer:?}");
}

#[test]
fn a_client_that_reads_slowly_is_not_the_backends_silence() {
    let place = Place::new();
    let body = "x".repeat(16 << 20);
    let length = body.len();
    let mock = backend(move |_, stream| mock::json(stream, 200, &body));
    let server = serve(&place, &[&mock], &[("LLMLB_IDLE_TIMEOUT", "1s")]);
    let mut client = crate::http::Connection::open(server.address);
    client.send_post(CHAT, ASK);
    let head = client.head();
    // Longer than the backend may be silent: it is this client that is.
    thread::sleep(Duration::from_secs(3));
    let read = head.body(&mut client.reader).map(|body| body.len());
    assert_eq!(read.map_err(|_| "it was cut"), Ok(length));
}
