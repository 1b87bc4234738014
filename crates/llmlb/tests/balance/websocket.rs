//! Connections that turn into something else, such as WebSockets. (L5)

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;
use testkit::{
    Connection, Head, LlmlbServer, Sandbox,
    raw::{self, Raw},
};

const HELLO: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: localhost\r\n\
    Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: realtime\r\n\
    authorization: Bearer sk-client\r\n\r\n";

const WELCOME: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\
    Upgrade: websocket\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\
    Sec-WebSocket-Protocol: realtime\r\n\r\n";

/// A backend that agrees, and then goes on as told.
fn agreeing(go_on: impl Fn(&mut BufReader<TcpStream>) + Send + Sync + 'static) -> Raw {
    raw::heads(move |head, reader| {
        assert_handshake(head);
        reader.get_mut().write_all(WELCOME.as_bytes()).unwrap();
        go_on(reader);
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    })
}

/// The whole handshake arrived, and the client's credentials did not.
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

fn serve(place: &Sandbox, raw: &Raw) -> LlmlbServer {
    place.serve(&format!("--backend {}", raw.url()))
}

/// A client that has shaken hands.
fn upgraded(server: &LlmlbServer) -> Connection {
    let mut client = Connection::open(server.address);
    client.send(HELLO);
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
fn after_the_handshake_bytes_pass_both_ways_as_they_come() {
    let place = testkit::sandbox!();
    let raw = agreeing(echo);
    let server = serve(&place, &raw);
    let mut client = upgraded(&server);
    for message in ["one", "two", "three"] {
        client.send(message);
        let mut back = vec![0; message.len()];
        client.reader.read_exact(&mut back).unwrap();
        assert_eq!(back, message.as_bytes());
    }
    server.until_in_flight(1);
    assert_eq!(server.status()["backends"][0]["in_flight"], 1);
    drop(client);
    server.until_in_flight(0);
}

#[test]
fn what_either_side_says_with_the_handshake_is_not_lost() {
    let place = testkit::sandbox!();
    let raw = raw::heads(|head, reader| {
        assert_handshake(head);
        let first = format!("{WELCOME}from the backend");
        reader.get_mut().write_all(first.as_bytes()).unwrap();
        echo(reader);
    });
    let server = serve(&place, &raw);
    let mut client = Connection::open(server.address);
    client.send(format!("{HELLO}from the client"));
    assert_eq!(client.head().status(), 101);
    let mut both = vec![0; "from the backendfrom the client".len()];
    client.reader.read_exact(&mut both).unwrap();
    assert_eq!(both, b"from the backendfrom the client");
}

#[test]
fn a_large_amount_passes_both_ways_at_once() {
    let place = testkit::sandbox!();
    let raw = agreeing(echo);
    let server = serve(&place, &raw);
    let mut client = upgraded(&server);
    let sent: Vec<u8> = (0..=250).cycle().take(8 << 20).collect();
    let mut writer = client.reader.get_ref().try_clone().unwrap();
    let mut back = vec![0; sent.len()];
    thread::scope(|scope| {
        scope.spawn(|| writer.write_all(&sent).unwrap());
        client.reader.read_exact(&mut back).unwrap();
    });
    assert!(back == sent);
}

#[test]
fn a_client_that_has_no_more_to_say_still_hears_the_rest() {
    let place = testkit::sandbox!();
    let raw = agreeing(|reader| {
        let mut all = Vec::new();
        reader.read_to_end(&mut all).unwrap();
        let words = format!("heard {}", all.len());
        reader.get_mut().write_all(words.as_bytes()).unwrap();
    });
    let server = serve(&place, &raw);
    let mut client = upgraded(&server);
    client.send("goodbye");
    client.reader.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut rest = String::new();
    client.reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "heard 7");
    server.until_in_flight(0);
}

#[test]
fn a_backend_that_has_no_more_to_say_still_hears_the_rest() {
    let place = testkit::sandbox!();
    let (sender, heard) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let raw = agreeing(move |reader| {
        reader.get_mut().write_all(b"goodbye").unwrap();
        reader.get_mut().shutdown(Shutdown::Write).unwrap();
        let mut all = String::new();
        reader.read_to_string(&mut all).unwrap();
        sender.lock().unwrap().send(all).unwrap();
    });
    let server = serve(&place, &raw);
    let mut client = upgraded(&server);
    let mut rest = String::new();
    client.reader.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "goodbye");
    client.send("the rest");
    drop(client);
    assert_eq!(heard.recv_timeout(testkit::DEADLINE).unwrap(), "the rest");
    server.until_in_flight(0);
}

#[test]
fn backend_that_reads_late_receives_all_of_a_tunnel_that_ended_in_order() {
    let place = testkit::sandbox!();
    let (ended, wait) = std::sync::mpsc::channel();
    let (sender, read) = std::sync::mpsc::channel();
    let channels = std::sync::Mutex::new((wait, sender));
    let raw = agreeing(move |reader| {
        reader.get_mut().shutdown(Shutdown::Write).unwrap();
        let channels = channels.lock().unwrap();
        channels.0.recv_timeout(testkit::DEADLINE).unwrap();
        let mut all = Vec::new();
        let end = reader.read_to_end(&mut all);
        channels.1.send(end.map(|_| all.len())).unwrap();
    });
    let server = serve(&place, &raw);
    let mut client = upgraded(&server);
    let mut rest = Vec::new();
    client.reader.read_to_end(&mut rest).unwrap();
    // More than the backend's system takes while the backend does not read, and less than ours.
    let sent = vec![b'x'; 400 << 10];
    client.send(&sent);
    drop(client);
    server.until_in_flight(0);
    ended.send(()).unwrap();
    let length = read.recv_timeout(testkit::DEADLINE).unwrap();
    assert_eq!(length.unwrap(), sent.len());
}

#[test]
fn a_backend_that_dies_ends_the_connection() {
    let place = testkit::sandbox!();
    let raw = agreeing(|reader| {
        let _ = reader.read(&mut [0]);
        raw::reset(reader.get_ref());
    });
    let server = serve(&place, &raw);
    let mut client = upgraded(&server);
    client.send("x");
    assert!(client.is_closed());
    server.until_in_flight(0);
}

#[test]
fn a_refused_handshake_is_an_answer_like_any_other() {
    let place = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        let answer = "HTTP/1.1 403 Forbidden\r\nx-own: yes\r\ncontent-length: 2\r\n\r\nno";
        reader.get_mut().write_all(answer.as_bytes()).unwrap();
    });
    let server = serve(&place, &raw);
    let mut client = Connection::open(server.address);
    for _ in 0..2 {
        client.send(HELLO);
        let answer = client.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (403, "no"));
        assert_eq!(answer.head.header("x-own").as_deref(), Some("yes"));
    }
    server.until_in_flight(0);
}

#[test]
fn a_backend_that_switches_unasked_is_an_error() {
    let place = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        reader.get_mut().write_all(WELCOME.as_bytes()).unwrap();
    });
    let server = serve(&place, &raw);
    let answer = server.get("/v1/realtime");
    assert_eq!(answer.status(), 502);
    server.until_in_flight(0);
}

#[test]
fn no_other_protocol_gets_through_unseen() {
    // Whoever got a backend to speak HTTP/2 on such a connection could ask it anything.
    let place = testkit::sandbox!();
    for protocol in ["h2c", "HTTP/2.0", "websocket, h2c", "tls/1.0", "anything"] {
        let raw = raw::heads(|head, reader| {
            let answer = if head.header("upgrade").is_some() {
                WELCOME
            } else {
                "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
            };
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        });
        let server = serve(&place, &raw);
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
fn a_web_page_cannot_open_one_to_a_private_server_unless_it_is_of_this_machine() {
    let place = testkit::sandbox!();
    let raw = agreeing(echo);
    let private = serve(&place, &raw);
    let public = place.serve(&format!("--backend {} --allow-public", raw.url()));
    for (fields, expected) in [
        ("", 101),
        ("origin: http://localhost:3000\r\n", 101),
        ("origin: https://127.0.0.1\r\n", 101),
        ("origin: http://192.168.1.7\r\n", 403),
        ("origin: http://[::1]:80\r\n", 101),
        // A frame in a sandbox.
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
            client.send(HELLO.replace(
                "host: localhost\r\n",
                &format!("host: localhost\r\n{fields}"),
            ));
            let head = client.head();
            assert_eq!(head.status(), expected, "{fields:?}: {head:?}");
        }
    }
}
