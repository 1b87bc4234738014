//! Responses in every form that HTTP allows. (promise L5)

use std::collections::HashSet;
use std::io::{BufRead, Read, Write};
use testkit::{
    Connection, FakeLlm, Head,
    backends::{
        ASK, CHAT, UNPROBED, asked, backend, close, code, count, ok, send_and_close, serve,
    },
    wire,
};

fn responding(bytes: &'static str) -> FakeLlm {
    backend(move |_, stream| {
        let _ = stream.write_all(bytes.as_bytes());
    })
}

const WITH_TRAILERS: &str = "HTTP/1.1 200 OK\r\ntrailer: x-sum, x-more\r\n\
    transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\nx-sum: 42\r\nx-more: a, b\r\n\r\n";

fn read_with_trailers(client: &mut Connection) -> (String, Vec<String>) {
    assert_eq!(client.head().status(), 200);
    let mut next_line = || {
        let mut line = String::new();
        client.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let mut text = String::new();
    while next_line() != "0" {
        text += &next_line();
    }
    let mut trailers = Vec::new();
    loop {
        let line = next_line();
        if line.is_empty() {
            return (text, trailers);
        }
        trailers.push(line.to_ascii_lowercase());
    }
}

#[test]
fn trailers_reach_a_client_that_accepts_them() {
    let sandbox = testkit::sandbox!();
    let mock = responding(WITH_TRAILERS);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..3 {
        client.send_post_with(CHAT, "TE: trailers\r\nconnection: TE\r\n", ASK);
        let (text, trailers) = read_with_trailers(&mut client);
        assert_eq!(text, "first");
        assert_eq!(trailers, ["x-sum: 42", "x-more: a, b"]);
    }
}

#[test]
fn response_with_trailers_stays_well_framed_for_other_clients() {
    let sandbox = testkit::sandbox!();
    let mock = responding(WITH_TRAILERS);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..3 {
        client.send_post(CHAT, ASK);
        let (text, trailers) = read_with_trailers(&mut client);
        assert_eq!(text, "first");
        assert!(trailers.is_empty() || trailers.len() == 2, "{trailers:?}");
    }
}

#[test]
fn response_to_head_has_a_length_and_no_body() {
    let sandbox = testkit::sandbox!();
    let mock = responding("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\nx-own: yes\r\n\r\n");
    let server = serve(&sandbox, &[&mock], &[("LLMLB_WORKERS", "1")]);
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send("HEAD /v1/files/1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let head = client.head();
        assert_eq!(head.status(), 200);
        assert_eq!(head.header("content-length").as_deref(), Some("1000"));
        assert_eq!(head.header("x-own").as_deref(), Some("yes"));
    }
    // A backend may wrongly send a body in response to HEAD. On a reused connection that body would
    // be read as the next response, so each of the five requests needs a connection of its own.
    let connections: HashSet<_> = asked(&mock)
        .iter()
        .map(|request| request.connection)
        .collect();
    assert_eq!(connections.len(), 5);
}

#[test]
fn chunked_response_to_head_has_no_body() {
    let sandbox = testkit::sandbox!();
    let mock = responding("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send("HEAD /v1/files/1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert_eq!(client.head().status(), 200);
    }
    assert_eq!(count(&mock), 5);
}

#[test]
fn status_without_a_body_is_forwarded_without_a_body() {
    for (answer, status) in [
        ("HTTP/1.1 204 No Content\r\nx-own: yes\r\n\r\n", 204),
        (
            "HTTP/1.1 304 Not Modified\r\netag: \"1\"\r\nx-own: yes\r\n\r\n",
            304,
        ),
        (
            "HTTP/1.1 304 Not Modified\r\ncontent-length: 1000\r\nx-own: yes\r\n\r\n",
            304,
        ),
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\nx-own: yes\r\n\r\n",
            200,
        ),
    ] {
        let sandbox = testkit::sandbox!();
        let mock = responding(answer);
        let server = serve(&sandbox, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        for _ in 0..5 {
            client.send_get("/v1/files/1");
            // The client expects no body for this status and reads the next head at once. If the
            // server sent a body, this read would fail.
            let head = client.head();
            assert_eq!(head.status(), status, "{answer}");
            assert_eq!(head.header("x-own").as_deref(), Some("yes"));
            assert_eq!(head.header("transfer-encoding"), None, "{answer}");
        }
    }
}

#[test]
fn body_of_a_204_or_304_is_not_read_as_the_next_response() {
    let sandbox = testkit::sandbox!();
    let evil = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    let length = evil.len();
    for status in ["204 No Content", "304 Not Modified"] {
        let mock = backend(move |_, stream| {
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
            let _ = stream.write_all(format!("{head}{evil}").as_bytes());
        });
        let server = serve(&sandbox, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        for _ in 0..10 {
            client.send_get("/v1/files/1");
            let head = client.head();
            assert!(head.line.ends_with(status), "{head:?}");
        }
    }
}

fn final_response(client: &mut Connection) -> (Head, String) {
    loop {
        let head = client.head();
        if head.status() >= 200 {
            let body = head.body(&mut client.reader).unwrap();
            return (head, String::from_utf8(body).unwrap());
        }
    }
}

#[test]
fn informational_responses_are_not_forwarded() {
    for before in [
        "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 X\r\n\r\n",
    ] {
        for at_once in [true, false] {
            let sandbox = testkit::sandbox!();
            let mock = backend(move |_, stream| {
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlast";
                if at_once {
                    let _ = stream.write_all(format!("{before}{answer}").as_bytes());
                } else {
                    let _ = stream.write_all(before.as_bytes());
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
            let server = serve(&sandbox, &[&mock], UNPROBED);
            let mut client = Connection::open(server.address);
            for _ in 0..5 {
                client.send_post(CHAT, ASK);
                let (head, text) = final_response(&mut client);
                assert_eq!((head.status(), text.as_str()), (200, "last"), "{before}");
                assert_eq!(head.header("link"), None);
            }
            assert_eq!(count(&mock), 5);
        }
    }
}

#[test]
fn endless_informational_responses_are_an_upstream_error() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let pieces = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        while stream.write_all(pieces.as_bytes()).is_ok() {}
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 502);
    assert_eq!(code(&answer), "upstream_error");
    server.until_in_flight(0);
}

#[test]
fn request_is_retried_when_the_backend_closes_after_an_informational_response() {
    let sandbox = testkit::sandbox!();
    let bad = backend(|_, stream| {
        send_and_close(stream, b"HTTP/1.1 103 Early Hints\r\n\r\n");
    });
    let good = backend(ok);
    let server = serve(&sandbox, &[&bad, &good], UNPROBED);
    testkit::backends::assert_failover(&server, || count(&bad), &good);
}

#[test]
fn response_that_ends_with_its_connection_is_complete() {
    for head in [
        "HTTP/1.1 200 OK",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 200 OK\r\nconnection: close",
    ] {
        let sandbox = testkit::sandbox!();
        let mock = backend(move |_, stream| {
            let body = "x".repeat(100_000);
            send_and_close(stream, format!("{head}\r\n\r\n{body}").as_bytes());
        });
        let server = serve(&sandbox, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        for _ in 0..5 {
            client.send_post(CHAT, ASK);
            let answer = client.answer();
            assert_eq!(answer.text().len(), 100_000, "{head}");
        }
    }
}

#[test]
fn status_line_without_a_reason_is_accepted() {
    let sandbox = testkit::sandbox!();
    for answer in [
        "HTTP/1.1 200\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 2 \t\r\n\r\n{}",
    ] {
        let mock = responding(answer);
        let server = serve(&sandbox, &[&mock], UNPROBED);
        assert_eq!(server.post(CHAT, ASK).text(), "{}", "{answer}");
    }
}

#[test]
fn chunk_extensions_and_leading_zeros_are_accepted() {
    let sandbox = testkit::sandbox!();
    let mock = responding(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
         0005;name=value\r\nfirst\r\n000A\r\n0123456789\r\n000;last\r\n\r\n",
    );
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..3 {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().text(), "first0123456789");
    }
}

#[test]
fn chunk_received_byte_by_byte_is_forwarded_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
            5\r\nfirst\r\na\r\n0123456789\r\n0\r\n\r\n";
        for byte in answer.as_bytes() {
            let _ = stream.write_all(&[*byte]);
        }
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..20 {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().text(), "first0123456789");
    }
}

#[test]
fn large_response_is_forwarded_unchanged() {
    let sandbox = testkit::sandbox!();
    let body: Vec<u8> = (0..=255).cycle().take(8 << 20).collect();
    let sent = body.clone();
    let mock = backend(move |request, stream| {
        if request.text().contains("chunks") {
            wire::begin_stream(stream);
            for piece in sent.chunks(100_000) {
                let _ = stream.write_all(format!("{:x}\r\n", piece.len()).as_bytes());
                let _ = stream.write_all(piece);
                let _ = stream.write_all(b"\r\n");
            }
            wire::end_stream(stream);
        } else {
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", sent.len());
            let _ = stream.write_all(head.as_bytes());
            let _ = stream.write_all(&sent);
        }
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for ask in [ASK, r#"{"model":"m","x":"chunks"}"#] {
        let answer = server.post(CHAT, ask);
        assert!(answer.body.is_ok_and(|received| received == body), "{ask}");
    }
}

#[test]
fn pipelined_requests_get_their_responses_in_order() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| wire::json(stream, 200, &request.text()));
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    let body = |number| format!(r#"{{"model":"m","number":{number}}}"#);
    let all: Vec<_> = (10..40)
        .map(|number| {
            let body = body(number);
            format!(
                "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            )
        })
        .collect();
    client.send(all.concat());
    for number in 10..40 {
        assert_eq!(client.answer().text(), body(number));
    }
    server.until_in_flight(0);
}

#[test]
fn connection_is_closed_after_the_response_when_the_client_asks_for_it() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post_with(CHAT, "connection: close\r\n", ASK);
    assert_eq!(client.answer().status(), 200);
    assert_eq!(client.reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn close_of_the_backend_connection_keeps_the_client_connection_open() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        send_and_close(
            stream,
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        );
        close(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send_post(CHAT, ASK);
        let answer = client.answer();
        assert_eq!(answer.text(), "{}");
        assert_eq!(answer.head.header("connection"), None);
    }
}
