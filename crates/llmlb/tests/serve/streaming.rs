//! Responses are forwarded without delay, and both sides learn how they ended. (promises L4, L5,
//! L8, L10)

use std::io::Read;
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};

use crate::open_streams::OpenStreams;
use testkit::backends::CHAT;
use testkit::{Connection, DEADLINE, FakeLlm, LlmlbServer, Sandbox, read_chunk, until, wire};

const ASK: &str = r#"{"model":"m","stream":true}"#;

/// Starts a backend whose stream the test controls. Each text sent through the channel becomes a
/// chunk, and closing the channel ends the response.
fn controlled_backend() -> (FakeLlm, Sender<&'static str>) {
    let (sender, receiver) = channel();
    let receiver: Mutex<Receiver<&'static str>> = Mutex::new(receiver);
    let mock = FakeLlm::handling(&["m"], move |_, stream| {
        wire::begin_stream(stream);
        while let Ok(text) = receiver.lock().expect("the channel").recv() {
            wire::chunk(stream, text);
        }
        wire::end_stream(stream);
    });
    (mock, sender)
}

fn next(connection: &mut Connection) -> String {
    let chunk = read_chunk(&mut connection.reader).expect("a complete chunk");
    String::from_utf8(chunk.expect("not the last chunk")).expect("text")
}

fn serve(sandbox: &Sandbox, mock: &FakeLlm) -> LlmlbServer {
    sandbox.serve(&format!("--backend {}", mock.url()))
}

#[test]
fn every_token_arrives_before_the_next_one_is_sent() {
    let sandbox = testkit::sandbox!();
    let (mock, tokens) = controlled_backend();
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    for token in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
        tokens.send(token).expect("the backend receives tokens");
        if token == "data: 1\n\n" {
            assert_eq!(client.head().status(), 200);
        }
        // The backend sends the next token only after the client has received this one.
        assert_eq!(next(&mut client), token);
    }
    drop(tokens);
    assert_eq!(read_chunk(&mut client.reader), Some(None));
    server.until_in_flight(0);
}

#[test]
fn head_of_a_response_does_not_wait_for_its_first_token() {
    let sandbox = testkit::sandbox!();
    let (mock, tokens) = controlled_backend();
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(
        client.head().header("content-type").as_deref(),
        Some("text/event-stream")
    );
    drop(tokens);
}

/// Starts a backend that reports `begun` when it has the request and `closed` when its connection is
/// closed.
fn observing_backend(first_byte: bool) -> (FakeLlm, Receiver<&'static str>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let mock = FakeLlm::handling(&["m"], move |_, stream: &mut TcpStream| {
        if first_byte {
            wire::begin_stream(stream);
            wire::chunk(stream, "data: 1\n\n");
        }
        let report = |text| sender.lock().expect("the channel").send(text);
        report("begun").expect("the test receives reports");
        // llmlb sends no bytes after the request, so this read returns only when llmlb closes the
        // connection to the backend.
        if matches!(stream.read(&mut [0]), Ok(0) | Err(_)) {
            let _ = report("closed");
        }
    });
    (mock, receiver)
}

#[test]
fn client_disconnect_during_a_stream_cancels_the_upstream_request() {
    let sandbox = testkit::sandbox!();
    let (mock, reports) = observing_backend(true);
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    assert_eq!(reports.recv_timeout(DEADLINE), Ok("begun"));
    server.until_in_flight(1);
    drop(client);
    assert_eq!(reports.recv_timeout(DEADLINE), Ok("closed"));
    server.until_in_flight(0);
}

#[test]
fn client_disconnect_before_the_first_byte_cancels_the_upstream_request() {
    let sandbox = testkit::sandbox!();
    let (mock, reports) = observing_backend(false);
    let server = serve(&sandbox, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(reports.recv_timeout(DEADLINE), Ok("begun"));
    drop(client);
    assert_eq!(reports.recv_timeout(DEADLINE), Ok("closed"));
    server.until_in_flight(0);
    let status = server.status();
    assert_eq!(status["backends"][0]["in_flight"], 0);
}

#[test]
fn stream_cut_by_the_backend_is_incomplete_for_the_client() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&sandbox, &mock);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.body, Err(b"data: 1\n\n".to_vec()));
    until("the cut response is logged", || {
        server.process.stderr().contains("cut its response")
    });
    server.until_in_flight(0);
}

#[test]
fn response_with_a_length_cut_by_the_backend_is_incomplete_for_the_client() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        use std::io::Write;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&sandbox, &mock);
    assert!(server.post(CHAT, ASK).body.is_err());
}

#[test]
fn backend_that_closes_without_a_response_is_a_bad_gateway() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&sandbox, &mock);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.json()["error"]["code"], "upstream_error");
    server.until_in_flight(0);
}

#[test]
fn response_that_is_not_http_is_a_bad_gateway() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        use std::io::Write;
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&sandbox, &mock);
    assert_eq!(server.post(CHAT, ASK).status(), 502);
}

#[test]
fn hundreds_of_streams_run_concurrently() {
    let sandbox = testkit::sandbox!();
    let streams = OpenStreams::new();
    let server = serve(&sandbox, &streams.mock);
    let mut clients = streams.clients(&server, 200);
    assert_eq!(server.status()["in_flight"], 200);
    streams.finish();
    for client in &mut clients {
        assert_eq!(next(client), "last");
        assert_eq!(read_chunk(&mut client.reader), Some(None));
    }
    server.until_in_flight(0);
}

#[test]
fn request_is_logged_when_it_ends() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |request, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        if request.text().contains("cut") {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        wire::chunk(stream, "data: [DONE]\n\n");
        wire::end_stream(stream);
    });
    let server = sandbox.serve(&format!("--backend {}", mock.url()));
    server.post(CHAT, r#"{"model":"m"}"#);
    server.post(CHAT, r#"{"model":"m","x":"cut"}"#);
    server.post(CHAT, r#"{"model":"other","x":"secret words"}"#);
    let backend = mock.address;
    let lines = [
        format!("llmlb: POST {CHAT} 200 model=m backend={backend} why=only_candidate"),
        format!(
            "llmlb: POST {CHAT} 200 cut by the backend model=m backend={backend} why=only_candidate"
        ),
        format!("llmlb: POST {CHAT} 404 model_not_found model=other ms="),
    ];
    for line in lines {
        until(&line, || server.process.stderr().contains(&line));
    }
    assert!(!server.process.stderr().contains("secret words"));
}
