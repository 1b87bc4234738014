//! API keys in WebSocket handshakes: a session needs a key that allows its model. (promise L11)

use std::io::Write;
use std::net::Shutdown;

use testkit::raw::{self, Raw};
use testkit::{Connection, LlmlbServer, Sandbox};

use crate::support::add;

/// Returns a backend that accepts every handshake and responds with the head of the request.
fn backend() -> Raw {
    raw::heads(|head, reader| {
        let response = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
                        Upgrade: websocket\r\nSec-WebSocket-Accept: x\r\n\
                        Sec-WebSocket-Protocol: realtime\r\n\r\n";
        let _ = reader.get_mut().write_all(response.as_bytes());
        let _ = write!(reader.get_mut(), "{head:?}");
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    })
}

/// Sends a handshake and returns the status, and what the backend sent.
fn open(server: &LlmlbServer, path: &str, fields: &str) -> (u16, String) {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{fields}\r\n"
    ));
    let head = client.head();
    if head.status() != 101 {
        let body = head.body(&mut client.reader).unwrap();
        return (head.status(), String::from_utf8_lossy(&body).into_owned());
    }
    let (bytes, is_closed) = client.read_to_end(testkit::DEADLINE);
    assert!(is_closed, "the backend closes the connection");
    (101, String::from_utf8_lossy(&bytes).into_owned())
}

fn serve(sandbox: &Sandbox, raw: &Raw) -> LlmlbServer {
    sandbox.serve(&format!("--backend {}", raw.url()))
}

#[test]
fn websocket_needs_a_key_that_allows_its_model() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice --models m");
    let raw = backend();
    let server = serve(&sandbox, &raw);
    let bearer = format!("authorization: Bearer {good}\r\n");
    let protocol = format!("Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.{good}\r\n");
    let path = "/v1/realtime?model=m";
    for fields in [&bearer, &protocol] {
        let (status, head) = open(&server, path, fields);
        assert_eq!(status, 101, "{fields}");
        assert!(head.contains("realtime"), "{head}");
        assert!(!head.contains(&good), "{head}");
    }
    let wrong = "Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.wrong\r\n";
    for (path, fields, expected) in [
        (path, "", 401),
        (path, wrong, 401),
        (path, &*format!("{protocol}{protocol}"), 401),
        ("/v1/realtime?model=other", &*bearer, 403),
        ("/v1/realtime", &*bearer, 403),
        // llmlb does not know this endpoint, so the messages of its WebSocket could name any model.
        // A key with a list of models must not open it.
        ("/v1/unknown?model=m", &*bearer, 403),
    ] {
        let (status, body) = open(&server, path, fields);
        assert_eq!(status, expected, "{path} {fields}: {body}");
    }
    // A key in the query must not authenticate a client, and must be removed from the target that
    // the backend gets.
    let (status, _) = open(&server, &format!("{path}&api_key={good}"), "");
    assert_eq!(status, 401);
    let (status, head) = open(&server, &format!("{path}&api_key={good}"), &bearer);
    assert_eq!(status, 101);
    assert!(!head.contains(&good), "{head}");
    assert!(!server.log().contains(&good));
}
