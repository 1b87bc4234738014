//! Backends that do not take the option by which usage is asked for, and those that say no for
//! another reason.

use std::io::Write;
use std::net::TcpStream;

use serde_json::json;

use crate::ask::{CHAT, ask, chat};
use crate::records;
use crate::stream::{DONE, STOP, Scripted, USAGE, WORD, send};
use testkit::{
    Received,
    backends::{UNPROBED, address, asked, backend_at, backend_of, close, serve},
    until, wire,
};

const OBJECTION: &str =
    r#"{"error":{"message":"Unrecognized request argument supplied: stream_options"}}"#;

fn has_option(request: &Received) -> bool {
    request.text().contains("include_usage")
}

/// Answers a stream, with usage if that is asked for.
fn answer(request: &Received, stream: &mut TcpStream) {
    let usage = if has_option(request) { USAGE } else { "" };
    send(
        stream,
        "content-type: text/event-stream\r\n",
        [WORD, STOP, usage, DONE].concat().as_bytes(),
    );
}

/// Rejects the option, and takes everything else.
fn object(request: &Received, stream: &mut TcpStream) {
    if has_option(request) {
        wire::json(stream, 400, OBJECTION);
    } else {
        answer(request, stream);
    }
}

#[test]
fn a_refusal_for_another_reason_is_passed_on_and_nothing_is_asked_again() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
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
            let said = body.to_owned();
            // It says no with the option, and would say yes without.
            scripted.next(move |request, stream| {
                if !has_option(request) {
                    return answer(request, stream);
                }
                if !is_chunked {
                    return wire::json(stream, status, &said);
                }
                let head = format!("HTTP/1.1 {status} X\r\ntransfer-encoding: chunked\r\n\r\n");
                let _ = stream.write_all(head.as_bytes());
                for piece in said.as_bytes().chunks(7000) {
                    wire::chunk(stream, std::str::from_utf8(piece).unwrap());
                }
                wire::end_stream(stream);
            });
            let id = format!("r-{number}-{is_chunked}");
            let refused = ask(&server, &id, CHAT, &chat("Hello", true));
            assert_eq!(refused.status(), status, "{id}");
            assert_eq!(refused.text(), body, "{id}");
            assert_eq!(asked(&scripted.mock).len(), before + 1, "{id}");
            let record = records::one(&place, &id);
            assert_eq!(record["status"], status, "{record:#}");
            assert_eq!(record["tokens"], 0, "{record:#}");
            assert_eq!(record["bytes"], body.len(), "{record:#}");
        }
    }
    // It is asked all the same.
    scripted.next(answer);
    let answer = ask(&server, "good", CHAT, &chat("Hello", true));
    assert_eq!(answer.text(), [WORD, STOP, DONE].concat());
    assert_eq!(records::one(&place, "good")["tokens_from"], "reported");
}

/// However its words come: the name is looked for in all that comes.
#[test]
fn an_objection_is_understood_in_any_pieces() {
    let (front, end) = OBJECTION.split_at(OBJECTION.len() - 8);
    for status in [400, 422] {
        let place = testkit::sandbox!();
        let scripted = Scripted::start();
        let server = serve(&place, &[&scripted.mock], UNPROBED);
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
        let answer = ask(&server, "a", CHAT, &chat("Hello", true));
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert_eq!(asked(&scripted.mock).len(), 2);
    }
}

/// A refusal that breaks off is passed on as far as it goes.
#[test]
fn a_refusal_that_is_cut_is_seen_to_be_cut() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
    scripted.next(|_, stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 X\r\ncontent-length: 99\r\n\r\nno");
        close(stream);
    });
    let answer = ask(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.status(), 400);
    assert!(answer.body.is_err());
    assert_eq!(records::one(&place, "a")["outcome"], "cut");
}

#[test]
fn who_objects_for_one_model_is_asked_for_the_others() {
    let place = testkit::sandbox!();
    let mock = backend_of(&["m", "n"], |request, stream| {
        if request.text().contains(r#""model":"m""#) {
            object(request, stream);
        } else {
            answer(request, stream);
        }
    });
    let server = serve(&place, &[&mock], UNPROBED);
    for (id, model, from) in [
        ("first", "m", "estimated"),
        ("second", "m", "estimated"),
        ("other", "n", "reported"),
    ] {
        let mut question = chat("Hello", true);
        question["model"] = json!(model);
        let answer = ask(&server, id, CHAT, &question);
        assert_eq!(answer.text(), [WORD, STOP, DONE].concat(), "{id}");
        let record = records::one(&place, id);
        assert_eq!(record["tokens_from"], from, "{record:#}");
    }
    let with_option: Vec<_> = asked(&mock).iter().map(|one| has_option(one)).collect();
    assert_eq!(with_option, [true, false, false, true]);
    let warned = server.process.stderr().matches("stream_options").count();
    assert_eq!(warned, 1, "{}", server.process.stderr());
}

/// It may be another program by then.
#[test]
fn a_backend_that_comes_up_anew_is_asked_again() {
    let place = testkit::sandbox!();
    let address = address();
    let old = backend_at(address, &["m"], object);
    let server = serve(&place, &[&old], &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    ask(&server, "old", CHAT, &chat("Hello", true));
    assert_eq!(records::one(&place, "old")["tokens_from"], "estimated");
    old.stop();
    let is_up = |wanted: bool| server.status()["backends"][0]["up"] == wanted;
    until("it is down", || is_up(false));
    let _new = backend_at(address, &["m"], answer);
    until("it is up", || is_up(true));
    ask(&server, "new", CHAT, &chat("Hello", true));
    assert_eq!(records::one(&place, "new")["tokens_from"], "reported");
}

/// What it objects to is a stream that is none: that says nothing about streams.
#[test]
fn who_objects_to_a_stream_that_is_none_is_asked_for_those_that_are() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
    scripted.next(|request, stream| {
        if request.text().contains(r#""stream":true"#) {
            answer(request, stream);
        } else if has_option(request) {
            wire::json(stream, 400, OBJECTION);
        } else {
            wire::json(stream, 200, r#"{"choices":[]}"#);
        }
    });
    let mut question = chat("Hello", true);
    question["stream"] = json!("false");
    let plain = ask(&server, "plain", CHAT, &question);
    assert_eq!(plain.text(), r#"{"choices":[]}"#);
    ask(&server, "stream", CHAT, &chat("Hello", true));
    let record = records::one(&place, "stream");
    assert_eq!(record["tokens_from"], "reported", "{record:#}");
}
