//! A WebSocket is one request with one record, from its handshake to the last byte of either side.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};

use serde_json::Value;

use crate::records;
use testkit::{
    Connection, LlmlbServer, Sandbox,
    raw::{self, Raw},
};

const HANDSHAKE: &str = "GET /v1/realtime?model=m HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\r\n\
    connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const HANDSHAKE_RESPONSE: &str = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
    upgrade: websocket\r\nsec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

#[test]
fn websocket_has_one_record_when_it_ends() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
        let _ = reader.get_mut().shutdown(Shutdown::Both);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let client = connect_and_echo(&server);
    assert_eq!(records::all(&sandbox), [Value::Null; 0]);
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["status"], 101, "{record:#}");
    assert_eq!(record["outcome"], "complete", "{record:#}");
    assert_eq!(record["path"], "/v1/realtime", "{record:#}");
    assert_eq!(record["bytes"], 5, "{record:#}");
    assert_eq!(record["backend"], raw.address.to_string(), "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    server.until_in_flight(0);
    assert_eq!(records::all(&sandbox).len(), 1);
}

/// Starts a backend that accepts the WebSocket handshake, echoes five bytes and then runs `then`,
/// in which a test closes or holds the connection.
fn echoing(then: impl Fn(&mut BufReader<TcpStream>) + Send + Sync + 'static) -> Raw {
    raw::heads(move |_, reader| {
        reader
            .get_mut()
            .write_all(HANDSHAKE_RESPONSE.as_bytes())
            .unwrap();
        let mut received = [0; 5];
        reader.read_exact(&mut received).unwrap();
        reader.get_mut().write_all(&received).unwrap();
        then(reader);
    })
}

/// Returns a WebSocket client that has received its echo.
fn connect_and_echo(server: &LlmlbServer) -> Connection {
    let mut client = Connection::open(server.address);
    client.send(HANDSHAKE);
    assert_eq!(client.head().status(), 101);
    client.send("hello");
    let mut reply = [0; 5];
    client.reader.read_exact(&mut reply).unwrap();
    client
}

fn assert_record(sandbox: &Sandbox, outcome: &str) -> Value {
    let record = records::eventually(sandbox, "a");
    assert_eq!(record["outcome"], outcome, "{record:#}");
    assert_eq!(record["bytes"], 5, "{record:#}");
    assert!(record["first_byte_ms"].is_u64(), "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    record
}

#[test]
fn websocket_reset_by_the_client_is_recorded_as_cancelled() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let client = connect_and_echo(&server);
    raw::reset(client.reader.get_ref());
    assert_record(&sandbox, "cancelled");
    server.until_in_flight(0);
}

/// The last bytes of a WebSocket are not known in advance. The record is persisted before the client
/// sees the end of the connection. (promise L9)
#[test]
fn websocket_is_recorded_before_the_client_sees_its_end() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
        reader.get_ref().shutdown(Shutdown::Write).unwrap();
        let _ = reader.read(&mut [0]);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = connect_and_echo(&server);
    client.send("x");
    assert!(client.is_closed());
    // The backend has closed its side and the client has not closed its own. The record must
    // already exist and must not wait for the client.
    let record = records::one(&sandbox, "a");
    assert_record(&sandbox, "complete");
    drop(client);
    server.until_in_flight(0);
    assert_eq!(records::one(&sandbox, "a"), record);
}

#[test]
fn websocket_reset_by_the_backend_is_recorded_before_the_client_sees_it() {
    for _ in 0..10 {
        let sandbox = testkit::sandbox!();
        let raw = echoing(|reader| {
            // The backend waits until the client has received the echo. A reset discards bytes that
            // the client has not received.
            let _ = reader.read(&mut [0]);
            raw::reset(reader.get_ref());
        });
        let server = sandbox.serve(&format!("--backend {}", raw.url()));
        let mut client = connect_and_echo(&server);
        client.send("x");
        assert!(client.is_closed());
        let record = records::one(&sandbox, "a");
        assert_record(&sandbox, "cut");
        server.until_in_flight(0);
        assert_eq!(records::one(&sandbox, "a"), record);
    }
}

#[test]
fn websocket_open_at_the_drain_deadline_is_recorded_with_its_bytes() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "100ms"));
    let _client = connect_and_echo(&server);
    sandbox.run(&format!("stop -p {}", server.port()));
    assert_record(&sandbox, "cut");
}

/// After one side has closed, a silent other side must not occupy the backend's slot forever.
#[test]
fn websocket_closed_by_one_side_is_closed_after_the_idle_timeout() {
    for is_client in [true, false] {
        let sandbox = testkit::sandbox!();
        let raw = echoing(move |reader| {
            if !is_client {
                reader.get_mut().shutdown(Shutdown::Write).unwrap();
            }
            // The backend stays silent until llmlb closes the connection after the idle timeout.
            let _ = reader.read_to_end(&mut Vec::new());
            let _ = reader.get_ref().peek(&mut [0]);
            std::thread::park();
        });
        let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
        let server = sandbox.serve_with(command.env("LLMLB_IDLE_TIMEOUT", "200ms"));
        let mut client = connect_and_echo(&server);
        if is_client {
            client.reader.get_ref().shutdown(Shutdown::Write).unwrap();
        }
        assert!(client.is_closed());
        assert_record(&sandbox, if is_client { "cancelled" } else { "complete" });
        server.until_in_flight(0);
    }
}

#[test]
fn silent_tunnel_is_closed_and_its_record_names_the_limit() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        let _ = reader.read(&mut [0]);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_TUNNEL_IDLE", "3s"));
    let mut client = connect_and_echo(&server);
    assert!(client.is_closed());
    let record = assert_record(&sandbox, "cancelled");
    assert_eq!(record["reason"], "tunnel_idle", "{record:#}");
    server.until_in_flight(0);
    // The record is written first, so wait until the backend's slot is released: a closed tunnel
    // must not occupy it.
    testkit::until("the slot is released", || {
        server.status()["backends"][0]["in_flight"] == 0
    });
    let line = "GET /v1/realtime 101 tunnel_idle";
    server.process.until_output(line);
}

/// Runs a tunnel for longer than `tunnel_idle` in which one side sends single bytes. Asserts that
/// it stays open: any byte of either side ends the silence.
fn assert_tunnel_stays_open(is_client: bool) {
    const BYTES: usize = 60;
    let pause = std::time::Duration::from_millis(100);
    let sandbox = testkit::sandbox!();
    let raw = echoing(move |reader| {
        for _ in 0..BYTES {
            if is_client {
                reader.read_exact(&mut [0]).unwrap();
            } else {
                reader.get_mut().write_all(b".").unwrap();
                std::thread::sleep(pause);
            }
        }
        reader.get_mut().write_all(b"end").unwrap();
        let _ = reader.read(&mut [0]);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_TUNNEL_IDLE", "5s"));
    let mut client = connect_and_echo(&server);
    for _ in 0..BYTES {
        if is_client {
            client.send(".");
            std::thread::sleep(pause);
        } else {
            client.reader.read_exact(&mut [0]).unwrap();
        }
    }
    let mut end = [0; 3];
    client.reader.read_exact(&mut end).unwrap();
    assert_eq!(&end, b"end");
}

#[test]
fn tunnel_stays_open_while_one_side_sends_now_and_then() {
    std::thread::scope(|scope| {
        scope.spawn(|| assert_tunnel_stays_open(true));
        scope.spawn(|| assert_tunnel_stays_open(false));
    });
}

/// `idle_timeout` is for responses. In a tunnel that neither side has closed, `tunnel_idle` counts.
#[test]
fn tunnel_open_on_both_sides_may_be_silent_longer_than_the_idle_timeout() {
    let sandbox = testkit::sandbox!();
    let raw = echoing(|reader| {
        std::thread::sleep(std::time::Duration::from_millis(500));
        reader.get_mut().write_all(b"later").unwrap();
        let _ = reader.read(&mut [0]);
        let _ = reader.get_ref().shutdown(Shutdown::Both);
    });
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", raw.url()));
    let server = sandbox.serve_with(command.env("LLMLB_IDLE_TIMEOUT", "100ms"));
    let mut client = connect_and_echo(&server);
    let mut reply = [0; 5];
    client.reader.read_exact(&mut reply).unwrap();
    assert_eq!(&reply, b"later");
}

/// Returns a WebSocket frame. `first` is its first byte, with the type; the payload must have less
/// than 64 KiB.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap();
    let [high, low] = length.to_be_bytes();
    let header = match length {
        0..=125 => vec![first, low],
        _ => vec![first, 126, high, low],
    };
    [&header, payload].concat()
}

fn text(message: &str) -> Vec<u8> {
    frame(0x81, message.as_bytes())
}

const CREATED: &str = r#"{"type":"response.created","response":{"id":"r","usage":null}}"#;
const DONE: &str = r#"{"type":"response.done","event_id":"e","response":{"id":"r","status":"completed",
    "output":[{"content":[{"transcript":"He said: \"usage\":{\"input_tokens\":7}"}]}],
    "usage":{"total_tokens":30,"input_tokens":20,"output_tokens":10,"later":{"total_tokens":99},
    "input_token_details":{"text_tokens":12,"audio_tokens":8,"cached_tokens":6},
    "output_token_details":{"text_tokens":4,"audio_tokens":6}}}}"#;
const TRANSCRIBED: &str = r#"{"type":"conversation.item.input_audio_transcription.completed",
    "transcript":"Hi","usage":{"type":"tokens","total_tokens":9,"input_tokens":8,"output_tokens":1}}"#;

/// Runs a session in which the backend sends these chunks, each in a write of its own, and then closes. Asserts
/// that the client receives the bytes unchanged, and returns the record.
fn session(chunks: Vec<Vec<u8>>) -> Value {
    let sandbox = testkit::sandbox!();
    let sent = chunks.concat();
    let raw = raw::heads(move |_, reader| {
        let stream = reader.get_mut();
        stream.set_nodelay(true).unwrap();
        stream.write_all(HANDSHAKE_RESPONSE.as_bytes()).unwrap();
        for chunk in &chunks {
            stream.write_all(chunk).unwrap();
        }
        let _ = stream.shutdown(Shutdown::Both);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(HANDSHAKE);
    assert_eq!(client.head().status(), 101);
    let mut received = Vec::new();
    client.reader.read_to_end(&mut received).unwrap();
    assert!(received == sent);
    let record = records::one(&sandbox, "a");
    assert_eq!(record["outcome"], "complete", "{record:#}");
    assert_eq!(record["bytes"], sent.len(), "{record:#}");
    assert_eq!(record["api"], "realtime", "{record:#}");
    assert_eq!(record["model"], "m", "{record:#}");
    record
}

/// Asserts the numbers of prompt, completion and cached tokens, their total and their source.
#[track_caller]
fn assert_tokens(record: &Value, numbers: [u64; 4], source: &str) {
    let names = [
        "prompt_tokens",
        "completion_tokens",
        "cached_tokens",
        "tokens",
    ];
    for (name, number) in names.into_iter().zip(numbers) {
        assert_eq!(record[name], number, "{name}: {record:#}");
    }
    assert_eq!(record["tokens_from"], source, "{record:#}");
}

#[test]
fn usage_of_all_responses_of_a_session_is_recorded() {
    let turn = [text(CREATED), frame(0x82, b"audio"), text(DONE)].concat();
    let record = session(vec![
        turn.clone(),
        text(TRANSCRIBED),
        turn.clone(),
        turn,
        frame(0x88, &[3, 232]),
    ]);
    assert_tokens(&record, [68, 31, 18, 99], "reported");
}

#[test]
fn session_that_arrives_byte_by_byte_is_metered() {
    let bytes = [
        frame(0x01, &DONE.as_bytes()[..100]),
        frame(0x89, b"ping"),
        frame(0x00, &DONE.as_bytes()[100..200]),
        frame(0x80, &DONE.as_bytes()[200..]),
    ];
    let record = session(bytes.concat().chunks(1).map(<[u8]>::to_vec).collect());
    assert_tokens(&record, [20, 10, 6, 30], "reported");
}

#[test]
fn long_message_passes_and_is_metered() {
    let output = "x".repeat(20 << 20);
    let message = DONE.replacen("\"id\":\"r\"", &format!("\"output\":\"{output}\""), 1);
    let length = (message.len() as u64).to_be_bytes();
    let frame = [&[0x81, 127], &length[..], message.as_bytes()].concat();
    let record = session(vec![frame, text(DONE)]);
    assert_tokens(&record, [40, 20, 12, 60], "reported");
}

#[test]
fn masked_frames_of_a_backend_pass_and_are_not_metered() {
    let mut masked = text(DONE);
    masked[1] |= 0x80;
    let record = session(vec![masked.clone(), text(DONE)]);
    assert_tokens(&record, [0, 0, 0, 0], "none");
    let record = session(vec![text(DONE), masked, text(DONE)]);
    assert_tokens(&record, [20, 10, 6, 30], "estimated");
}

#[test]
fn session_with_implausible_numbers_is_recorded_as_estimated() {
    let huge = DONE.replace(":20,", ":99999999999999999999,");
    let record = session(vec![text(DONE), text(&huge)]);
    // The second report is implausible, so its prompt tokens are estimated from the total that it
    // states.
    assert_tokens(&record, [40, 20, 12, 60], "estimated");
}

/// The client disconnects during the second response. The record must have the usage of the first
/// one, which is complete.
#[test]
fn session_cancelled_during_a_response_has_the_usage_so_far() {
    let sandbox = testkit::sandbox!();
    let begun = [text(CREATED), text(DONE), text(CREATED)].concat();
    let length = begun.len();
    let raw = raw::heads(move |_, reader| {
        let stream = reader.get_mut();
        stream.write_all(HANDSHAKE_RESPONSE.as_bytes()).unwrap();
        stream.write_all(&begun).unwrap();
        let _ = reader.read(&mut [0]);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(HANDSHAKE);
    assert_eq!(client.head().status(), 101);
    client.reader.read_exact(&mut vec![0; length]).unwrap();
    raw::reset(client.reader.get_ref());
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["outcome"], "cancelled", "{record:#}");
    assert_tokens(&record, [20, 10, 6, 30], "estimated");
    server.until_in_flight(0);
}

#[test]
fn session_of_the_responses_api_is_metered() {
    let sandbox = testkit::sandbox!();
    let completed = r#"{"type":"response.completed","response":{"usage":{"input_tokens":5,
        "input_tokens_details":{"cached_tokens":4},"output_tokens":2,
        "output_tokens_details":{"reasoning_tokens":1},"total_tokens":7}}}"#;
    let raw = raw::heads(move |_, reader| {
        let stream = reader.get_mut();
        stream.write_all(HANDSHAKE_RESPONSE.as_bytes()).unwrap();
        for message in [CREATED, completed, CREATED, completed] {
            stream.write_all(&text(message)).unwrap();
        }
        let _ = stream.shutdown(Shutdown::Both);
    });
    let file = format!("[[backend]]\nurl = \"{}\"\nwebsocket = true\n", raw.url());
    let server = testkit::backends::serve_file(&sandbox, &file);
    let mut client = Connection::open(server.address);
    client.send(HANDSHAKE.replace("/v1/realtime?model=m", "/v1/responses"));
    assert_eq!(client.head().status(), 101);
    client.reader.read_to_end(&mut Vec::new()).unwrap();
    let record = records::one(&sandbox, "a");
    assert_eq!(record["api"], "responses", "{record:#}");
    assert_eq!(record["path"], "/v1/responses", "{record:#}");
    assert_tokens(&record, [10, 4, 8, 14], "reported");
    assert_eq!(record["reasoning_tokens"], 2, "{record:#}");
}

/// The usage of a session is in the list of requests in flight before the client has the bytes
/// that report it. (promise L9)
#[test]
fn session_interrupted_by_kill_nine_has_the_usage_so_far() {
    let sandbox = testkit::sandbox!();
    let turn = [text(CREATED), text(DONE)].concat();
    let length = turn.len();
    let raw = raw::heads(move |_, reader| {
        let stream = reader.get_mut();
        stream.write_all(HANDSHAKE_RESPONSE.as_bytes()).unwrap();
        stream.write_all(&turn).unwrap();
        let _ = reader.read(&mut [0]);
    });
    let arguments = format!("--backend {}", raw.url());
    let server = sandbox.serve(&arguments);
    let mut client = Connection::open(server.address);
    client.send(HANDSHAKE);
    assert_eq!(client.head().status(), 101);
    client.reader.read_exact(&mut vec![0; length]).unwrap();
    server.process.kill();
    assert_eq!(records::all(&sandbox), [Value::Null; 0]);
    let _server = sandbox.serve(&arguments);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["outcome"], "interrupted", "{record:#}");
    assert_eq!(record["api"], "realtime", "{record:#}");
    assert_tokens(&record, [20, 10, 6, 30], "reported");
}
