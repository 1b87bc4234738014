//! Backends whose responses are not valid HTTP. (promise L8)

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use testkit::{
    Connection, DEADLINE, FakeLlm,
    backends::{
        ASK, CHAT, UNPROBED, assert_failover, backend, code, count, ok, send_and_close, serve,
    },
};

/// Invalid heads of responses: name, bytes, and true if the backend closes the connection then.
const INVALID_HEADS: &[(&str, &[u8], bool)] = &[
    ("another protocol", b"SSH-2.0-OpenSSH_9.2p1\r\n", false),
    ("half a status line", b"HTTP/1.", true),
    ("half a head", b"HTTP/1.1 200 OK\r\ncontent-ty", true),
    (
        "no end of the head",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n",
        true,
    ),
    ("no version", b"200 OK\r\n\r\n", false),
    ("no status", b"HTTP/1.1 OK\r\n\r\n", false),
    (
        "a status too long",
        b"HTTP/1.1 2000 OK\r\ncontent-length: 0\r\n\r\n",
        false,
    ),
    (
        "a status too short",
        b"HTTP/1.1 20\r\ncontent-length: 0\r\n\r\n",
        false,
    ),
    (
        "an invalid field name",
        b"HTTP/1.1 200 OK\r\nb ad: 1\r\ncontent-length: 0\r\n\r\n",
        false,
    ),
    (
        "a field without name",
        b"HTTP/1.1 200 OK\r\n: 1\r\ncontent-length: 0\r\n\r\n",
        false,
    ),
    (
        "a length in words",
        b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\n{}",
        false,
    ),
    (
        "a negative length",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n{}",
        false,
    ),
    (
        "a length with a sign",
        b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}",
        false,
    ),
    (
        "a length that overflows",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\n{}",
        false,
    ),
    (
        "two lengths",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}",
        false,
    ),
    ("a TLS alert", b"\x15\x03\x01\x00\x02\x02\x46", true),
    ("zeros", &[0; 4096], false),
];

fn responding(bytes: &'static [u8], closes: bool) -> FakeLlm {
    backend(move |_, stream| {
        if closes {
            send_and_close(stream, bytes);
        } else {
            let _ = stream.write_all(bytes);
        }
    })
}

#[test]
fn request_is_retried_when_the_response_is_not_http() {
    for (name, bytes, closes) in INVALID_HEADS {
        let sandbox = testkit::sandbox!();
        let (bad, good) = (responding(bytes, *closes), backend(ok));
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        eprintln!("{name}");
        assert_failover(&server, || count(&bad), &good);
    }
}

#[test]
fn response_is_502_when_the_response_of_the_only_backend_is_not_http() {
    for (name, bytes, closes) in INVALID_HEADS {
        let sandbox = testkit::sandbox!();
        let bad = responding(bytes, *closes);
        let server = serve(&sandbox, &[&bad], UNPROBED);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 502, "{name}: {answer:?}");
        assert_eq!(code(&answer), "upstream_error", "{name}");
        assert!(count(&bad) <= 3, "{name}");
        server.until_in_flight(0);
    }
}

fn endless_head(line: &'static str) -> FakeLlm {
    backend(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nx-first: ");
        for _ in 0..(10 << 20) / line.len() {
            if stream.write_all(line.as_bytes()).is_err() {
                return;
            }
        }
        let _ = stream.write_all(b"\r\ncontent-length: 2\r\n\r\n{}");
    })
}

#[test]
fn response_head_of_ten_megabytes_is_an_upstream_failure() {
    for line in ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "a\r\nx-more: "] {
        let sandbox = testkit::sandbox!();
        let (bad, good) = (endless_head(line), backend(ok));
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        assert_failover(&server, || count(&bad), &good);
        let only = serve(&sandbox, &[&bad], UNPROBED);
        let answer = only.post(CHAT, ASK);
        assert_eq!(answer.status(), 502);
        assert_eq!(code(&answer), "upstream_error");
    }
}

#[test]
fn bytes_after_a_response_are_not_read_as_the_next_response() {
    let sandbox = testkit::sandbox!();
    // The second case looks like a complete response. A client would get it as the response to its
    // next request if the connection were reused.
    for more in [
        "and more",
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
    ] {
        let mock = backend(move |_, stream| {
            let _ = stream.write_all(
                format!("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood{more}").as_bytes(),
            );
        });
        let server = serve(&sandbox, &[&mock], UNPROBED);
        for _ in 0..50 {
            let answer = server.post(CHAT, ASK);
            assert_eq!((answer.status(), answer.text().as_str()), (200, "good"));
        }
        assert_eq!(count(&mock), 50);
    }
}

#[test]
fn bytes_received_on_an_idle_connection_are_not_used_as_a_response() {
    let sandbox = testkit::sandbox!();
    let (request_evil, evil_requested) = channel();
    let (evil_sent, sent) = channel();
    let channels = Mutex::new((evil_requested, evil_sent));
    let mock = backend(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood");
        // Wait until the client has received the response, so that the next bytes arrive on an idle
        // connection.
        let channels = channels.lock().unwrap();
        if channels.0.recv().is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil");
            let _ = channels.1.send(());
        }
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..20 {
        client.send_post(CHAT, ASK);
        let answer = client.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "good"));
        request_evil.send(()).unwrap();
        sent.recv_timeout(DEADLINE).unwrap();
    }
}
