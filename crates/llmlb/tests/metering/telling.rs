//! Backends have many ways to tell their usage, and some tell none.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::answers::{assert_agree, produced, questions, world};
use crate::ask::{CHAT, ask, chat};
use crate::records;
use crate::stream::{DONE, STOP, Scripted, USAGE, WORD, send, streaming};
use testkit::{
    FakeLlm,
    api_server::Reports,
    backends::{UNPROBED, asked, backend, serve},
    wire,
};

/// A guess, and marked as one.
fn assert_estimated(record: &Value) {
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    assert_eq!(record["estimated_tokens"], record["tokens"], "{record:#}");
    assert!(record["prompt_tokens"].as_u64() > Some(0), "{record:#}");
}

#[test]
fn usage_so_far_usage_twice_and_usage_with_the_reason_are_counted_once() {
    for reports in [Reports::SoFar, Reports::Twice, Reports::WithTheReason] {
        let place = testkit::sandbox!();
        let (backend, server) = world(&place, reports);
        for (path, api, mut question) in questions() {
            question["model"] = json!("m");
            question["stream"] = json!(api != "embeddings");
            assert_eq!(ask(&server, api, path, &question).status(), 200);
            assert_agree(&records::one(&place, api), &produced(&backend, api));
        }
    }
}

#[test]
fn a_backend_that_refuses_the_option_is_asked_again_without_it_and_remembered() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::Refuses);
    for (number, id) in ["first", "second", "third"].into_iter().enumerate() {
        let answer = ask(&server, id, CHAT, &chat("[tokens 20] [say a b ]", true));
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert!(answer.text().ends_with(DONE), "{answer:?}");
        // Once with the option, and never again.
        let sent = asked(&backend.mock);
        assert_eq!(sent.len(), number + 2);
        let with_option = |body: &Value| body.get("stream_options").is_some();
        let bodies = sent
            .iter()
            .map(|one| serde_json::from_slice(&one.body).unwrap());
        let refused: Vec<_> = bodies.map(|body| with_option(&body)).collect();
        assert_eq!(refused.iter().filter(|one| **one).count(), 1);
        assert!(refused[0]);
        let record = records::one(&place, id);
        assert_eq!(record["outcome"], "complete");
        assert_eq!(record["attempts"], json!([]));
        assert_estimated(&record);
        let completion = record["completion_tokens"].as_u64().unwrap();
        assert!(completion.abs_diff(20) <= 5, "{record:#}");
    }
    // What is not streamed tells its usage unasked.
    ask(&server, "plain", CHAT, &chat("Hello", false));
    assert_agree(&records::one(&place, "plain"), &produced(&backend, "plain"));
    assert_eq!(records::all(&place).len(), 4);
}

#[test]
fn a_client_that_asks_for_what_its_backend_refuses_is_told_so() {
    let place = testkit::sandbox!();
    let (backend, server) = world(&place, Reports::Refuses);
    let mut question = chat("Hello", true);
    question["stream_options"] = json!({ "include_usage": true });
    let answer = ask(&server, "a", CHAT, &question);
    assert_eq!(answer.status(), 400, "{answer:?}");
    assert!(answer.text().contains("stream_options"));
    assert_eq!(asked(&backend.mock).len(), 1);
    let record = records::one(&place, "a");
    assert_eq!(
        (&record["status"], &record["tokens"]),
        (&json!(400), &json!(0))
    );
    // That was the client's own wish: it says nothing about ours.
    ask(&server, "b", CHAT, &chat("Hello", true));
    ask(&server, "c", CHAT, &chat("Hello", true));
    assert_eq!(asked(&backend.mock).len(), 4);
}

#[test]
fn a_bad_request_does_not_make_a_backend_one_that_refuses_the_option() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
    scripted.next(|_, stream| wire::json(stream, 400, r#"{"error":{"message":"no"}}"#));
    let answer = ask(&server, "bad", CHAT, &chat("Hello", true));
    assert_eq!((answer.status(), answer.text().contains("no")), (400, true));
    assert_eq!(records::one(&place, "bad")["status"], 400);
    scripted.next(|request, stream| {
        assert!(request.text().contains("include_usage"));
        send(
            stream,
            "content-type: text/event-stream\r\n",
            [WORD, STOP, USAGE, DONE].concat().as_bytes(),
        );
    });
    let answer = ask(&server, "good", CHAT, &chat("Hello", true));
    assert_eq!(answer.text(), [WORD, STOP, DONE].concat());
    assert_eq!(records::one(&place, "good")["tokens"], 12);
}

#[test]
fn where_no_usage_is_told_it_is_estimated_and_marked() {
    let place = testkit::sandbox!();
    let (_backend, server) = world(&place, Reports::Never);
    for is_stream in [false, true] {
        let id = format!("stream-{is_stream}");
        let words = chat("[tokens 40] [say a b ]", is_stream);
        assert_eq!(ask(&server, &id, CHAT, &words).status(), 200);
        let record = records::one(&place, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_estimated(&record);
        if is_stream {
            let completion = record["completion_tokens"].as_u64().unwrap();
            assert!(completion.abs_diff(40) <= 10, "{record:#}");
        }
    }
}

/// One stream of these pieces: its record.
fn of_stream(pieces: &[&str]) -> Value {
    let place = testkit::sandbox!();
    let mock = streaming(pieces);
    let server = serve(&place, &[&mock], UNPROBED);
    let answer = ask(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.status(), 200);
    let mut expected = pieces.concat();
    for usage in [USAGE, USAGE] {
        expected = expected.replacen(usage, "", 1);
    }
    assert_eq!(answer.text(), expected);
    assert_eq!(records::all(&place).len(), 1);
    records::one(&place, "a")
}

fn tokens(record: &Value) -> (&str, &str, u64, u64) {
    (
        record["outcome"].as_str().unwrap(),
        record["tokens_from"].as_str().unwrap(),
        record["prompt_tokens"].as_u64().unwrap(),
        record["completion_tokens"].as_u64().unwrap(),
    )
}

#[test]
fn a_stream_without_its_end_mark_is_whole_all_the_same() {
    for pieces in [&[WORD, STOP, USAGE][..], &[WORD, WORD, STOP, USAGE, USAGE]] {
        let record = of_stream(pieces);
        assert_eq!(tokens(&record), ("complete", "reported", 9, 3));
    }
    let record = of_stream(&[WORD, WORD, STOP]);
    assert_eq!(record["outcome"], "complete", "{record:#}");
    assert_estimated(&record);
}

#[test]
fn a_stream_that_ends_without_a_reason_was_cut() {
    let record = of_stream(&[WORD, WORD, WORD]);
    assert_eq!(record["outcome"], "cut", "{record:#}");
    assert_eq!(record["completion_tokens"], 3, "{record:#}");
    assert_estimated(&record);
}

#[test]
fn an_error_within_a_stream_leaves_what_was_said_counted() {
    const ERROR: &str = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    let record = of_stream(&[WORD, WORD, ERROR]);
    assert_eq!(record["outcome"], "cut", "{record:#}");
    assert_eq!(record["completion_tokens"], 2, "{record:#}");
    assert_estimated(&record);
    // Nothing was said: there is nothing to count.
    let record = of_stream(&[ERROR, DONE]);
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
}

#[test]
fn an_answer_that_errs_after_its_first_words_is_not_complete() {
    const ERROR: &str = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    // So vLLM ends a stream that fails.
    let record = of_stream(&[WORD, WORD, ERROR, DONE]);
    assert_ne!(record["outcome"], "complete", "{record:#}");
    assert_eq!(record["completion_tokens"], 2, "{record:#}");
}

#[test]
fn a_usage_of_null_is_none() {
    let null = WORD.replace("\"id\":\"c\"", "\"usage\":null,\"id\":\"c\"");
    let record = of_stream(&[&null, &null, STOP, USAGE, DONE]);
    assert_eq!(tokens(&record), ("complete", "reported", 9, 3));
    let record = of_stream(&[&null, &null, STOP, DONE]);
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
}

#[test]
fn a_word_that_looks_like_usage_is_a_word() {
    let word = WORD.replace("Hi", r#"\"usage\":{\"prompt_tokens\":777,\"choices\":[]}"#);
    let record = of_stream(&[&word, STOP, USAGE, DONE]);
    assert_eq!(tokens(&record), ("complete", "reported", 9, 3));
}

fn gzip(text: &str) -> Vec<u8> {
    let mut child = Command::new("gzip")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap().stdout
}

#[test]
fn an_answer_that_is_compressed_against_our_will_passes_and_is_estimated() {
    let place = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&place, &[&scripted.mock], UNPROBED);
    for is_stream in [false, true] {
        let kind = if is_stream {
            "text/event-stream"
        } else {
            "application/json"
        };
        let packed = gzip(&[WORD, WORD, WORD, STOP, USAGE, DONE].concat());
        let (kind, bytes) = (kind.to_owned(), packed.clone());
        scripted.next(move |request, stream| {
            let accepted = request.head.header("accept-encoding");
            assert_eq!(accepted.as_deref(), Some("identity"));
            let fields = format!("content-type: {kind}\r\ncontent-encoding: gzip\r\n");
            send(stream, &fields, &bytes);
        });
        let id = format!("stream-{is_stream}");
        let answer = ask(&server, &id, CHAT, &chat("Hello", is_stream));
        assert_eq!(
            answer.head.header("content-encoding").as_deref(),
            Some("gzip")
        );
        assert_eq!(answer.body.as_ref().unwrap(), &packed);
        let record = records::one(&place, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_estimated(&record);
        assert!(record["completion_tokens"].as_u64() > Some(0), "{record:#}");
    }
    // What we ask it for cannot be kept from the client: it is asked no more.
    let plain = gzip(&[WORD, WORD, WORD, STOP, DONE].concat());
    let bytes = plain.clone();
    scripted.next(move |request, stream| {
        let fields = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
        assert!(!request.text().contains("stream_options"));
        send(stream, fields, &bytes);
    });
    let answer = ask(&server, "again", CHAT, &chat("Hello", true));
    assert_eq!(answer.body.as_ref().unwrap(), &plain);
    assert_estimated(&records::one(&place, "again"));
}

/// All that a model is given is part of its prompt.
#[test]
fn an_estimate_has_all_that_the_model_reads() {
    let place = testkit::sandbox!();
    let mock = backend(|_, stream| wire::json(stream, 200, r#"{"results":[],"choices":[]}"#));
    let server = serve(&place, &[&mock], UNPROBED);
    let long = "word ".repeat(800);
    let tool = json!([{ "type": "function", "function": { "name": "f", "description": long } }]);
    for (id, path, more) in [
        ("system", "/v1/messages", json!({ "system": long })),
        ("tools", "/v1/messages", json!({ "tools": tool })),
        (
            "instructions",
            "/v1/responses",
            json!({ "instructions": long }),
        ),
        ("chat-tools", CHAT, json!({ "tools": tool })),
        ("query", "/v1/rerank", json!({ "query": long })),
        ("documents", "/v1/rerank", json!({ "documents": [long] })),
        ("text_1", "/v1/score", json!({ "text_1": long })),
        ("text_2", "/v1/score", json!({ "text_2": [long] })),
    ] {
        let mut question = json!({ "model": "m" });
        for (name, value) in more.as_object().unwrap() {
            question[name] = value.clone();
        }
        assert_eq!(ask(&server, id, path, &question).status(), 200);
        let record = records::one(&place, id);
        assert_estimated(&record);
        let prompt = record["prompt_tokens"].as_u64().unwrap();
        assert!((1000..1100).contains(&prompt), "{record:#}");
    }
}

/// Some backends take more for a stream than `true`, and streams that they make are counted.
#[test]
fn a_stream_that_is_asked_for_in_other_words_tells_its_usage() {
    let place = testkit::sandbox!();
    let mock = backend(|request, stream| {
        let asked: Value = serde_json::from_slice(&request.body).unwrap();
        let is_asked = asked["stream_options"]["include_usage"] == true;
        let usage = if is_asked { USAGE } else { "" };
        let fields = "content-type: text/event-stream\r\n";
        send(
            stream,
            fields,
            [WORD, STOP, usage, DONE].concat().as_bytes(),
        );
    });
    let server = serve(&place, &[&mock], UNPROBED);
    for (number, (is_stream, wish)) in [
        (json!("true"), None),
        (json!(1), None),
        (json!("yes"), Some(json!(false))),
        (json!(true), Some(json!(0))),
        (json!(true), Some(json!("no"))),
        (json!(true), Some(json!("false"))),
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("r-{number}");
        let mut question = chat("Hello", true);
        question["stream"] = is_stream;
        if let Some(wish) = wish {
            question["stream_options"] = json!({ "include_usage": wish });
        }
        let answer = ask(&server, &id, CHAT, &question);
        assert_eq!(answer.text(), [WORD, STOP, DONE].concat(), "{question}");
        let record = records::one(&place, &id);
        assert_eq!(
            tokens(&record),
            ("complete", "reported", 9, 3),
            "{question}"
        );
        assert_eq!(record["stream"], true, "{question}");
    }
}

/// What a chat completion looks like that took so many tokens.
fn completion(tokens: u64) -> String {
    json!({
        "choices": [{ "index": 0, "message": { "content": "Hi" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 5, "completion_tokens": tokens },
    })
    .to_string()
}

fn telling() -> FakeLlm {
    backend(|_, stream| wire::json(stream, 200, &completion(7)))
}

/// Whoever calls JSON something else, or nothing, does not get it for nothing.
#[test]
fn a_question_of_any_media_type_is_counted() {
    let place = testkit::sandbox!();
    let mock = telling();
    let server = serve(&place, &[&mock], UNPROBED);
    for (number, kind) in [
        "application/json",
        "application/json; charset=utf-8",
        "application/x-www-form-urlencoded",
        "text/plain",
        "",
        "application/octet-stream",
        "text/json",
        "application/jsonl",
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("r-{number}");
        let fields = match kind {
            "" => String::new(),
            kind => format!("content-type: {kind}\r\n"),
        };
        let mut client = testkit::Connection::open(server.address);
        let question = chat("Hello", false).to_string();
        crate::ask::send_with(&mut client, "POST", &id, CHAT, &fields, &question);
        assert_eq!(client.answer().status(), 200);
        let record = records::one(&place, &id);
        assert_eq!(tokens(&record), ("complete", "reported", 5, 7), "{kind:?}");
        assert_eq!(record["api"], "chat", "{kind:?}");
    }
}

/// Backends that resolve a path take it in any spelling.
#[test]
fn a_question_in_any_spelling_of_its_path_is_counted() {
    let place = testkit::sandbox!();
    let mock = telling();
    let server = serve(&place, &[&mock], UNPROBED);
    for (number, path) in [
        CHAT,
        "/v1/chat/completions/",
        "/v1/chat/completions?beta=true",
        "/v1/chat/c%6fmpletions",
        "/v1/chat//completions",
    ]
    .into_iter()
    .enumerate()
    {
        let id = format!("r-{number}");
        let answer = ask(&server, &id, path, &chat("Hello", false));
        // It may be turned away at the door, but not served for nothing.
        if answer.status() == 200 {
            let record = records::one(&place, &id);
            assert_eq!(tokens(&record), ("complete", "reported", 5, 7), "{path}");
        } else {
            assert_eq!(answer.status(), 400, "{answer:?}");
        }
    }
    assert!(records::all(&place).len() >= 3);
}
