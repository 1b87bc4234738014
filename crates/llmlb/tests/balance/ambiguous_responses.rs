//! Responses that two clients could parse differently. (promise L11)

use std::io::Write;
use testkit::{
    FakeLlm,
    backends::{ASK, CHAT, UNPROBED, assert_failover, backend, code, count, ok, serve},
};

fn responding(fields: &'static str) -> FakeLlm {
    backend(move |_, stream| {
        let _ = stream.write_all(
            format!("HTTP/1.1 200 OK\r\n{fields}content-length: 2\r\n\r\n{{}}").as_bytes(),
        );
    })
}

/// Header fields that another parser could read as several fields or as the end of the head.
const SPLIT: &[&str] = &[
    "x-a: 1\rx-evil: 2\r\n",
    "x-a: 1\0x-evil: 2\r\n",
    "x-a : 1\r\n",
    "x-\u{e9}: 1\r\n",
    "x-a\r\n",
    // Folded lines: one field for some parsers, two fields for others.
    "x-a: 1\r\n x-evil: 2\r\n",
    "x-a: 1\r\n\tx-evil: 2\r\n",
    "content-length: 2\r\ncontent-length: 3\r\n",
    "transfer-encoding: identity, chunked, x\r\n",
];

#[test]
fn ambiguous_response_head_is_an_upstream_failure() {
    for fields in SPLIT {
        let sandbox = testkit::sandbox!();
        let (bad, good) = (responding(fields), backend(ok));
        let server = serve(&sandbox, &[&bad, &good], UNPROBED);
        eprintln!("{fields:?}");
        assert_failover(&server, || count(&bad), &good);
        let only = serve(&sandbox, &[&bad], UNPROBED);
        let answer = only.post(CHAT, ASK);
        assert_eq!(answer.status(), 502, "{fields:?}: {answer:?}");
        assert_eq!(code(&answer), "upstream_error");
    }
}

#[test]
fn hop_by_hop_fields_of_a_response_are_not_forwarded() {
    let sandbox = testkit::sandbox!();
    let mock = responding(
        "connection: x-hop\r\nx-hop: 1\r\nproxy-connection: keep-alive\r\nkeep-alive: timeout=5\r\n\
         upgrade: h2c\r\nx-llmlb-backend: another\r\n",
    );
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 200);
    for name in ["x-hop", "proxy-connection", "keep-alive", "upgrade"] {
        assert_eq!(answer.head.header(name), None, "{name}");
    }
    let served_by = answer.head.header("x-llmlb-backend");
    assert_eq!(
        served_by,
        Some(mock.address.to_string()),
        "the field of the backend is not forwarded"
    );
}

#[test]
fn non_ascii_field_value_is_forwarded() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let _ =
            stream.write_all(b"HTTP/1.1 200 OK\r\nx-a: \xc3\xa9\r\ncontent-length: 2\r\n\r\n{}");
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.head.header("x-a").as_deref(), Some("é"));
}
