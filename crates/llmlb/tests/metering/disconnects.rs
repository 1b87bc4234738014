//! Records of requests whose client disconnects or whose backend closes the connection.

use std::io::{Read, Write};

use ::http::Method;
use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, post, send};
use crate::stream::{self, DONE, STOP, USAGE, WORD};
use testkit::{
    Connection, FakeLlm,
    backends::{Occupied, UNPROBED, backend, close, count, ok, serve, serve_file},
    h2_client::{connected, next, request},
    until, wire,
};

/// Starts a backend that sends these pieces and then nothing until its connection is closed.
fn pausing(pieces: &[&str]) -> FakeLlm {
    let pieces: Vec<_> = pieces.iter().map(|&piece| piece.to_owned()).collect();
    backend(move |_, stream| {
        if !pieces.is_empty() {
            wire::begin_stream(stream);
        }
        for piece in &pieces {
            wire::chunk(stream, piece);
        }
        let _ = stream.read(&mut [0]);
        close(stream);
    })
}

#[test]
fn disconnect_before_the_first_byte_is_recorded_without_a_response() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for is_stream in [false, true] {
        let id = format!("stream-{is_stream}");
        let before = count(&mock);
        let mut client = Connection::open(server.address);
        send(
            &mut client,
            &id,
            CHAT,
            &chat("Hello", is_stream).to_string(),
        );
        until("the backend has the request", || count(&mock) > before);
        drop(client);
        let record = records::eventually(&sandbox, &id);
        assert_eq!(record["outcome"], "cancelled", "{record:#}");
        assert_eq!(record["status"], Value::Null, "{record:#}");
        assert_eq!(record["first_byte_ms"], Value::Null, "{record:#}");
        assert_eq!(record["bytes"], 0, "{record:#}");
        assert_eq!(record["model"], "m", "{record:#}");
        assert_eq!(record["stream"], is_stream, "{record:#}");
        // The backend has probably read the prompt, so its estimated tokens are recorded although
        // no response was received.
        assert!(record["prompt_tokens"].as_u64() > Some(0), "{record:#}");
        assert_eq!(record["completion_tokens"], 0, "{record:#}");
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    }
    server.until_in_flight(0);
    assert_eq!(records::all(&sandbox).len(), 2);
}

/// Speech is not metered in tokens, so the record must not contain an estimate.
#[test]
fn disconnect_before_the_first_byte_of_speech_is_recorded_without_tokens() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    let request_body = json!({ "model": "m", "input": "Hello" }).to_string();
    send(&mut client, "a", "/v1/audio/speech", &request_body);
    until("the backend has the request", || count(&mock) == 1);
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["tokens"], 0, "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
}

/// The record must name the backend that was processing the request even if it had not responded
/// yet: its operator pays for the work.
#[test]
fn disconnect_before_the_first_byte_is_recorded_with_the_backend() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, &chat("Hello", true).to_string());
    until("the backend has the request", || count(&mock) == 1);
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["backend"], mock.address.to_string(), "{record:#}");
}

#[test]
fn disconnect_within_a_stream_counts_the_text_received_so_far() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[WORD, WORD, WORD]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, &chat("Hello", true).to_string());
    assert_eq!(client.head().status(), 200);
    stream::read(&mut client, 3 * WORD.len());
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["outcome"], "cancelled", "{record:#}");
    assert_eq!(record["status"], 200, "{record:#}");
    assert_eq!(record["completion_tokens"], 3, "{record:#}");
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    assert!(record["prompt_tokens"].as_u64() > Some(0), "{record:#}");
    assert_eq!(record["bytes"], 3 * WORD.len(), "{record:#}");
    assert_eq!(record["backend"], mock.address.to_string());
    server.until_in_flight(0);
    assert_eq!(records::all(&sandbox).len(), 1);
}

#[test]
fn disconnect_within_a_stream_counts_the_usage_reported_so_far() {
    let usage = |tokens: u64| {
        let usage = format!(r#""usage":{{"prompt_tokens":9,"completion_tokens":{tokens}}},"#);
        WORD.replacen("\"id\"", &(usage + "\"id\""), 1)
    };
    let sandbox = testkit::sandbox!();
    let words = [usage(1), usage(2)];
    let mock = pausing(&[&words[0], &words[1]]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, &chat("Hello", true).to_string());
    assert_eq!(client.head().status(), 200);
    stream::read(&mut client, words.concat().len());
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["outcome"], "cancelled", "{record:#}");
    assert_eq!(record["prompt_tokens"], 9, "{record:#}");
    assert_eq!(record["completion_tokens"], 2, "{record:#}");
}

/// Usage reported at the start of a stream does not count the text that follows.
#[test]
fn stream_cut_after_a_preliminary_usage_report_is_estimated() {
    let zeros = WORD.replacen(
        "\"id\"",
        r#""usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0},"id""#,
        1,
    );
    let begin = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":\
        {\"usage\":{\"input_tokens\":25}}}\n\n";
    let delta = "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\
        \"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\n";
    for (path, pieces, prompt) in [
        (CHAT, [&zeros, WORD, WORD], None),
        ("/v1/messages", [begin, delta, delta], Some(25)),
    ] {
        let sandbox = testkit::sandbox!();
        let pieces = pieces.map(str::to_owned);
        let mock = backend(move |_, stream| {
            wire::begin_stream(stream);
            for piece in &pieces {
                wire::chunk(stream, piece);
            }
            close(stream);
        });
        let server = serve(&sandbox, &[&mock], UNPROBED);
        let answer = post(&server, "a", path, &chat("Hello", true));
        assert!(answer.body.is_err());
        let record = records::one(&sandbox, "a");
        assert_eq!(record["outcome"], "cut", "{record:#}");
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
        assert!(
            record["completion_tokens"].as_u64() >= Some(2),
            "{record:#}"
        );
        let counted = record["prompt_tokens"].as_u64().unwrap();
        assert!(counted > 0, "{record:#}");
        assert!(
            prompt.is_none_or(|reported| reported == counted),
            "{record:#}"
        );
        let total = counted + record["completion_tokens"].as_u64().unwrap();
        assert_eq!(record["tokens"], total, "{record:#}");
    }
}

#[test]
fn disconnect_within_a_plain_response_has_a_record() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999\r\n\r\n";
        let _ = stream.write_all(format!("{head}{{\"choices\":[").as_bytes());
        let _ = stream.read(&mut [0]);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, &chat("Hello", false).to_string());
    assert_eq!(client.head().status(), 200);
    drop(client);
    let record = records::eventually(&sandbox, "a");
    assert_eq!(record["outcome"], "cancelled", "{record:#}");
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
}

#[test]
fn disconnect_after_the_done_event_is_recorded_as_complete() {
    let sandbox = testkit::sandbox!();
    // The backend sends `[DONE]` but leaves the body open, so the client disconnects from a
    // response that has not ended formally.
    let mock = pausing(&[WORD, STOP, USAGE, DONE]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    send(&mut client, "a", CHAT, &chat("Hello", true).to_string());
    assert_eq!(client.head().status(), 200);
    let expected = [WORD, STOP, DONE].concat();
    assert_eq!(
        stream::read(&mut client, expected.len()),
        expected.as_bytes()
    );
    // The record is persisted before `[DONE]` is forwarded.
    let record = records::one(&sandbox, "a");
    assert_eq!(record["outcome"], "complete", "{record:#}");
    assert_eq!(record["tokens"], 12, "{record:#}");
    drop(client);
    server.until_in_flight(0);
    assert_eq!(records::all(&sandbox).len(), 1);
}

#[test]
fn http2_stream_reset_has_one_record() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[WORD, WORD]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let mut head = request(Method::POST, CHAT);
        head.headers_mut()
            .insert("x-request-id", "a".parse().unwrap());
        let body = chat("Hello", true).to_string();
        let response = testkit::h2_client::send(&client, head, &body).await;
        let mut body = response.await.unwrap().into_body();
        assert!(next(&mut body).await.unwrap().is_ok());
        drop(body);
        // The client resets only the stream. Its HTTP/2 connection stays open, so the record must
        // not wait for the end of the connection.
        let record = loop {
            tokio::task::yield_now().await;
            if let Some(record) = records::of_request(&sandbox, "a").pop() {
                break record;
            }
        };
        assert_eq!(record["outcome"], "cancelled", "{record:#}");
    });
    server.until_in_flight(0);
    assert_eq!(records::all(&sandbox).len(), 1);
}

#[test]
fn http2_client_that_reads_no_response_has_one_record() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        wire::begin_stream(stream);
        while wire::chunk(stream, WORD) {}
    });
    let server = serve(&sandbox, &[&mock], &[("LLMLB_SEND_TIMEOUT", "200ms")]);
    connected(server.address, async |client| {
        let mut head = request(Method::POST, CHAT);
        let id = "stuck".parse().unwrap();
        head.headers_mut().insert("x-request-id", id);
        let request_body = chat("Hello", true).to_string();
        let response = testkit::h2_client::send(&client, head, &request_body).await;
        let _body = response.await.unwrap().into_body();
        while records::of_request(&sandbox, "stuck").is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    let record = records::one(&sandbox, "stuck");
    assert_eq!(record["outcome"], "cancelled", "{record:#}");
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    server.until_in_flight(0);
}

#[test]
fn disconnect_while_waiting_for_a_slot_has_a_record() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[WORD]);
    let server = serve_file(
        &sandbox,
        &format!(
            "[[backend]]\nurl = \"{}\"\nmax_concurrent = 1\n[upstream]\nprobe_interval = \"1h\"\n",
            mock.url()
        ),
    );
    let request_body = chat("Hello", true).to_string();
    let mut first = Connection::open(server.address);
    send(&mut first, "first", CHAT, &request_body);
    assert_eq!(first.head().status(), 200);
    let mut second = Connection::open(server.address);
    send(&mut second, "second", CHAT, &request_body);
    server.until_in_flight(2);
    drop(second);
    let record = records::eventually(&sandbox, "second");
    assert_eq!(record["outcome"], "cancelled", "{record:#}");
    assert_eq!(record["backend"], Value::Null, "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    assert_eq!(records::of_request(&sandbox, "first"), [Value::Null; 0]);
}

#[test]
fn disconnect_within_the_request_body_has_one_record() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nx-request-id: half\r\n\
         content-type: application/json\r\ncontent-length: 100\r\n\r\n{{\"model\""
    ));
    server.until_in_flight(1);
    drop(client);
    let record = records::eventually(&sandbox, "half");
    let outcome = record["outcome"].as_str().unwrap();
    assert!(["cancelled", "refused"].contains(&outcome), "{record:#}");
    server.until_in_flight(0);
    assert_eq!(records::of_request(&sandbox, "half").len(), 1);
    assert_eq!(count(&mock), 0);
}

#[test]
fn upload_that_stalls_has_one_record() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_BODY_TIMEOUT", "200ms")]);
    for (id, kind) in [("read", "application/json"), ("passing", "audio/wav")] {
        let mut client = Connection::open(server.address);
        client.send(format!(
            "POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\n\
             content-type: {kind}\r\ncontent-length: 1000\r\n\r\nhalf"
        ));
        assert_eq!(client.answer().status(), 408);
        let record = records::one(&sandbox, id);
        assert_eq!(record["outcome"], "cancelled", "{record:#}");
        assert_eq!(record["status"], 408, "{record:#}");
        // Only the body that is streamed unread reached a backend. A body with a model is forwarded
        // when it is complete, so its request has no attempt.
        let attempts = record["attempts"].as_array().unwrap().len();
        assert_eq!(attempts, usize::from(id == "passing"), "{record:#}");
    }
}

#[test]
fn stream_cut_by_the_backend_counts_the_text_received_so_far() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, WORD);
        wire::chunk(stream, WORD);
        close(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = post(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.body, Err([WORD, WORD].concat().into_bytes()));
    let record = records::one(&sandbox, "a");
    assert_eq!(record["outcome"], "cut", "{record:#}");
    assert_eq!(record["status"], 200, "{record:#}");
    assert_eq!(record["completion_tokens"], 2, "{record:#}");
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    assert_eq!(record["attempts"], json!([]), "{record:#}");
    assert_eq!(records::all(&sandbox).len(), 1);
}

#[test]
fn plain_response_cut_by_the_backend_has_a_record() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| {
        let head =
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n";
        let _ = stream.write_all(format!("{head}{{\"choices\":[").as_bytes());
        close(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = post(&server, "a", CHAT, &chat("Hello", false));
    assert!(answer.body.is_err());
    let record = records::one(&sandbox, "a");
    assert_eq!(record["outcome"], "cut", "{record:#}");
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
}

#[test]
fn response_that_exceeds_the_idle_timeout_is_recorded_as_cut() {
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[WORD]);
    let settings = [
        ("LLMLB_IDLE_TIMEOUT", "200ms"),
        ("LLMLB_PROBE_INTERVAL", "1h"),
    ];
    let server = serve(&sandbox, &[&mock], &settings);
    let answer = post(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.body, Err(WORD.as_bytes().to_vec()));
    let record = records::one(&sandbox, "a");
    assert_eq!(record["outcome"], "cut", "{record:#}");
}

#[test]
fn request_refused_by_a_full_queue_has_a_record() {
    let sandbox = testkit::sandbox!();
    let mut occupied = Occupied::new();
    // One backend is stopped, and the only slot of the other one is occupied. The request is
    // refused because the queue is full.
    let gone = backend(ok);
    let server = occupied.beside(&sandbox, &gone);
    gone.stop();
    until("no backend is available", || {
        let answer = server.post(CHAT, &chat("Hello", false).to_string());
        answer.status() == 429
    });
    let answer = post(&server, "a", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 429, "{answer:?}");
    let record = records::one(&sandbox, "a");
    assert_eq!(record["outcome"], "refused", "{record:#}");
    assert_eq!(record["status"], 429, "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    assert_eq!(record["tokens_from"], "none", "{record:#}");
}

/// A client may disconnect before its request is read: every request that reached a backend has a
/// record all the same.
#[test]
fn disconnect_right_after_the_request_is_recorded_if_it_reached_a_backend() {
    const COUNT: usize = 200;
    let sandbox = testkit::sandbox!();
    let mock = pausing(&[WORD]);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for number in 0..COUNT {
        let mut client = Connection::open(server.address);
        let request_body = chat("Hello", number % 2 == 0).to_string();
        send(&mut client, &format!("r-{number}"), CHAT, &request_body);
        drop(client);
    }
    // The server accepts connections in order, so once this last client is served, it has accepted
    // all earlier ones. The test may then compare requests and records.
    let mut client = Connection::open(server.address);
    send(&mut client, "stays", CHAT, &chat("Hello", true).to_string());
    assert_eq!(client.head().status(), 200);
    server.until_in_flight(1);
    drop(client);
    server.until_in_flight(0);
    let received = testkit::backends::asked(&mock);
    let received: Vec<_> = received
        .iter()
        .map(|request| request.head.header("x-request-id").unwrap())
        .collect();
    println!(
        "received by the backend: {}, recorded: {}",
        received.len(),
        records::all(&sandbox).len()
    );
    for id in &received {
        records::one(&sandbox, id);
    }
    let total = server.status()["requests"].as_u64().unwrap();
    assert_eq!(records::all(&sandbox).len() as u64, total);
}
