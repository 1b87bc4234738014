//! Answers that two readers could read differently. (L11)

use std::io::Write;
use testkit::{
    FakeLlm,
    backends::{ASK, CHAT, UNPROBED, backend, code, count, nobody_notices, ok, serve},
};

fn answering(fields: &'static str) -> FakeLlm {
    backend(move |_, stream| {
        let _ = stream.write_all(
            format!("HTTP/1.1 200 OK\r\n{fields}content-length: 2\r\n\r\n{{}}").as_bytes(),
        );
    })
}

/// Fields of a head that another reader could take for more of them, or for the end of the head.
const SPLIT: &[&str] = &[
    "x-a: 1\rx-evil: 2\r\n",
    "x-a: 1\0x-evil: 2\r\n",
    "x-a : 1\r\n",
    "x-\u{e9}: 1\r\n",
    "x-a\r\n",
    // Folded: one field for some, two for others.
    "x-a: 1\r\n x-evil: 2\r\n",
    "x-a: 1\r\n\tx-evil: 2\r\n",
    "content-length: 2\r\ncontent-length: 3\r\n",
    "transfer-encoding: identity, chunked, x\r\n",
];

#[test]
fn a_head_that_could_be_two_is_no_answer() {
    for fields in SPLIT {
        let place = testkit::sandbox!();
        let (bad, good) = (answering(fields), backend(ok));
        let server = serve(&place, &[&bad, &good], UNPROBED);
        eprintln!("{fields:?}");
        nobody_notices(&server, || count(&bad), &good);
        let alone = serve(&place, &[&bad], UNPROBED);
        let answer = alone.post(CHAT, ASK);
        assert_eq!(answer.status(), 502, "{fields:?}: {answer:?}");
        assert_eq!(code(&answer), "upstream_error");
    }
}

#[test]
fn fields_that_concern_the_connection_alone_end_here() {
    let place = testkit::sandbox!();
    let mock = answering(
        "connection: x-hop\r\nx-hop: 1\r\nproxy-connection: keep-alive\r\nkeep-alive: timeout=5\r\n\
         upgrade: h2c\r\nx-llmlb-backend: another\r\n",
    );
    let server = serve(&place, &[&mock], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 200);
    for gone in ["x-hop", "proxy-connection", "keep-alive", "upgrade"] {
        assert_eq!(answer.head.header(gone), None, "{gone}");
    }
    let served_by = answer.head.header("x-llmlb-backend");
    assert_eq!(served_by, Some(mock.address.to_string()), "ours alone");
}

#[test]
fn letters_beyond_ascii_in_a_value_pass() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nx-a: \xc3\xa9\r\ncontent-length: 2\r\n\r\n{}");
    });
    let server = serve(&place, &[&mock], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.head.header("x-a").as_deref(), Some("é"));
}
