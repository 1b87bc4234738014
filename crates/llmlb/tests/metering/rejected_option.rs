//! Backends that reject the option `stream_options`, by which llmlb asks for usage, and backends that
//! reject a request for another reason.

use std::io::Write;
use std::net::TcpStream;

use serde_json::json;

use crate::records;
use crate::requests::{CHAT, chat, post};
use crate::stream::{DONE, STOP, Scripted, USAGE, WORD, send};
use testkit::{
    Received,
    backends::{UNPROBED, address, asked, backend_at, backend_of, close, serve},
    until, wire,
};

const REJECTION: &str =
    r#"{"error":{"message":"Unrecognized request argument supplied: stream_options"}}"#;

fn has_option(request: &Received) -> bool {
    request.text().contains("include_usage")
}

/// Responds with a stream. The stream has usage only if the request has the option
/// `stream_options`.
fn answer(request: &Received, stream: &mut TcpStream) {
    let usage = if has_option(request) { USAGE } else { "" };
    send(
        stream,
        "content-type: text/event-stream\r\n",
        [WORD, STOP, usage, DONE].concat().as_bytes(),
    );
}

fn reject_option(request: &Received, stream: &mut TcpStream) {
    if has_option(request) {
        wire::json(stream, 400, REJECTION);
    } else {
        answer(request, stream);
    }
}

#[test]
fn rejection_for_another_reason_is_forwarded_without_a_retry() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    let long = format!(r#"{{"error":{{"message":"{}"}}}}"#, "no ".repeat(50_000));
    for (number, (status, body)) in [
        (400, r#"{"error":{"message":"try again later"}}"#),
        (422, "no"),
        (400, ""),
        (422, long.as_str()),
    ]
    .into_iter()
    .enumerate()
    {
        for is_chunked in [false, true] {
            let before = asked(&scripted.mock).len();
            let response = body.to_owned();
            // The backend would serve a retry without `stream_options`, so that a wrong retry is
            // noticed. The error does not mention this option, so llmlb must forward the error and
            // not retry.
            scripted.next(move |request, stream| {
                if !has_option(request) {
                    return answer(request, stream);
                }
                if !is_chunked {
                    return wire::json(stream, status, &response);
                }
                let head = format!("HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n\r\n");
                let _ = stream.write_all(head.as_bytes());
                for piece in response.as_bytes().chunks(7000) {
                    wire::chunk(stream, std::str::from_utf8(piece).unwrap());
                }
                wire::end_stream(stream);
            });
            let id = format!("r-{number}-{is_chunked}");
            let refused = post(&server, &id, CHAT, &chat("Hello", true));
            assert_eq!(refused.status(), status, "{id}");
            assert_eq!(refused.text(), body, "{id}");
            assert_eq!(asked(&scripted.mock).len(), before + 1, "{id}");
            let record = records::one(&sandbox, &id);
            assert_eq!(record["status"], status, "{record:#}");
            assert_eq!(record["tokens"], 0, "{record:#}");
            assert_eq!(record["bytes"], body.len(), "{record:#}");
        }
    }
    // Rejections for another reason must not keep llmlb from asking this backend for usage in later
    // requests.
    scripted.next(answer);
    let answer = post(&server, "good", CHAT, &chat("Hello", true));
    assert_eq!(answer.text(), [WORD, STOP, DONE].concat());
    assert_eq!(records::one(&sandbox, "good")["tokens_from"], "reported");
}

/// Splits the name of the option across two chunks of the error. llmlb must still detect that the
/// backend rejects the option.
#[test]
fn rejection_of_the_option_is_detected_in_any_chunks() {
    let (front, end) = REJECTION.split_at(REJECTION.len() - 8);
    for status in [400, 422] {
        let sandbox = testkit::sandbox!();
        let scripted = Scripted::start();
        let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
        scripted.next(move |request, stream| {
            if !has_option(request) {
                return answer(request, stream);
            }
            let head = format!("HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n\r\n");
            let _ = stream.write_all(head.as_bytes());
            for piece in [front, end] {
                wire::chunk(stream, piece);
            }
            wire::end_stream(stream);
        });
        let answer = post(&server, "a", CHAT, &chat("Hello", true));
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(asked(&scripted.mock).len(), 2);
    }
}

/// The backend closes the connection within its rejection. The client must receive the part that
/// arrived, and see that the response was cut.
#[test]
fn rejection_cut_by_the_backend_is_cut_for_the_client() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    scripted.next(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 X\r\ncontent-length: 99\r\n\r\nno");
        close(stream);
    });
    let answer = post(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.status(), 400);
    assert!(answer.body.is_err());
    assert_eq!(records::one(&sandbox, "a")["outcome"], "cut");
}

#[test]
fn option_rejected_for_one_model_is_still_sent_for_others() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["m", "n"], |request, stream| {
        if request.text().contains(r#""model":"m""#) {
            reject_option(request, stream);
        } else {
            answer(request, stream);
        }
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for (id, model, from) in [
        ("first", "m", "estimated"),
        ("second", "m", "estimated"),
        ("other", "n", "reported"),
    ] {
        let mut request_body = chat("Hello", true);
        request_body["model"] = json!(model);
        let answer = post(&server, id, CHAT, &request_body);
        assert_eq!(answer.text(), [WORD, STOP, DONE].concat(), "{id}");
        let record = records::one(&sandbox, id);
        assert_eq!(record["tokens_from"], from, "{record:#}");
    }
    let with_option: Vec<_> = asked(&mock)
        .iter()
        .map(|request| has_option(request))
        .collect();
    assert_eq!(with_option, [true, false, false, true]);
    let warnings = server.process.stderr().matches("stream_options").count();
    assert_eq!(warnings, 1, "{}", server.process.stderr());
}

/// After a backend that rejected `stream_options` was down, another program that accepts the option
/// may listen at its address. So llmlb sends the option again.
#[test]
fn option_is_sent_again_after_the_backend_was_down() {
    let sandbox = testkit::sandbox!();
    let address = address();
    let old = backend_at(address, &["m"], reject_option);
    let server = serve(&sandbox, &[&old], &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    post(&server, "old", CHAT, &chat("Hello", true));
    assert_eq!(records::one(&sandbox, "old")["tokens_from"], "estimated");
    old.stop();
    let is_up = |wanted: bool| server.status()["backends"][0]["up"] == wanted;
    until("the backend is down", || is_up(false));
    let _new = backend_at(address, &["m"], answer);
    until("the backend is up", || is_up(true));
    post(&server, "new", CHAT, &chat("Hello", true));
    assert_eq!(records::one(&sandbox, "new")["tokens_from"], "reported");
}

/// A backend may reject the option only because the request is not a stream for it. That rejection
/// says nothing about streams.
#[test]
fn option_rejected_for_a_plain_request_is_still_sent_for_streams() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    scripted.next(|request, stream| {
        if request.text().contains(r#""stream":true"#) {
            answer(request, stream);
        } else if has_option(request) {
            wire::json(stream, 400, REJECTION);
        } else {
            wire::json(stream, 200, r#"{"choices":[]}"#);
        }
    });
    let mut request_body = chat("Hello", true);
    request_body["stream"] = json!("false");
    let plain = post(&server, "plain", CHAT, &request_body);
    assert_eq!(plain.text(), r#"{"choices":[]}"#);
    post(&server, "stream", CHAT, &chat("Hello", true));
    let record = records::one(&sandbox, "stream");
    assert_eq!(record["tokens_from"], "reported", "{record:#}");
}
