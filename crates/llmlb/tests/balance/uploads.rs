//! Request bodies in chunks, with a length, streamed or buffered. (promise L5)

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::channel;
use testkit::{
    Connection, DEADLINE,
    backends::{ASK, CHAT, UNPROBED, asked, backend, backend_of, code, count, ok, serve},
    raw, read_chunk, wire,
};

fn in_chunks(body: &[u8], sizes: &[usize]) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), body);
    for size in sizes.iter().cycle() {
        let (chunk, after) = rest.split_at(rest.len().min(*size));
        if chunk.is_empty() {
            break;
        }
        out.extend(format!("{:x}\r\n", chunk.len()).bytes());
        out.extend(chunk);
        out.extend(b"\r\n");
        rest = after;
    }
    out.extend(b"0\r\n\r\n");
    out
}

fn head(path: &str, kind: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         transfer-encoding: chunked\r\n\r\n"
    )
}

#[test]
fn chunked_upload_is_forwarded_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let json = format!(r#"{{"model":"m","x":"{}"}}"#, "é".repeat(70_000)).into_bytes();
    let other: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let mut client = Connection::open(server.address);
    let mut sent = Vec::new();
    for sizes in [&[1, 2, 3][..], &[4096], &[16384, 1], &[1 << 20]] {
        for (kind, body) in [
            ("application/json", &json),
            ("application/octet-stream", &other),
        ] {
            client.send(head("/v1/whatever", kind));
            client.send(in_chunks(body, sizes));
            assert_eq!(client.answer().status(), 200, "{kind}");
            sent.push(body.clone());
        }
    }
    let arrived: Vec<_> = asked(&mock)
        .iter()
        .map(|request| request.body.clone())
        .collect();
    assert!(arrived == sent);
}

#[test]
fn chunk_extensions_and_trailers_are_not_part_of_the_body() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for kind in ["application/json", "application/octet-stream"] {
        client.send(head("/v1/whatever", kind));
        client.send("0000D;name=value;other=\"x\"\r\n");
        client.send(ASK);
        client.send("\r\n0;last\r\nx-trailer: 1\r\nhost: evil\r\n\r\n");
        assert_eq!(client.answer().status(), 200, "{kind}");
    }
    for request in asked(&mock) {
        assert_eq!(request.text(), ASK);
        assert_eq!(request.head.header("host"), Some(mock.address.to_string()));
    }
}

#[test]
fn credentials_and_framing_in_request_trailers_are_not_forwarded() {
    let sandbox = testkit::sandbox!();
    let (sender, arrived) = channel();
    let sender = Mutex::new(sender);
    let raw = raw::heads(move |_, reader| {
        let mut all = Vec::new();
        while !all.ends_with(b"\r\n\r\n") {
            if std::io::BufRead::read_until(reader, b'\n', &mut all).unwrap_or(0) == 0 {
                return;
            }
        }
        let all = String::from_utf8(all).unwrap().to_ascii_lowercase();
        sender.lock().unwrap().send(all).unwrap();
        wire::json(reader.get_mut(), 200, "{}");
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(head("/v1/whatever", "application/octet-stream"));
    client.send(
        "5\r\nhello\r\n0\r\nauthorization: Bearer sk-client\r\nx-api-key: sk-client\r\n\
         content-length: 7\r\ntransfer-encoding: chunked\r\nhost: evil\r\nconnection: x\r\n\r\n",
    );
    assert_eq!(client.answer().status(), 200);
    let all = arrived.recv_timeout(DEADLINE).unwrap();
    for text in [
        "sk-client",
        "content-length",
        "transfer-encoding",
        "evil",
        "connection",
    ] {
        assert!(!all.contains(text), "{text}: {all}");
    }
}

#[test]
fn model_in_a_json_body_is_used_for_every_method() {
    let sandbox = testkit::sandbox!();
    let (first, mock) = (backend(ok), backend_of(&["second"], ok));
    let server = serve(&sandbox, &[&first, &mock], UNPROBED);
    let json = r#"{"model":"second"}"#;
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let mut client = Connection::open(server.address);
        client.send(format!(
            "{method} /v1/whatever HTTP/1.1\r\nhost: localhost\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
            json.len()
        ));
        assert_eq!(client.answer().status(), 200, "{method}");
    }
    assert_eq!((count(&first), count(&mock)), (0, 4));
    // A PUT body without a content type is streamed unread, so its model is ignored and the request
    // goes to the first backend.
    let mut client = Connection::open(server.address);
    client
        .send("PUT /v1/whatever HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n");
    client.send(in_chunks(json.as_bytes(), &[5]));
    assert_eq!(client.answer().status(), 200);
    let asked = asked(&first);
    assert_eq!(
        asked[0].head.header("transfer-encoding").as_deref(),
        Some("chunked")
    );
    assert_eq!(asked[0].text(), json);
}

#[test]
fn empty_upload_is_forwarded() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send(head("/v1/whatever", "application/octet-stream"));
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status(), 200);
    client.send("POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n");
    assert_eq!(client.answer().status(), 200);
    client.send("POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert_eq!(client.answer().status(), 200);
    assert!(asked(&mock).iter().all(|request| request.body.is_empty()));
    assert_eq!(count(&mock), 3);
}

#[test]
fn body_without_a_model_is_streamed_as_it_arrives() {
    let sandbox = testkit::sandbox!();
    let (sender, arrived) = channel();
    let sender = Mutex::new(sender);
    let raw = raw::heads(move |head, reader| {
        assert_eq!(head.header("transfer-encoding").as_deref(), Some("chunked"));
        while let Some(Some(chunk)) = read_chunk(reader) {
            sender.lock().unwrap().send(chunk).unwrap();
        }
        wire::json(reader.get_mut(), 200, "{}");
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(head("/v1/whatever", "application/octet-stream"));
    for piece in ["first", "second"] {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
        // The backend must receive each piece before the client sends the next one.
        let mut received = Vec::new();
        while received.len() < piece.len() {
            received.extend(arrived.recv_timeout(DEADLINE).unwrap());
        }
        assert_eq!(received, piece.as_bytes());
    }
    client.send("0\r\n\r\n");
    assert_eq!(client.answer().status(), 200);
}

#[test]
fn streamed_body_may_exceed_max_body() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_MAX_BODY", "64KiB")]);
    let body = vec![7; 5 << 20];
    let mut client = Connection::open(server.address);
    client.send(head("/v1/whatever", "application/octet-stream"));
    client.send(in_chunks(&body, &[65536]));
    assert_eq!(client.answer().status(), 200);
    assert!(asked(&mock)[0].body == body);
}

/// Returns the head of a request that expects `100 Continue`.
fn expecting(path: &str, kind: &str, length: usize) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         expect: 100-continue\r\ncontent-length: {length}\r\n\r\n"
    )
}

#[test]
fn client_that_expects_100_continue_gets_it() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    for kind in ["application/json", "application/octet-stream"] {
        client.send(expecting(CHAT, kind, ASK.len()));
        assert_eq!(client.head().status(), 100, "{kind}");
        client.send(ASK);
        assert_eq!(client.answer().status(), 200, "{kind}");
    }
    for request in asked(&mock) {
        assert_eq!(request.text(), ASK);
    }
}

#[test]
fn client_that_expects_100_continue_may_be_rejected_before_it_sends() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_MAX_BODY", "1KiB")]);
    for (path, length, status) in [(CHAT, 5000, 413), ("/elsewhere", 10, 404)] {
        let mut client = Connection::open(server.address);
        client.send(expecting(path, "application/json", length));
        let answer = client.answer();
        assert_eq!(answer.status(), status, "{path}");
        // After the rejection, the client's next bytes could be the body or a new request. The
        // server must therefore close the connection.
        assert!(client.is_closed(), "{path}");
    }
    assert_eq!(count(&mock), 0);
}

#[test]
fn early_rejection_by_the_backend_reaches_the_client() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        let answer = "HTTP/1.1 413 Too Large\r\nconnection: close\r\ncontent-length: 3\r\n\r\nbig";
        let _ = reader.get_mut().write_all(answer.as_bytes());
        let _ = reader.get_mut().shutdown(std::net::Shutdown::Write);
        let _ = reader.read_to_end(&mut Vec::new());
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let large = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(8 << 20));
    let answer = server.post(CHAT, &large);
    assert_eq!((answer.status(), answer.text().as_str()), (413, "big"));
    // The rejection must also reach a client whose streamed upload is not complete.
    let mut client = Connection::open(server.address);
    client.send(head("/v1/whatever", "application/octet-stream"));
    client.send("5\r\nhello\r\n");
    let answer = client.answer();
    assert_eq!((answer.status(), answer.text().as_str()), (413, "big"));
}

#[test]
fn upload_with_invalid_chunks_is_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for rest in [
        "zz\r\n",
        "5\r\nabcdefgh\r\n",
        "-5\r\nabcde\r\n",
        "fffffffffffffffff\r\n",
    ] {
        let mut client = Connection::open(server.address);
        client.send(head(CHAT, "application/json"));
        client.send(format!("5\r\n{{\"mod\r\n{rest}"));
        let answer = client.answer();
        assert_eq!(answer.status(), 400, "{rest:?}");
        assert_eq!(code(&answer), "incomplete_body", "{rest:?}");
    }
    assert_eq!(count(&mock), 0);
    server.until_in_flight(0);
}
