//! Answers of every kind that HTTP knows. (L5)

use std::collections::HashSet;
use std::io::{BufRead, Read, Write};
use testkit::{
    Connection, FakeLlm, Head,
    backends::{
        ASK, CHAT, UNPROBED, asked, backend, close, code, count, ok, send_and_close, serve,
    },
    wire,
};

/// A backend that answers these bytes.
fn answering(bytes: &'static str) -> FakeLlm {
    backend(move |_, stream| {
        let _ = stream.write_all(bytes.as_bytes());
    })
}

const WITH_TRAILERS: &str = "HTTP/1.1 200 OK\r\ntrailer: x-sum, x-more\r\n\
    transfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n0\r\nx-sum: 42\r\nx-more: a, b\r\n\r\n";

fn ask_with(more: &str) -> String {
    format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{more}content-type: application/json\r\n\
         content-length: {}\r\n\r\n{ASK}",
        ASK.len()
    )
}

/// Reads an answer in chunks, with what follows it.
fn with_trailers(client: &mut Connection) -> (String, Vec<String>) {
    assert_eq!(client.head().status(), 200);
    let mut lines = || {
        let mut line = String::new();
        client.reader.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    };
    let mut text = String::new();
    while lines() != "0" {
        text += &lines();
    }
    let mut trailers = Vec::new();
    loop {
        let line = lines();
        if line.is_empty() {
            return (text, trailers);
        }
        trailers.push(line.to_ascii_lowercase());
    }
}

#[test]
fn trailers_of_an_answer_reach_a_client_that_wants_them() {
    let place = testkit::sandbox!();
    let mock = answering(WITH_TRAILERS);
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..3 {
        client.send(ask_with("TE: trailers\r\nconnection: TE\r\n"));
        let (text, trailers) = with_trailers(&mut client);
        assert_eq!(text, "first");
        assert_eq!(trailers, ["x-sum: 42", "x-more: a, b"]);
    }
}

#[test]
fn trailers_do_not_confuse_a_client_that_does_not_want_them() {
    let place = testkit::sandbox!();
    let mock = answering(WITH_TRAILERS);
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..3 {
        client.send(ask_with(""));
        let (text, trailers) = with_trailers(&mut client);
        assert_eq!(text, "first");
        assert!(trailers.is_empty() || trailers.len() == 2, "{trailers:?}");
    }
}

#[test]
fn an_answer_to_head_has_a_length_and_no_body() {
    let place = testkit::sandbox!();
    let mock = answering("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\nx-own: yes\r\n\r\n");
    let server = serve(&place, &[&mock], &[("LLMLB_WORKERS", "1")]);
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send("HEAD /v1/files/1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let head = client.head();
        assert_eq!(head.status(), 200);
        assert_eq!(head.header("content-length").as_deref(), Some("1000"));
        assert_eq!(head.header("x-own").as_deref(), Some("yes"));
    }
    // A backend that sends the body all the same would answer the next request with it, so that the
    // connection is not used again.
    let connections: HashSet<_> = asked(&mock).iter().map(|one| one.connection).collect();
    assert_eq!(connections.len(), 5);
}

#[test]
fn an_answer_to_head_in_chunks_has_no_body_either() {
    let place = testkit::sandbox!();
    let mock = answering("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n");
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send("HEAD /v1/files/1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert_eq!(client.head().status(), 200);
    }
    assert_eq!(count(&mock), 5);
}

#[test]
fn answers_that_never_have_a_body_have_none() {
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
        let place = testkit::sandbox!();
        let mock = answering(answer);
        let server = serve(&place, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        for _ in 0..5 {
            client.send_get("/v1/files/1");
            // If a body came, it would be taken for the next answer.
            let head = client.head();
            assert_eq!(head.status(), status, "{answer}");
            assert_eq!(head.header("x-own").as_deref(), Some("yes"));
            assert_eq!(head.header("transfer-encoding"), None, "{answer}");
        }
    }
}

#[test]
fn a_body_where_none_may_be_is_not_taken_for_the_next_answer() {
    let place = testkit::sandbox!();
    let evil = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil";
    let length = evil.len();
    for status in ["204 No Content", "304 Not Modified"] {
        let mock = backend(move |_, stream| {
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
            let _ = stream.write_all(format!("{head}{evil}").as_bytes());
        });
        let server = serve(&place, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        for _ in 0..10 {
            client.send_get("/v1/files/1");
            let head = client.head();
            assert!(head.line.ends_with(status), "{head:?}");
        }
    }
}

/// Reads the final answer; those before it only inform.
fn final_answer(client: &mut Connection) -> (Head, String) {
    loop {
        let head = client.head();
        if head.status() >= 200 {
            let body = head.body(&mut client.reader).unwrap();
            return (head, String::from_utf8(body).unwrap());
        }
    }
}

#[test]
fn what_a_backend_says_beforehand_does_not_confuse_anyone() {
    for before in [
        "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 X\r\n\r\n",
    ] {
        for at_once in [true, false] {
            let place = testkit::sandbox!();
            let mock = backend(move |_, stream| {
                let answer = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nlast";
                if at_once {
                    let _ = stream.write_all(format!("{before}{answer}").as_bytes());
                } else {
                    let _ = stream.write_all(before.as_bytes());
                    let _ = stream.write_all(answer.as_bytes());
                }
            });
            let server = serve(&place, &[&mock], UNPROBED);
            let mut client = Connection::open(server.address);
            for _ in 0..5 {
                client.send_post(CHAT, ASK);
                let (head, text) = final_answer(&mut client);
                assert_eq!((head.status(), text.as_str()), (200, "last"), "{before}");
                assert_eq!(head.header("link"), None);
            }
            assert_eq!(count(&mock), 5);
        }
    }
}

#[test]
fn a_backend_that_never_stops_informing_has_not_answered() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let pieces = "HTTP/1.1 100 Continue\r\n\r\n".repeat(1000);
        while stream.write_all(pieces.as_bytes()).is_ok() {}
    });
    let server = serve(&place, &[&mock], UNPROBED);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 502);
    assert_eq!(code(&answer), "upstream_error");
    server.until_in_flight(0);
}

#[test]
fn a_backend_that_only_informs_and_hangs_up_has_not_answered() {
    let place = testkit::sandbox!();
    let bad = backend(|_, stream| {
        send_and_close(stream, b"HTTP/1.1 103 Early Hints\r\n\r\n");
    });
    let good = backend(ok);
    let server = serve(&place, &[&bad, &good], UNPROBED);
    testkit::backends::nobody_notices(&server, || count(&bad), &good);
}

#[test]
fn an_answer_that_ends_with_its_connection_is_whole() {
    for head in [
        "HTTP/1.1 200 OK",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 200 OK\r\nconnection: close",
    ] {
        let place = testkit::sandbox!();
        let mock = backend(move |_, stream| {
            let body = "x".repeat(100_000);
            send_and_close(stream, format!("{head}\r\n\r\n{body}").as_bytes());
        });
        let server = serve(&place, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        for _ in 0..5 {
            client.send_post(CHAT, ASK);
            let answer = client.answer();
            assert_eq!(answer.text().len(), 100_000, "{head}");
        }
    }
}

#[test]
fn a_status_without_words_is_one() {
    let place = testkit::sandbox!();
    for answer in [
        "HTTP/1.1 200\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 \r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\nContent-Length:2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 2 \t\r\n\r\n{}",
    ] {
        let mock = answering(answer);
        let server = serve(&place, &[&mock], UNPROBED);
        assert_eq!(server.post(CHAT, ASK).text(), "{}", "{answer}");
    }
}

#[test]
fn chunks_with_names_and_zeros_are_chunks() {
    let place = testkit::sandbox!();
    let mock = answering(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n\
         0005;name=value\r\nfirst\r\n000A\r\n0123456789\r\n000;last\r\n\r\n",
    );
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..3 {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().text(), "first0123456789");
    }
}

#[test]
fn a_chunk_that_comes_in_pieces_is_passed_on_whole() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
            5\r\nfirst\r\na\r\n0123456789\r\n0\r\n\r\n";
        for byte in answer.as_bytes() {
            let _ = stream.write_all(&[*byte]);
        }
    });
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..20 {
        client.send_post(CHAT, ASK);
        assert_eq!(client.answer().text(), "first0123456789");
    }
}

#[test]
fn a_large_answer_arrives_byte_by_byte() {
    let place = testkit::sandbox!();
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
    let server = serve(&place, &[&mock], UNPROBED);
    for ask in [ASK, r#"{"model":"m","x":"chunks"}"#] {
        let answer = server.post(CHAT, ask);
        assert!(answer.body.is_ok_and(|came| came == body), "{ask}");
    }
}

#[test]
fn requests_that_do_not_wait_for_answers_are_answered_in_order() {
    let place = testkit::sandbox!();
    let mock = backend(|request, stream| wire::json(stream, 200, &request.text()));
    let server = serve(&place, &[&mock], UNPROBED);
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
fn a_client_that_wants_no_further_answer_gets_none() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send(ask_with("connection: close\r\n"));
    assert_eq!(client.answer().status(), 200);
    assert_eq!(client.reader.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_backend_that_closes_within_a_keep_alive_answer_does_not_end_the_clients_connection() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| {
        send_and_close(
            stream,
            b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
        );
        close(stream);
    });
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for _ in 0..5 {
        client.send_post(CHAT, ASK);
        let answer = client.answer();
        assert_eq!(answer.text(), "{}");
        assert_eq!(answer.head.header("connection"), None);
    }
}
