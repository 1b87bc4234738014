//! Usage that only llmlb requested of the backend is removed from the response; every other byte is
//! passed on.

use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use ::http::Method;
use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, post, send, send_with};
use crate::stream::{self, DONE, STOP, Scripted, USAGE, WORD, streaming};
use testkit::{
    Connection, FakeLlm,
    backends::{UNPROBED, asked, backend, serve},
    h2_client::{answer, connected, request},
    wire,
};

const PIECES: [&str; 5] = [WORD, WORD, STOP, USAGE, DONE];

fn with_usage_option(mut request_body: Value) -> String {
    request_body["stream_options"] = json!({ "include_usage": true });
    request_body.to_string()
}

#[test]
fn client_receives_usage_only_if_it_asks_for_it() {
    let sandbox = testkit::sandbox!();
    let mock = streaming(&PIECES);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let request_body = chat("Hello", true);
    let whole = PIECES.concat();
    let without = whole.replace(USAGE, "");
    for (id, body, expected) in [
        ("asks", with_usage_option(request_body.clone()), &whole),
        ("does-not", request_body.to_string(), &without),
        ("again", with_usage_option(request_body.clone()), &whole),
        (
            "declines",
            request_body.to_string().replacen(
                '{',
                r#"{"stream_options":{"include_usage":false},"#,
                1,
            ),
            &without,
        ),
        (
            "null",
            request_body
                .to_string()
                .replacen('{', r#"{"stream_options":null,"#, 1),
            &without,
        ),
    ] {
        let mut client = Connection::open(server.address);
        send(&mut client, id, CHAT, &body);
        assert_eq!(&client.answer().text(), expected, "{id}");
        let record = records::one(&sandbox, id);
        assert_eq!(record["tokens"], 12, "{record:#}");
        assert_eq!(record["cached_tokens"], 4, "{record:#}");
        assert_eq!(record["tokens_from"], "reported", "{record:#}");
    }
    // llmlb must ask the backend for usage in every request, also if the client did not, otherwise
    // the tokens would only be estimated.
    for request in asked(&mock) {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(body["stream_options"]["include_usage"], true);
    }
}

#[test]
fn request_is_forwarded_unchanged_except_for_the_usage_option() {
    let sandbox = testkit::sandbox!();
    let mock = streaming(&PIECES);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let option = r#""stream_options":{"include_usage":true},"#;
    let body = r#"{ "model":"m", "stream" : true, "x":1.0e0, "messages":[{"role":"user","content":"\u00e9é"}] }"#;
    let mut client = Connection::open(server.address);
    for (id, path) in [("chat", CHAT), ("completions", "/v1/completions")] {
        send(&mut client, id, path, body);
        assert_eq!(client.answer().status(), 200);
        let sent = asked(&mock).pop().unwrap().text();
        assert_eq!(sent.len(), body.len() + option.len());
        assert_eq!(sent.replacen(option, "", 1), body);
    }
    // The Responses and Messages APIs report usage without an option, so their requests are not changed.
    for (id, path) in [("responses", "/v1/responses"), ("messages", "/v1/messages")] {
        send(&mut client, id, path, body);
        assert_eq!(client.answer().status(), 200);
        assert_eq!(asked(&mock).pop().unwrap().text(), body);
    }
    let plain = body.replace("true", "false");
    send(&mut client, "plain", CHAT, &plain);
    assert_eq!(client.answer().status(), 200);
    assert_eq!(asked(&mock).pop().unwrap().text(), plain);
}

#[test]
fn request_and_response_are_unchanged_without_metering() {
    let sandbox = testkit::sandbox!();
    let mock = streaming(&PIECES);
    let server = serve(&sandbox, &[&mock], &[("LLMLB_USAGE", "false")]);
    let request_body = chat("Hello", true);
    let answer = post(&server, "a", CHAT, &request_body);
    assert_eq!(answer.text(), PIECES.concat());
    assert_eq!(asked(&mock)[0].text(), request_body.to_string());
    assert_eq!(records::all(&sandbox), [Value::Null; 0]);
    assert!(!sandbox.path("data").exists());
}

/// llama.cpp sends its timings in the event that has the usage. Removing the usage must keep the
/// timings, as they are in a stream without the usage option.
#[test]
fn other_fields_of_a_usage_event_are_forwarded() {
    const TIMINGS: &str = "data: {\"choices\":[],\"id\":\"c\",\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3},\"timings\":{\"prompt_n\":9}}\n\n";
    const PASSED: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":null}],\"id\":\"c\",\"timings\":{\"prompt_n\":9}}\n\n";
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let wire = [WORD, STOP, TIMINGS, DONE].concat();
    for (id, asks, expected) in [
        ("asks", true, wire.clone()),
        ("does-not", false, [WORD, STOP, PASSED, DONE].concat()),
    ] {
        let request_body = chat("Hello", true);
        let body = if asks {
            with_usage_option(request_body)
        } else {
            request_body.to_string()
        };
        let begin = WORD.len() + STOP.len();
        for at in begin..=begin + TIMINGS.len() {
            let text = wire.clone();
            scripted.next(move |_, stream| in_two_chunks(stream, &text, at));
            let mut client = Connection::open(server.address);
            let id = format!("{id}-{at}");
            send(&mut client, &id, CHAT, &body);
            assert_eq!(client.answer().text(), expected, "{id}");
            let record = records::one(&sandbox, &id);
            assert_eq!(record["tokens"], 12, "{record:#}");
        }
    }
}

/// Sends a stream many times, split in two at every byte. Asserts that the client receives
/// everything but the usage, wherever the split is.
fn at_every_byte(
    wire: &str,
    usage: &str,
    send_split: impl Fn(&mut TcpStream, &str, usize) + Copy + Send + 'static,
) {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let without = wire.replace(usage, "");
    assert!(without.len() < wire.len());
    let request_body = chat("Hello", true);
    let mut client = Connection::open(server.address);
    for at in 0..=wire.len() {
        let text = wire.to_owned();
        scripted.next(move |_, stream| send_split(stream, &text, at));
        let id = format!("at-{at}");
        // Every 16th client asks for usage itself. It must receive the stream unchanged.
        let (body, expected) = if at % 16 == 0 {
            (with_usage_option(request_body.clone()), wire)
        } else {
            (request_body.to_string(), without.as_str())
        };
        send(&mut client, &id, CHAT, &body);
        assert_eq!(client.answer().text(), expected, "split at {at}");
    }
    let all = records::all(&sandbox);
    assert_eq!(all.len(), wire.len() + 1);
    for record in all {
        assert_eq!(record["tokens"], 12, "{record:#}");
        assert_eq!(record["outcome"], "complete", "{record:#}");
    }
}

/// Sends a text in two HTTP chunks, which the network cannot join.
fn in_two_chunks(stream: &mut TcpStream, text: &str, at: usize) {
    wire::begin_stream(stream);
    for part in [&text[..at], &text[at..]] {
        if !part.is_empty() {
            wire::chunk(stream, part);
        }
    }
    wire::end_stream(stream);
}

#[test]
fn usage_event_is_found_wherever_a_chunk_ends() {
    at_every_byte(&PIECES.concat(), USAGE, in_two_chunks);
}

#[test]
fn usage_event_is_found_wherever_a_chunk_ends_with_any_line_ending() {
    for end in ["\r\n", "\r"] {
        let wire = PIECES.concat().replace('\n', end);
        at_every_byte(&wire, &USAGE.replace('\n', end), in_two_chunks);
    }
}

#[test]
fn usage_event_is_found_wherever_a_segment_ends() {
    at_every_byte(&PIECES.concat(), USAGE, |stream, text, at| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n";
        let length = format!("content-length: {}\r\n\r\n", text.len());
        let _ = stream.write_all([head, &length, &text[..at]].concat().as_bytes());
        // After this pause llmlb has probably read the first segment. Otherwise both parts arrive
        // together, and this split position is not tested in this run.
        thread::sleep(Duration::from_millis(1));
        let _ = stream.write_all(&text.as_bytes()[at..]);
    });
}

#[test]
fn usage_event_is_found_if_every_byte_is_a_chunk() {
    let sandbox = testkit::sandbox!();
    let text = PIECES.concat();
    let sent = text.clone();
    let mock = backend(move |_, stream| {
        wire::begin_stream(stream);
        for at in 0..sent.len() {
            wire::chunk(stream, &sent[at..=at]);
        }
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = post(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.text(), text.replace(USAGE, ""));
    assert_eq!(records::one(&sandbox, "a")["tokens"], 12);
}

#[test]
fn http2_client_receives_usage_only_if_it_asks_for_it() {
    let sandbox = testkit::sandbox!();
    let mock = streaming(&PIECES);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let whole = PIECES.concat();
    connected(server.address, async |client| {
        let mut waiting = Vec::new();
        for number in 0..20 {
            let mut head = request(Method::POST, CHAT);
            let id = format!("r-{number}");
            head.headers_mut()
                .insert("x-request-id", id.parse().unwrap());
            let asks = number % 2 == 0;
            let body = if asks {
                with_usage_option(chat("Hello", true))
            } else {
                chat("Hello", true).to_string()
            };
            waiting.push((asks, testkit::h2_client::send(&client, head, &body).await));
        }
        for (asks, response) in waiting {
            let answer = answer(response).await;
            assert_eq!(answer.status, 200);
            let expected = if asks {
                whole.clone()
            } else {
                whole.replace(USAGE, "")
            };
            assert_eq!(answer.text(), expected);
        }
    });
    for number in 0..20 {
        let record = records::one(&sandbox, &format!("r-{number}"));
        assert_eq!(record["tokens"], 12, "{record:#}");
        assert_eq!(record["outcome"], "complete", "{record:#}");
    }
}

/// Starts a backend that sends each piece when the test provides it.
fn pieces_on_demand() -> (mpsc::Sender<&'static str>, FakeLlm) {
    let (sender, pieces) = mpsc::channel::<&'static str>();
    let pieces = std::sync::Mutex::new(pieces);
    let mock = backend(move |_, stream| {
        wire::begin_stream(stream);
        for piece in pieces.lock().unwrap().iter() {
            wire::chunk(stream, piece);
        }
        wire::end_stream(stream);
    });
    (sender, mock)
}

/// Text that cannot become a usage event must be forwarded at once: the client waits for it.
#[test]
fn text_that_cannot_become_usage_is_forwarded_at_once() {
    for piece in [
        WORD,
        "data: {\"id\":\"c\",\"choices\":[{",
        "data: {\"choices\":[{\"delta\":{\"content\":\"Hi",
        ": a comment that keeps the connection alive\n\n",
        ": a comment that keeps the connection alive\n",
        ":\n",
        "data: [DONE]\n",
        "data: {\"error\":{\"message\":\"no\"}}\n",
    ] {
        let sandbox = testkit::sandbox!();
        let (sender, mock) = pieces_on_demand();
        let server = serve(&sandbox, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        send(&mut client, "a", CHAT, &chat("Hello", true).to_string());
        sender.send(WORD).unwrap();
        assert_eq!(client.head().status(), 200);
        assert_eq!(stream::read(&mut client, WORD.len()), WORD.as_bytes());
        sender.send(piece).unwrap();
        let received = testkit::read_chunk(&mut client.reader);
        assert_eq!(received, Some(Some(piece.as_bytes().to_vec())), "{piece:?}");
        drop(sender);
    }
}

/// A response from which usage cannot be removed must keep its `Content-Length`.
#[test]
fn content_length_is_forwarded_if_nothing_can_be_removed() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    for (status, kind) in [
        (429, "application/json"),
        (500, "application/json"),
        (200, "application/json"),
    ] {
        scripted.next(move |_, stream| {
            let body = r#"{"error":{"message":"no"}}"#;
            let _ = stream.write_all(
                format!(
                    "HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
                    body.len()
                )
                .as_bytes(),
            );
        });
        let answer = post(&server, &format!("s-{status}"), CHAT, &chat("Hello", true));
        assert_eq!(answer.status(), status);
        assert_eq!(
            answer.head.header("content-length").as_deref(),
            Some("26"),
            "{answer:?}"
        );
    }
}

fn line(client: &mut Connection) -> String {
    let mut line = String::new();
    client.reader.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

/// Reads a streamed response and the trailers that follow its last chunk.
fn with_trailers(client: &mut Connection) -> (String, Vec<String>) {
    assert_eq!(client.head().status(), 200);
    let mut body = Vec::new();
    loop {
        let size = usize::from_str_radix(&line(client), 16).unwrap();
        if size == 0 {
            break;
        }
        let mut data = vec![0; size + 2];
        client.reader.read_exact(&mut data).unwrap();
        body.extend_from_slice(&data[..size]);
    }
    let fields = std::iter::repeat_with(|| line(client)).take_while(|line| !line.is_empty());
    let fields = fields.collect();
    (String::from_utf8(body).unwrap(), fields)
}

/// llmlb holds back an incomplete last event, because it may contain usage. When trailers follow,
/// the client must receive the held text first and then the trailers.
#[test]
fn text_held_back_is_forwarded_in_front_of_the_trailers() {
    /// Beginning of an event that llmlb must hold back because usage may follow, although it never
    /// does.
    const BEGUN: &str = "data: {\"id\":\"c\"";
    let half_usage = USAGE.trim_end();
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let request_body = chat("Hello", true);
    for (name, last, last_without_usage) in [("begun", BEGUN, BEGUN), ("usage", half_usage, "")] {
        scripted.next(move |_, stream| {
            let _ = stream.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                  trailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n",
            );
            for piece in [WORD, STOP, last] {
                wire::chunk(stream, piece);
            }
            let _ = stream.write_all(b"0\r\nx-sum: 42\r\n\r\n");
        });
        for (client, body, last) in [
            ("asks", with_usage_option(request_body.clone()), last),
            ("does-not", request_body.to_string(), last_without_usage),
        ] {
            let expected = [WORD, STOP, last].concat();
            let id = format!("{name}-{client}");
            let mut client = Connection::open(server.address);
            let fields = "te: trailers\r\nconnection: te\r\ncontent-type: application/json\r\n";
            send_with(&mut client, "POST", &id, CHAT, fields, &body);
            let (text, trailers) = with_trailers(&mut client);
            assert_eq!(text, expected, "{id}");
            assert_eq!(trailers, ["x-sum: 42"], "{id}");
            connected(server.address, async |client| {
                let mut head = request(Method::POST, CHAT);
                let te = "trailers".parse().unwrap();
                head.headers_mut().insert("te", te);
                let answer = answer(testkit::h2_client::send(&client, head, &body).await).await;
                assert_eq!(answer.text(), expected, "{id}");
                assert_eq!(answer.trailers.unwrap()["x-sum"], "42", "{id}");
            });
            let record = records::one(&sandbox, &id);
            let (from, outcome) = match name {
                "usage" => ("reported", "complete"),
                _ => ("estimated", "cut"),
            };
            assert_eq!(record["tokens_from"], from, "{record:#}");
            assert_eq!(record["outcome"], outcome, "{record:#}");
        }
    }
}
