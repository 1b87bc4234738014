//! A response that the backend cuts is an error for the client, and its request is not retried.
//! (promise L8)

use std::io::Write;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use testkit::{
    Connection, FakeLlm, Head,
    backends::{ASK, CHAT, UNPROBED, backend, close, count, ok, send_and_close, serve},
    h2_client::{self, connected},
    raw::reset,
    read_chunk, until, wire,
};

const HEAD: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

/// Defects of a chunked body after its first chunk.
const DEFECTS: &[(&str, &str)] = &[
    ("the body ends after a chunk", ""),
    ("the body ends in a chunk", "5\r\nab"),
    ("the body ends before the last line", "0\r\n"),
    ("the body ends in the size of a chunk", "5"),
    ("a size that is not a number", "zz\r\nab\r\n0\r\n\r\n"),
    ("a negative size", "-1\r\nab\r\n0\r\n\r\n"),
    ("an empty size", "\r\nab\r\n0\r\n\r\n"),
    (
        "a size that overflows",
        "fffffffffffffffff\r\nab\r\n0\r\n\r\n",
    ),
    ("a chunk longer than its size", "1\r\nabc\r\n0\r\n\r\n"),
    ("a chunk without its line end", "1\r\naXX0\r\n\r\n"),
];

/// Asserts that the client sees every response of this backend cut, and that no other backend gets
/// its request.
fn assert_cut(defect: &str, bad: &FakeLlm) {
    let sandbox = testkit::sandbox!();
    let good = backend(ok);
    let server = serve(&sandbox, &[bad, &good], UNPROBED);
    until("the bad backend is tried", || {
        let mut client = Connection::open(server.address);
        let before = count(&good);
        client.send_post(CHAT, ASK);
        let head = client.head();
        assert_eq!(head.status(), 200, "{defect}");
        let body = head.body(&mut client.reader);
        if count(bad) == 0 {
            return false;
        }
        assert!(body.is_err(), "{defect}: {head:?} {body:?}");
        assert!(client.is_closed(), "{defect}: the connection is still open");
        assert_eq!(count(&good), before, "{defect}");
        true
    });
    server.until_in_flight(0);
}

#[test]
fn chunked_response_with_a_defect_is_cut_for_the_client() {
    for (defect, rest) in DEFECTS {
        let bad = backend(move |_, stream| {
            send_and_close(stream, format!("{HEAD}5\r\nfirst\r\n{rest}").as_bytes());
        });
        assert_cut(defect, &bad);
    }
}

#[test]
fn chunked_response_with_a_defect_is_cut_when_the_backend_keeps_its_connection() {
    for (defect, rest) in &DEFECTS[4..] {
        let bad = backend(move |_, stream| {
            let _ = stream.write_all(format!("{HEAD}5\r\nfirst\r\n{rest}").as_bytes());
        });
        assert_cut(defect, &bad);
    }
}

#[test]
fn endless_chunk_size_cuts_the_response() {
    let bad = backend(|_, stream| {
        let _ = stream.write_all(format!("{HEAD}5\r\nfirst\r\n").as_bytes());
        for _ in 0..(10 << 20) / 64 {
            if stream.write_all(&[b'0'; 64]).is_err() {
                return;
            }
        }
    });
    assert_cut("an endless size", &bad);
}

#[test]
fn response_shorter_than_its_length_is_cut_for_the_client() {
    for sent in ["", "half"] {
        let bad = backend(move |_, stream| {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n";
            send_and_close(stream, format!("{head}{sent}").as_bytes());
        });
        let sandbox = testkit::sandbox!();
        let server = serve(&sandbox, &[&bad], UNPROBED);
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, ASK);
        // If the backend cuts the response before the first byte of its body, the server may
        // respond 502 or close the connection without a response.
        if let Some(head) = Head::read(&mut client.reader) {
            let body = head.body(&mut client.reader);
            assert!(body.is_err() || head.status() == 502, "{head:?}");
            assert!(body.is_ok() || client.is_closed(), "{head:?}");
        }
        server.until_in_flight(0);
    }
}

#[test]
fn response_without_length_is_cut_for_the_client_when_the_backend_resets() {
    let sandbox = testkit::sandbox!();
    // A reset discards bytes that were not received yet. The backend therefore resets the
    // connection after the client has read the first bytes.
    let (arrived, waiting) = channel();
    let waiting = Mutex::new(waiting);
    let bad = backend(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegun");
        let _ = waiting.lock().unwrap().recv();
        reset(stream);
    });
    let server = serve(&sandbox, &[&bad], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    let first = read_chunk(&mut client.reader);
    assert_eq!(first, Some(Some(b"begun".to_vec())));
    arrived.send(()).unwrap();
    assert_eq!(read_chunk(&mut client.reader), None);
    assert!(client.is_closed());
    server.until_in_flight(0);
}

#[test]
fn cut_response_resets_only_its_http_2_stream() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| {
        if request.text().contains("length") {
            let half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf";
            return send_and_close(stream, half);
        }
        wire::begin_stream(stream);
        wire::chunk(stream, "first");
        if request.text().contains("cut") {
            close(stream);
        }
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        for cut in ["cut", "length", "cut"] {
            let ask = format!(r#"{{"model":"m","x":"{cut}"}}"#);
            let cut = h2_client::post(&client, CHAT, &ask).await;
            assert_eq!(cut.status, 200);
            let error = cut.body.unwrap_err();
            assert!(error.is_reset(), "{error}");
            let whole = h2_client::post(&client, CHAT, ASK).await;
            assert_eq!(whole.text(), "first");
        }
    });
    server.until_in_flight(0);
}
