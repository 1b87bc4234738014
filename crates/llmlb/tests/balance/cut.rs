//! An answer that breaks off is an error that the client sees, and is not asked for again. (L8)

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

/// How the body of an answer in chunks can go wrong, after its first chunk.
const BREAKS: &[(&str, &str)] = &[
    ("it ends after a chunk", ""),
    ("it ends in a chunk", "5\r\nab"),
    ("it ends before the last line", "0\r\n"),
    ("it ends in the size of a chunk", "5"),
    ("a size that is none", "zz\r\nab\r\n0\r\n\r\n"),
    ("a size below zero", "-1\r\nab\r\n0\r\n\r\n"),
    ("an empty size", "\r\nab\r\n0\r\n\r\n"),
    ("a size beyond all", "fffffffffffffffff\r\nab\r\n0\r\n\r\n"),
    ("a chunk longer than it says", "1\r\nabc\r\n0\r\n\r\n"),
    ("a chunk without its line end", "1\r\naXX0\r\n\r\n"),
];

/// Every request that the backend begins to answer is cut, and nobody else is asked.
fn assert_cut(what: &str, bad: &FakeLlm) {
    let place = testkit::sandbox!();
    let good = backend(ok);
    let server = serve(&place, &[bad, &good], UNPROBED);
    until("the bad backend is tried", || {
        let mut client = Connection::open(server.address);
        let before = count(&good);
        client.send_post(CHAT, ASK);
        let head = client.head();
        assert_eq!(head.status(), 200, "{what}");
        let body = head.body(&mut client.reader);
        if count(bad) == 0 {
            return false;
        }
        assert!(body.is_err(), "{what}: {head:?} {body:?}");
        assert!(client.is_closed(), "{what}: nothing comes, and no end");
        assert_eq!(count(&good), before, "{what}");
        true
    });
    server.until_in_flight(0);
}

#[test]
fn an_answer_in_chunks_that_breaks_off_never_ends_well() {
    for (what, rest) in BREAKS {
        let bad = backend(move |_, stream| {
            send_and_close(stream, format!("{HEAD}5\r\nfirst\r\n{rest}").as_bytes());
        });
        assert_cut(what, &bad);
    }
}

#[test]
fn a_backend_that_breaks_its_chunks_but_stays_is_left() {
    for (what, rest) in &BREAKS[4..] {
        let bad = backend(move |_, stream| {
            let _ = stream.write_all(format!("{HEAD}5\r\nfirst\r\n{rest}").as_bytes());
        });
        assert_cut(what, &bad);
    }
}

#[test]
fn an_endless_size_of_a_chunk_is_not_waited_for() {
    let bad = backend(|_, stream| {
        let _ = stream.write_all(format!("{HEAD}5\r\nfirst\r\n").as_bytes());
        for _ in 0..(10 << 20) / 64 {
            if stream.write_all(&[b'0'; 64]).is_err() {
                return;
            }
        }
    });
    assert_cut("the size of a chunk", &bad);
}

#[test]
fn an_answer_of_known_length_that_breaks_off_never_ends_well() {
    for sent in ["", "half"] {
        let bad = backend(move |_, stream| {
            let head = "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n";
            send_and_close(stream, format!("{head}{sent}").as_bytes());
        });
        let place = testkit::sandbox!();
        let server = serve(&place, &[&bad], UNPROBED);
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, ASK);
        // Before the first byte of the body, it may still be told as an error of ours, or not at
        // all.
        if let Some(head) = Head::read(&mut client.reader) {
            let body = head.body(&mut client.reader);
            assert!(body.is_err() || head.status() == 502, "{head:?}");
            assert!(body.is_ok() || client.is_closed(), "{head:?}");
        }
        server.until_in_flight(0);
    }
}

#[test]
fn an_answer_without_length_that_is_reset_never_ends_well() {
    let place = testkit::sandbox!();
    // The reset must not overtake what was sent before: so the client has that first.
    let (arrived, waiting) = channel();
    let waiting = Mutex::new(waiting);
    let bad = backend(move |_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nbegun");
        let _ = waiting.lock().unwrap().recv();
        reset(stream);
    });
    let server = serve(&place, &[&bad], UNPROBED);
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
fn over_http_2_a_cut_resets_the_stream_and_no_other() {
    let place = testkit::sandbox!();
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
    let server = serve(&place, &[&mock], UNPROBED);
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
