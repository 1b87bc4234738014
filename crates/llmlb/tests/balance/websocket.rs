//! Upgraded connections: WebSockets. (promise L5)

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use testkit::{
    Connection, Head, LlmlbServer, Sandbox,
    raw::{self, Raw},
    wire,
};

const HANDSHAKE: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: localhost\r\n\
    Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: realtime\r\n\
    authorization: Bearer sk-client\r\n\r\n";

const HANDSHAKE_RESPONSE: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
    Sec-WebSocket-Protocol: realtime\r\n\r\n";

/// Returns a backend that accepts the handshake and passes the connection to the handler.
fn accepting(handle: impl Fn(&mut BufReader<TcpStream>) + Send + Sync + 'static) -> Raw {
    raw::heads(move |head, reader| {
        assert_handshake(head);
        reader
            .get_mut()
            .write_all(HANDSHAKE_RESPONSE.as_bytes())
            .unwrap();
        handle(reader);
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    })
}

/// Asserts that a backend received the upgrade fields of the handshake without the client's
/// credentials.
fn assert_handshake(head: &Head) {
    assert_eq!(head.line, "GET /v1/realtime?model=m HTTP/1.1");
    let header = |name| head.header(name).unwrap_or_default().to_ascii_lowercase();
    assert!(header("connection").contains("upgrade"), "{head:?}");
    assert_eq!(header("upgrade"), "websocket");
    assert_eq!(header("sec-websocket-version"), "13");
    assert_eq!(header("sec-websocket-protocol"), "realtime");
    let key = head.header("sec-websocket-key");
    assert_eq!(key.as_deref(), Some("dGhlIHNhbXBsZSBub25jZQ=="));
    assert_eq!(head.header("authorization"), None);
}

fn echo(reader: &mut BufReader<TcpStream>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = reader.read(&mut buffer) {
        if reader.get_mut().write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}

fn serve(sandbox: &Sandbox, raw: &Raw) -> LlmlbServer {
    sandbox.serve(&format!("--backend {}", raw.url()))
}

/// Returns a client connection on which the WebSocket handshake has succeeded.
fn upgraded(server: &LlmlbServer) -> Connection {
    let mut client = Connection::open(server.address);
    client.send(HANDSHAKE);
    let head = client.head();
    assert_eq!(head.status(), 101, "{head:?}");
    let header = |name| head.header(name).unwrap_or_default();
    assert_eq!(header("upgrade").to_ascii_lowercase(), "websocket");
    assert!(
        header("connection")
            .to_ascii_lowercase()
            .contains("upgrade")
    );
    assert_eq!(
        header("sec-websocket-accept"),
        "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    );
    assert_eq!(header("sec-websocket-protocol"), "realtime");
    client
}

#[test]
fn bytes_pass_in_both_directions_after_the_handshake() {
    let sandbox = testkit::sandbox!();
    let raw = accepting(echo);
    let server = serve(&sandbox, &raw);
    let mut client = upgraded(&server);
    for message in ["one", "two", "three"] {
        client.send(message);
        let mut echoed = vec![0; message.len()];
        client.reader.read_exact(&mut echoed).unwrap();
        assert_eq!(echoed, message.as_bytes());
    }
    server.until_in_flight(1);
    assert_eq!(server.status()["backends"][0]["in_flight"], 1);
    drop(client);
    server.until_in_flight(0);
}

#[test]
fn bytes_sent_together_with_the_handshake_are_forwarded() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|head, reader| {
        assert_handshake(head);
        let first = format!("{HANDSHAKE_RESPONSE}from the backend");
        reader.get_mut().write_all(first.as_bytes()).unwrap();
        echo(reader);
    });
    let server = serve(&sandbox, &raw);
    let mut client = Connection::open(server.address);
    client.send(format!("{HANDSHAKE}from the client"));
    assert_eq!(client.head().status(), 101);
    let mut both = vec![0; "from the backendfrom the client".len()];
    client.reader.read_exact(&mut both).unwrap();
    assert_eq!(both, b"from the backendfrom the client");
}

#[test]
fn large_data_passes_in_both_directions_at_once() {
    let sandbox = testkit::sandbox!();
    let raw = accepting(echo);
    let server = serve(&sandbox, &raw);
    let mut client = upgraded(&server);
    let sent: Vec<u8> = (0..=250).cycle().take(8 << 20).collect();
    let mut writer = client.reader.get_ref().try_clone().unwrap();
    let mut echoed = vec![0; sent.len()];
    thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent).unwrap());
        client.reader.read_exact(&mut echoed).unwrap();
    });
    assert!(echoed == sent);
}

#[test]
fn client_that_has_shut_down_its_sending_side_receives_the_rest() {
    let sandbox = testkit::sandbox!();
    let raw = accepting(|reader| {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        let reply = format!("received {}", all.len());
        reader.get_mut().write_all(reply.as_bytes()).unwrap();
    });
    let server = serve(&sandbox, &raw);
    let mut client = upgraded(&server);
    client.send("goodbye");
    client.reader.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut rest = String::new();
    client.reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "received 7");
    server.until_in_flight(0);
}

#[test]
fn backend_that_has_shut_down_its_sending_side_receives_the_rest() {
    let sandbox = testkit::sandbox!();
    let (sender, received) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let raw = accepting(move |reader| {
        reader.get_mut().write_all(b"goodbye").unwrap();
        reader.get_mut().shutdown(Shutdown::Write).unwrap();
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        sender.lock().unwrap().send(all).unwrap();
    });
    let server = serve(&sandbox, &raw);
    let mut client = upgraded(&server);
    let mut rest = String::new();
    client.reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "goodbye");
    client.send("the rest");
    drop(client);
    assert_eq!(
        received.recv_timeout(testkit::DEADLINE).unwrap(),
        "the rest"
    );
    server.until_in_flight(0);
}

#[test]
fn backend_that_reads_late_receives_all_bytes_of_a_closed_websocket() {
    let sandbox = testkit::sandbox!();
    let (ended, wait) = std::sync::mpsc::channel();
    let (sender, read) = std::sync::mpsc::channel();
    let channels = std::sync::Mutex::new((wait, sender));
    let raw = accepting(move |reader| {
        reader.get_mut().shutdown(Shutdown::Write).unwrap();
        let channels = channels.lock().unwrap();
        channels.0.recv_timeout(testkit::DEADLINE).unwrap();
        let mut all = Vec::new();
        let end = reader.read_to_end(&mut all);
        channels.1.send(end.map(|_| all.len())).unwrap();
    });
    let server = serve(&sandbox, &raw);
    let mut client = upgraded(&server);
    let mut rest = Vec::new();
    client.reader.read_to_end(&mut rest).unwrap();
    // The bytes exceed the backend's socket buffer, so the server must hold the rest after the
    // client has disconnected, until the backend reads.
    let sent = vec![b'x'; 400 << 10];
    client.send(&sent);
    drop(client);
    server.until_in_flight(0);
    ended.send(()).unwrap();
    let length = read.recv_timeout(testkit::DEADLINE).unwrap();
    assert_eq!(length.unwrap(), sent.len());
}

#[test]
fn backend_reset_closes_the_client_connection() {
    let sandbox = testkit::sandbox!();
    let raw = accepting(|reader| {
        let _ = reader.read(&mut [0]);
        raw::reset(reader.get_ref());
    });
    let server = serve(&sandbox, &raw);
    let mut client = upgraded(&server);
    client.send("x");
    assert!(client.is_closed());
    server.until_in_flight(0);
}

#[test]
fn rejected_handshake_is_forwarded_as_a_response() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        let answer = "HTTP/1.1 403 Forbidden\r\nx-own: yes\r\ncontent-length: 2\r\n\r\nno";
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    });
    let server = serve(&sandbox, &raw);
    let mut client = Connection::open(server.address);
    for _ in 0..2 {
        client.send(HANDSHAKE);
        let answer = client.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (403, "no"));
        assert_eq!(answer.head.header("x-own").as_deref(), Some("yes"));
    }
    server.until_in_flight(0);
}

#[test]
fn unrequested_upgrade_by_the_backend_is_a_502() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        reader
            .get_mut()
            .write_all(HANDSHAKE_RESPONSE.as_bytes())
            .unwrap();
    });
    let server = serve(&sandbox, &raw);
    let answer = server.get("/v1/realtime");
    assert_eq!(answer.status(), 502);
    server.until_in_flight(0);
}

#[test]
fn upgrade_to_another_protocol_is_not_forwarded() {
    // A client that upgrades a backend connection to HTTP/2 could bypass all checks of its requests.
    let sandbox = testkit::sandbox!();
    for protocol in ["h2c", "HTTP/2.0", "websocket, h2c", "tls/1.0", "anything"] {
        let raw = raw::heads(|head, reader| {
            let answer = if head.header("upgrade").is_some() {
                HANDSHAKE_RESPONSE
            } else {
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
            };
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        });
        let server = serve(&sandbox, &raw);
        let mut client = Connection::open(server.address);
        client.send(format!(
            "GET /v1/files HTTP/1.1\r\nhost: localhost\r\nupgrade: {protocol}\r\n\
             connection: Upgrade, HTTP2-Settings\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
        ));
        let status = client.head().status();
        assert_ne!(status, 101, "{protocol}");
    }
}

#[test]
fn private_server_accepts_websockets_only_from_pages_of_this_machine() {
    let sandbox = testkit::sandbox!();
    let raw = accepting(echo);
    let private = serve(&sandbox, &raw);
    let public = sandbox.serve(&format!("--backend {} --allow-public", raw.url()));
    for (fields, expected) in [
        ("", 101),
        ("origin: http://localhost:3000\r\n", 101),
        ("origin: https://127.0.0.1\r\n", 101),
        ("origin: http://192.168.1.7\r\n", 403),
        ("origin: http://[::1]:80\r\n", 101),
        // Browsers send the origin `null` for sandboxed frames, which any web page can create.
        ("origin: null\r\n", 403),
        ("origin: null\r\nsec-fetch-site: cross-site\r\n", 403),
        ("origin: https://evil.example\r\n", 403),
        ("origin: http://203.0.113.7\r\n", 403),
        ("origin: http://[2001:db8::7]\r\n", 403),
        ("origin: chrome-extension://abc\r\n", 403),
        ("origin: file://\r\n", 403),
        ("origin: evil\r\n", 403),
        ("origin: \u{e9}\r\n", 403),
        ("origin:\r\n", 403),
        ("origin: http://localhost\r\norigin: null\r\n", 403),
    ] {
        for (server, expected) in [(&private, expected), (&public, 101)] {
            let mut client = Connection::open(server.address);
            client.send(HANDSHAKE.replace(
                "host: localhost\r\n",
                &format!("host: localhost\r\n{fields}"),
            ));
            let head = client.head();
            assert_eq!(head.status(), expected, "{fields:?}: {head:?}");
        }
    }
}

#[test]
fn extensions_are_removed_from_the_handshake_in_both_directions() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|head, reader| {
        assert_handshake(head);
        assert_eq!(head.header("sec-websocket-extensions"), None);
        let fields = "Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
        let response = HANDSHAKE_RESPONSE.replace("\r\n\r\n", &format!("\r\n{fields}"));
        reader.get_mut().write_all(response.as_bytes()).unwrap();
        echo(reader);
    });
    let server = serve(&sandbox, &raw);
    let mut client = Connection::open(server.address);
    let fields = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n\r\n";
    client.send(HANDSHAKE.replace("\r\n\r\n", &format!("\r\n{fields}")));
    let head = client.head();
    assert_eq!(head.status(), 101);
    assert_eq!(head.header("sec-websocket-extensions"), None, "{head:?}");
}

/// Handshake of Codex, which names no model.
fn codex_handshake() -> String {
    HANDSHAKE
        .replace("/v1/realtime?model=m", "/v1/responses")
        .replace("Sec-WebSocket-Protocol: realtime\r\n", "")
}

/// Returns a backend that responds to handshakes on `/v1/responses` with this head, and to a POST with `{}`. With
/// 101 it echoes the bytes of the WebSocket.
fn responses_backend(handshake: &'static str) -> (Raw, Arc<AtomicUsize>) {
    let handshakes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&handshakes);
    let raw = raw::heads(move |head, reader| {
        if head.line.starts_with("POST /v1/responses ") {
            let length = head.header("content-length").unwrap();
            reader
                .read_exact(&mut vec![0; length.parse().unwrap()])
                .unwrap();
            wire::json(reader.get_mut(), 200, "{}");
            return;
        }
        assert_eq!(head.line, "GET /v1/responses HTTP/1.1");
        count.fetch_add(1, Ordering::SeqCst);
        reader.get_mut().write_all(handshake.as_bytes()).unwrap();
        if handshake.contains(" 101 ") {
            echo(reader);
        }
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    });
    (raw, handshakes)
}

const NOT_FOUND: &str = "HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}";

/// Sends a handshake on `/v1/responses`, asserts that it is answered 426, and sends the request over HTTP, as
/// Codex does.
fn assert_fallback(server: &LlmlbServer) {
    let mut client = Connection::open(server.address);
    client.send(codex_handshake());
    let answer = client.answer();
    assert_eq!(answer.status(), 426, "{answer:?}");
    let upgrade = answer.head.header("upgrade");
    assert_eq!(upgrade.as_deref(), Some("websocket"));
    let error = &answer.json()["error"];
    assert_eq!(error["code"], "websocket_not_supported");
    assert_eq!(error["type"], "invalid_request_error");
    client.send_post("/v1/responses", r#"{"model":"m","input":"Hi"}"#);
    assert_eq!(client.answer().status(), 200);
}

fn assert_tunnel(server: &LlmlbServer) {
    let mut client = Connection::open(server.address);
    client.send(codex_handshake());
    assert_eq!(client.head().status(), 101);
    client.send("hello");
    let mut echoed = [0; 5];
    client.reader.read_exact(&mut echoed).unwrap();
    assert_eq!(&echoed, b"hello");
}

#[test]
fn websocket_on_responses_is_answered_426_and_the_client_falls_back_to_http() {
    let sandbox = testkit::sandbox!();
    let (raw, handshakes) = responses_backend(HANDSHAKE_RESPONSE);
    let server = serve(&sandbox, &raw);
    assert_fallback(&server);
    assert_eq!(handshakes.load(Ordering::SeqCst), 0);
    server.until_in_flight(0);
}

/// Starts a server with these backends and, for each, further lines of its configuration.
fn serve_backends(sandbox: &Sandbox, backends: &[(&Raw, &str)]) -> LlmlbServer {
    let backends = backends.iter().enumerate().map(|(index, (raw, lines))| {
        let url = raw.url();
        format!("[[backend]]\nname = \"b{index}\"\nurl = \"{url}\"\n{lines}\n")
    });
    testkit::backends::serve_file(sandbox, &backends.collect::<String>())
}

#[test]
fn websocket_on_responses_goes_to_a_backend_that_accepts_websockets() {
    let sandbox = testkit::sandbox!();
    let (other, others) = responses_backend(NOT_FOUND);
    let (accepting, accepted) = responses_backend(HANDSHAKE_RESPONSE);
    let server = serve_backends(&sandbox, &[(&other, ""), (&accepting, "websocket = true")]);
    for _ in 0..4 {
        assert_tunnel(&server);
    }
    assert_eq!(accepted.load(Ordering::SeqCst), 4);
    assert_eq!(others.load(Ordering::SeqCst), 0);
}

#[test]
fn websocket_that_the_backend_rejects_is_answered_426() {
    for rejection in [
        NOT_FOUND,
        "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 426 Upgrade Required\r\ncontent-length: 2\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ] {
        let sandbox = testkit::sandbox!();
        let (raw, handshakes) = responses_backend(rejection);
        let server = serve_backends(&sandbox, &[(&raw, "websocket = true")]);
        assert_fallback(&server);
        assert_fallback(&server);
        // The rejection must be remembered: the backend gets no second handshake for this endpoint.
        assert_eq!(handshakes.load(Ordering::SeqCst), 1, "{rejection}");
        server.until_in_flight(0);
    }
}

#[test]
fn other_errors_of_a_handshake_are_forwarded() {
    let sandbox = testkit::sandbox!();
    let unavailable =
        "HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-length: 2\r\n\r\n{}";
    let (raw, _) = responses_backend(unavailable);
    let server = serve_backends(&sandbox, &[(&raw, "websocket = true")]);
    let mut client = Connection::open(server.address);
    client.send(codex_handshake());
    let answer = client.answer();
    assert_eq!(answer.status(), 429);
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("3"));
}

/// While the backend that accepts WebSockets is down, a handshake is sent to another backend. That
/// one is remembered if it accepts handshakes too.
#[test]
fn websocket_is_tried_at_another_backend_while_the_accepting_one_is_down() {
    for (handshake, is_accepted) in [(HANDSHAKE_RESPONSE, true), (NOT_FOUND, false)] {
        let sandbox = testkit::sandbox!();
        let (down, _) = responses_backend(HANDSHAKE_RESPONSE);
        let (other, others) = responses_backend(handshake);
        let lines = "websocket = true\nmodels = [\"m\"]";
        let server = serve_backends(&sandbox, &[(&down, lines), (&other, "models = [\"m\"]")]);
        drop(down);
        let is_down = || server.backend_status("b0").unwrap()["up"] == false;
        testkit::until("the first backend is down", || {
            server.post("/v1/responses", r#"{"model":"m","input":"Hi"}"#);
            is_down()
        });
        for count in 1..=2 {
            if is_accepted {
                assert_tunnel(&server);
                assert_eq!(others.load(Ordering::SeqCst), count);
            } else {
                assert_fallback(&server);
            }
        }
        server.until_in_flight(0);
    }
}
