//! Answers pass on as they come, and everyone learns how they ended. (L4, L5, L8, L10)

use std::io::Read;
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use testkit::{Connection, DEADLINE, FakeLlm, LlmlbServer, Sandbox, read_chunk, until, wire};

const CHAT: &str = "/v1/chat/completions";
const ASK: &str = r#"{"model":"m","stream":true}"#;

/// A backend whose stream is under the test's control: each text that is sent through the channel
/// becomes a chunk, and a closed channel ends the answer.
fn puppet() -> (FakeLlm, Sender<&'static str>) {
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
    let chunk = read_chunk(&mut connection.reader).expect("no break");
    String::from_utf8(chunk.expect("no end")).expect("text")
}

fn serve(place: &Sandbox, mock: &FakeLlm) -> LlmlbServer {
    place.serve(&format!("--backend {}", mock.url()))
}

#[test]
fn every_token_arrives_before_the_next_one_is_sent() {
    let place = testkit::sandbox!();
    let (mock, tokens) = puppet();
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    for token in ["data: 1\n\n", "data: 2\n\n", "data: 3\n\n"] {
        tokens.send(token).expect("the backend listens");
        if token == "data: 1\n\n" {
            assert_eq!(client.head().status(), 200);
        }
        // The backend sends nothing more until we have this one.
        assert_eq!(next(&mut client), token);
    }
    drop(tokens);
    assert_eq!(read_chunk(&mut client.reader), Some(None));
    server.until_in_flight(0);
}

#[test]
fn the_head_of_an_answer_does_not_wait_for_its_first_token() {
    let place = testkit::sandbox!();
    let (mock, tokens) = puppet();
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(
        client.head().header("content-type").as_deref(),
        Some("text/event-stream")
    );
    drop(tokens);
}

/// A backend that says what it sees when its client leaves: `begun` before, `left` after.
fn witness(first_byte: bool) -> (FakeLlm, Receiver<&'static str>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let mock = FakeLlm::handling(&["m"], move |_, stream: &mut TcpStream| {
        if first_byte {
            wire::begin_stream(stream);
            wire::chunk(stream, "data: 1\n\n");
        }
        let tell = |text| sender.lock().expect("the channel").send(text);
        tell("begun").expect("the test listens");
        // Nothing more is sent to us, unless the connection ends.
        if matches!(stream.read(&mut [0]), Ok(0) | Err(_)) {
            let _ = tell("left");
        }
    });
    (mock, receiver)
}

#[test]
fn a_client_that_leaves_during_a_stream_ends_it_at_the_backend() {
    let place = testkit::sandbox!();
    let (mock, seen) = witness(true);
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("begun"));
    server.until_in_flight(1);
    drop(client);
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("left"));
    server.until_in_flight(0);
}

#[test]
fn a_client_that_leaves_before_the_first_byte_ends_the_request_at_the_backend() {
    let place = testkit::sandbox!();
    let (mock, seen) = witness(false);
    let server = serve(&place, &mock);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("begun"));
    drop(client);
    assert_eq!(seen.recv_timeout(DEADLINE), Ok("left"));
    server.until_in_flight(0);
    let status = server.status();
    assert_eq!(status["backends"][0]["in_flight"], 0);
}

#[test]
fn a_stream_that_the_backend_cuts_is_an_error_for_the_client() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&place, &mock);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.body, Err(b"data: 1\n\n".to_vec()));
    until("it is reported", || {
        server.process.stderr().contains("cut its answer")
    });
    server.until_in_flight(0);
}

#[test]
fn an_answer_of_known_length_that_the_backend_cuts_is_an_error_too() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        use std::io::Write;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&place, &mock);
    assert!(server.post(CHAT, ASK).body.is_err());
}

#[test]
fn a_backend_that_hangs_up_without_an_answer_is_a_bad_gateway() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&place, &mock);
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 502);
    assert_eq!(answer.json()["error"]["code"], "upstream_error");
    server.until_in_flight(0);
}

#[test]
fn a_backend_that_does_not_speak_http_is_a_bad_gateway() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        use std::io::Write;
        let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = serve(&place, &mock);
    assert_eq!(server.post(CHAT, ASK).status(), 502);
}

#[test]
fn hundreds_of_streams_run_at_once() {
    let place = testkit::sandbox!();
    let (mock, streams) = (Arc::new(Mutex::new(Vec::new())), 200);
    let kept = Arc::clone(&mock);
    let backend = FakeLlm::handling(&["m"], move |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        kept.lock()
            .expect("the list")
            .push(stream.try_clone().expect("a handle"));
    });
    let server = serve(&place, &backend);
    let mut clients: Vec<_> = (0..streams)
        .map(|_| {
            let mut client = Connection::open(server.address);
            client.send_post(CHAT, ASK);
            client
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.head().status(), 200);
        assert_eq!(next(client), "data: 1\n\n");
    }
    assert_eq!(server.status()["in_flight"], streams);
    for stream in mock.lock().expect("the list").iter_mut() {
        wire::chunk(stream, "data: 2\n\n");
        wire::end_stream(stream);
    }
    for client in &mut clients {
        assert_eq!(next(client), "data: 2\n\n");
        assert_eq!(read_chunk(&mut client.reader), Some(None));
    }
    server.until_in_flight(0);
}

#[test]
fn the_log_tells_of_each_request_when_it_is_over() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |request, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        if request.text().contains("cut") {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        wire::chunk(stream, "data: [DONE]\n\n");
        wire::end_stream(stream);
    });
    let server = place.serve(&format!("--backend {}", mock.url()));
    server.post(CHAT, r#"{"model":"m"}"#);
    server.post(CHAT, r#"{"model":"m","x":"cut"}"#);
    server.post(CHAT, r#"{"model":"other","x":"secret words"}"#);
    let backend = mock.address;
    let lines = [
        format!("llmlb: POST {CHAT} 200 model=m backend={backend} ms="),
        format!("llmlb: POST {CHAT} 200 cut by the backend model=m backend={backend} ms="),
        format!("llmlb: POST {CHAT} 404 model_not_found model=other ms="),
    ];
    for line in lines {
        until(&line, || server.process.stderr().contains(&line));
    }
    assert!(!server.process.stderr().contains("secret words"));
}
