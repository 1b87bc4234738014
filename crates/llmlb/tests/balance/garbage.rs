//! Backends that answer something else than HTTP. (L8)

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use testkit::{
    Connection, DEADLINE, FakeLlm,
    backends::{
        ASK, CHAT, UNPROBED, backend, code, count, nobody_notices, ok, send_and_close, serve,
    },
};

/// Instead of an answer's head, and whether the connection ends with it.
const NO_HEADS: &[(&str, &[u8], bool)] = &[
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
        "a wrong field",
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
        "a length below zero",
        b"HTTP/1.1 200 OK\r\ncontent-length: -2\r\n\r\n{}",
        false,
    ),
    (
        "a length with a sign",
        b"HTTP/1.1 200 OK\r\ncontent-length: +2\r\n\r\n{}",
        false,
    ),
    (
        "a length beyond all",
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

fn answering(bytes: &'static [u8], closes: bool) -> FakeLlm {
    backend(move |_, stream| {
        if closes {
            send_and_close(stream, bytes);
        } else {
            let _ = stream.write_all(bytes);
        }
    })
}

#[test]
fn garbage_instead_of_an_answer_is_not_noticed() {
    for (what, bytes, closes) in NO_HEADS {
        let place = testkit::sandbox!();
        let (bad, good) = (answering(bytes, *closes), backend(ok));
        let server = serve(&place, &[&bad, &good], UNPROBED);
        eprintln!("{what}");
        nobody_notices(&server, || count(&bad), &good);
    }
}

#[test]
fn garbage_of_the_only_backend_is_an_error_of_its_own() {
    for (what, bytes, closes) in NO_HEADS {
        let place = testkit::sandbox!();
        let bad = answering(bytes, *closes);
        let server = serve(&place, &[&bad], UNPROBED);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 502, "{what}: {answer:?}");
        assert_eq!(code(&answer), "upstream_error", "{what}");
        assert!(count(&bad) <= 3, "{what}");
        server.until_in_flight(0);
    }
}

/// A head of ten megabytes, in one line or in many. It ends when nobody listens any more.
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
fn an_absurd_head_is_not_noticed_and_not_kept() {
    for line in ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "a\r\nx-more: "] {
        let place = testkit::sandbox!();
        let (bad, good) = (endless_head(line), backend(ok));
        let server = serve(&place, &[&bad, &good], UNPROBED);
        nobody_notices(&server, || count(&bad), &good);
        let alone = serve(&place, &[&bad], UNPROBED);
        let answer = alone.post(CHAT, ASK);
        assert_eq!(answer.status(), 502);
        assert_eq!(code(&answer), "upstream_error");
    }
}

#[test]
fn what_follows_an_answer_is_not_the_next_one() {
    let place = testkit::sandbox!();
    // More than it announced; then what looks like an answer to whoever asks next.
    for more in [
        "and more",
        "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil",
    ] {
        let mock = backend(move |_, stream| {
            let _ = stream.write_all(
                format!("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood{more}").as_bytes(),
            );
        });
        let server = serve(&place, &[&mock], UNPROBED);
        for _ in 0..50 {
            let answer = server.post(CHAT, ASK);
            assert_eq!((answer.status(), answer.text().as_str()), (200, "good"));
        }
        assert_eq!(count(&mock), 50);
    }
}

#[test]
fn what_comes_unasked_on_an_idle_connection_answers_nobody() {
    let place = testkit::sandbox!();
    let (ask, asked_for) = channel();
    let (done, seen) = channel();
    let channels = Mutex::new((asked_for, done));
    let mock = backend(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood");
        // Once the client has that.
        let channels = channels.lock().unwrap();
        if channels.0.recv().is_ok() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil");
            let _ = channels.1.send(());
        }
    });
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..20 {
        client.send_post(CHAT, ASK);
        let answer = client.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "good"));
        ask.send(()).unwrap();
        seen.recv_timeout(DEADLINE).unwrap();
    }
}
