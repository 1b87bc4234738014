//! Usage reports of backends in all their forms, and estimates where there is none.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, post};
use crate::responses::{assert_agree, bodies_of_every_api, produced, world};
use crate::stream::{DONE, STOP, Scripted, USAGE, WORD, send, streaming};
use testkit::{
    FakeLlm,
    api_server::Reports,
    backends::{UNPROBED, asked, backend, serve},
    wire,
};

/// Checks that the tokens of the record are an estimate and marked as such.
fn assert_estimated(record: &Value) {
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
    assert_eq!(record["estimated_tokens"], record["tokens"], "{record:#}");
    assert!(record["prompt_tokens"].as_u64() > Some(0), "{record:#}");
}

#[test]
fn cumulative_repeated_and_early_usage_reports_are_counted_once() {
    for reports in [Reports::SoFar, Reports::Twice, Reports::WithTheReason] {
        let sandbox = testkit::sandbox!();
        let (backend, server) = world(&sandbox, reports);
        for (path, api, mut request_body) in bodies_of_every_api() {
            request_body["model"] = json!("m");
            request_body["stream"] = json!(api != "embeddings");
            assert_eq!(post(&server, api, path, &request_body).status(), 200);
            assert_agree(&records::one(&sandbox, api), &produced(&backend, api));
        }
    }
}

#[test]
fn rejected_usage_option_is_retried_without_it_and_remembered() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::Refuses);
    for (number, id) in ["first", "second", "third"].into_iter().enumerate() {
        let answer = post(&server, id, CHAT, &chat("[tokens 20] [say a b ]", true));
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert!(answer.text().ends_with(DONE), "{answer:?}");
        // The backend rejects the usage option. Only the first request may be sent with it,
        // otherwise every request would need two attempts.
        let sent = asked(&backend.mock);
        assert_eq!(sent.len(), number + 2);
        let with_option = |body: &Value| body.get("stream_options").is_some();
        let bodies = sent
            .iter()
            .map(|request| serde_json::from_slice(&request.body).unwrap());
        let had_option: Vec<_> = bodies.map(|body| with_option(&body)).collect();
        assert_eq!(had_option.iter().filter(|had| **had).count(), 1);
        assert!(had_option[0]);
        let record = records::one(&sandbox, id);
        assert_eq!(record["outcome"], "complete");
        assert_eq!(record["attempts"], json!([]));
        assert_estimated(&record);
        let completion = record["completion_tokens"].as_u64().unwrap();
        assert!(completion.abs_diff(20) <= 5, "{record:#}");
    }
    // A response that is not streamed has usage although the option was not sent, so its tokens
    // must be the reported ones.
    post(&server, "plain", CHAT, &chat("Hello", false));
    assert_agree(
        &records::one(&sandbox, "plain"),
        &produced(&backend, "plain"),
    );
    assert_eq!(records::all(&sandbox).len(), 4);
}

#[test]
fn rejection_of_a_clients_own_usage_option_is_forwarded() {
    let sandbox = testkit::sandbox!();
    let (backend, server) = world(&sandbox, Reports::Refuses);
    let mut request_body = chat("Hello", true);
    request_body["stream_options"] = json!({ "include_usage": true });
    let answer = post(&server, "a", CHAT, &request_body);
    assert_eq!(answer.status(), 400, "{answer:?}");
    assert!(answer.text().contains("stream_options"));
    assert_eq!(asked(&backend.mock).len(), 1);
    let record = records::one(&sandbox, "a");
    assert_eq!(
        (&record["status"], &record["tokens"]),
        (&json!(400), &json!(0))
    );
    // The client itself asked for usage, so the rejection does not show if the backend would reject
    // the option that llmlb adds. llmlb must still add it.
    post(&server, "b", CHAT, &chat("Hello", true));
    post(&server, "c", CHAT, &chat("Hello", true));
    assert_eq!(asked(&backend.mock).len(), 4);
}

#[test]
fn bad_request_response_does_not_stop_the_usage_option() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
    scripted.next(|_, stream| wire::json(stream, 400, r#"{"error":{"message":"no"}}"#));
    let answer = post(&server, "bad", CHAT, &chat("Hello", true));
    assert_eq!((answer.status(), answer.text().contains("no")), (400, true));
    assert_eq!(records::one(&sandbox, "bad")["status"], 400);
    scripted.next(|request, stream| {
        assert!(request.text().contains("include_usage"));
        send(
            stream,
            "content-type: text/event-stream\r\n",
            [WORD, STOP, USAGE, DONE].concat().as_bytes(),
        );
    });
    let answer = post(&server, "good", CHAT, &chat("Hello", true));
    assert_eq!(answer.text(), [WORD, STOP, DONE].concat());
    assert_eq!(records::one(&sandbox, "good")["tokens"], 12);
}

#[test]
fn missing_usage_is_estimated_and_marked_as_an_estimate() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = world(&sandbox, Reports::Never);
    for is_stream in [false, true] {
        let id = format!("stream-{is_stream}");
        let words = chat("[tokens 40] [say a b ]", is_stream);
        assert_eq!(post(&server, &id, CHAT, &words).status(), 200);
        let record = records::one(&sandbox, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_estimated(&record);
        if is_stream {
            let completion = record["completion_tokens"].as_u64().unwrap();
            assert!(completion.abs_diff(40) <= 10, "{record:#}");
        }
    }
}

/// Serves one stream of these pieces and returns its record.
fn of_stream(pieces: &[&str]) -> Value {
    let sandbox = testkit::sandbox!();
    let mock = streaming(pieces);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let answer = post(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.status(), 200);
    let mut expected = pieces.concat();
    for usage in [USAGE, USAGE] {
        expected = expected.replacen(usage, "", 1);
    }
    assert_eq!(answer.text(), expected);
    assert_eq!(records::all(&sandbox).len(), 1);
    records::one(&sandbox, "a")
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
fn stream_with_a_finish_reason_is_complete_without_done() {
    for pieces in [&[WORD, STOP, USAGE][..], &[WORD, WORD, STOP, USAGE, USAGE]] {
        let record = of_stream(pieces);
        assert_eq!(tokens(&record), ("complete", "reported", 9, 3));
    }
    let record = of_stream(&[WORD, WORD, STOP]);
    assert_eq!(record["outcome"], "complete", "{record:#}");
    assert_estimated(&record);
}

#[test]
fn stream_without_a_finish_reason_is_recorded_as_cut() {
    let record = of_stream(&[WORD, WORD, WORD]);
    assert_eq!(record["outcome"], "cut", "{record:#}");
    assert_eq!(record["completion_tokens"], 3, "{record:#}");
    assert_estimated(&record);
}

#[test]
fn error_within_a_stream_counts_the_text_received_so_far() {
    const ERROR: &str = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    let record = of_stream(&[WORD, WORD, ERROR]);
    assert_eq!(record["outcome"], "cut", "{record:#}");
    assert_eq!(record["completion_tokens"], 2, "{record:#}");
    assert_estimated(&record);
    // A stream with an error and no text has nothing to estimate, so its record must have no
    // tokens.
    let record = of_stream(&[ERROR, DONE]);
    assert_eq!(record["tokens_from"], "none", "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
}

#[test]
fn stream_with_an_error_after_its_first_words_is_not_complete() {
    const ERROR: &str = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    // If generation fails, vLLM sends an error event and then `[DONE]`. Such a stream must not be
    // recorded as complete.
    let record = of_stream(&[WORD, WORD, ERROR, DONE]);
    assert_ne!(record["outcome"], "complete", "{record:#}");
    assert_eq!(record["completion_tokens"], 2, "{record:#}");
}

#[test]
fn usage_of_null_is_no_report() {
    let null = WORD.replace("\"id\":\"c\"", "\"usage\":null,\"id\":\"c\"");
    let record = of_stream(&[&null, &null, STOP, USAGE, DONE]);
    assert_eq!(tokens(&record), ("complete", "reported", 9, 3));
    let record = of_stream(&[&null, &null, STOP, DONE]);
    assert_eq!(record["tokens_from"], "estimated", "{record:#}");
}

#[test]
fn text_that_looks_like_usage_is_text() {
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
fn compressed_response_is_forwarded_and_estimated() {
    let sandbox = testkit::sandbox!();
    let scripted = Scripted::start();
    let server = serve(&sandbox, &[&scripted.mock], UNPROBED);
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
        let answer = post(&server, &id, CHAT, &chat("Hello", is_stream));
        assert_eq!(
            answer.head.header("content-encoding").as_deref(),
            Some("gzip")
        );
        assert_eq!(answer.body.as_ref().unwrap(), &packed);
        let record = records::one(&sandbox, &id);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_estimated(&record);
        assert!(record["completion_tokens"].as_u64() > Some(0), "{record:#}");
    }
    // llmlb cannot remove usage from a compressed stream. It must not ask this backend for usage
    // again, because the client would receive it unasked.
    let plain = gzip(&[WORD, WORD, WORD, STOP, DONE].concat());
    let bytes = plain.clone();
    scripted.next(move |request, stream| {
        let fields = "content-type: text/event-stream\r\ncontent-encoding: gzip\r\n";
        assert!(!request.text().contains("stream_options"));
        send(stream, fields, &bytes);
    });
    let answer = post(&server, "again", CHAT, &chat("Hello", true));
    assert_eq!(answer.body.as_ref().unwrap(), &plain);
    assert_estimated(&records::one(&sandbox, "again"));
}

/// System prompts, tools and documents are part of the prompt. Without them the estimate of a
/// request could be far too small.
#[test]
fn estimate_counts_all_text_that_the_model_reads() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|_, stream| wire::json(stream, 200, r#"{"results":[],"choices":[]}"#));
    let server = serve(&sandbox, &[&mock], UNPROBED);
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
        let mut request_body = json!({ "model": "m" });
        for (name, value) in more.as_object().unwrap() {
            request_body[name] = value.clone();
        }
        assert_eq!(post(&server, id, path, &request_body).status(), 200);
        let record = records::one(&sandbox, id);
        assert_estimated(&record);
        let prompt = record["prompt_tokens"].as_u64().unwrap();
        assert!((1000..1100).contains(&prompt), "{record:#}");
    }
}

/// Some backends accept other values than `true` for `stream` and `include_usage`, such as 1. These
/// requests must be metered as streams too.
#[test]
fn stream_requested_with_other_values_than_true_reports_usage() {
    let sandbox = testkit::sandbox!();
    let mock = backend(|request, stream| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let is_asked = body["stream_options"]["include_usage"] == true;
        let usage = if is_asked { USAGE } else { "" };
        let fields = "content-type: text/event-stream\r\n";
        send(
            stream,
            fields,
            [WORD, STOP, usage, DONE].concat().as_bytes(),
        );
    });
    let server = serve(&sandbox, &[&mock], UNPROBED);
    for (number, (is_stream, include_usage)) in [
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
        let mut request_body = chat("Hello", true);
        request_body["stream"] = is_stream;
        if let Some(include_usage) = include_usage {
            request_body["stream_options"] = json!({ "include_usage": include_usage });
        }
        let answer = post(&server, &id, CHAT, &request_body);
        assert_eq!(answer.text(), [WORD, STOP, DONE].concat(), "{request_body}");
        let record = records::one(&sandbox, &id);
        assert_eq!(
            tokens(&record),
            ("complete", "reported", 9, 3),
            "{request_body}"
        );
        assert_eq!(record["stream"], true, "{request_body}");
    }
}

fn completion(tokens: u64) -> String {
    json!({
        "choices": [{ "index": 0, "message": { "content": "Hi" }, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 5, "completion_tokens": tokens },
    })
    .to_string()
}

fn reporting_backend() -> FakeLlm {
    backend(|_, stream| wire::json(stream, 200, &completion(7)))
}

/// A wrong or missing media type must not bypass metering.
#[test]
fn request_of_any_media_type_is_metered() {
    let sandbox = testkit::sandbox!();
    let mock = reporting_backend();
    let server = serve(&sandbox, &[&mock], UNPROBED);
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
        let request_body = chat("Hello", false).to_string();
        crate::requests::send_with(&mut client, "POST", &id, CHAT, &fields, &request_body);
        assert_eq!(client.answer().status(), 200);
        let record = records::one(&sandbox, &id);
        assert_eq!(tokens(&record), ("complete", "reported", 5, 7), "{kind:?}");
        assert_eq!(record["api"], "chat", "{kind:?}");
    }
}

/// Backends that normalize paths accept every spelling, which must not bypass metering.
#[test]
fn request_in_any_spelling_of_its_path_is_metered_or_rejected() {
    let sandbox = testkit::sandbox!();
    let mock = reporting_backend();
    let server = serve(&sandbox, &[&mock], UNPROBED);
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
        let answer = post(&server, &id, path, &chat("Hello", false));
        // A spelling may be rejected, but not served without being metered.
        if answer.status() == 200 {
            let record = records::one(&sandbox, &id);
            assert_eq!(tokens(&record), ("complete", "reported", 5, 7), "{path}");
        } else {
            assert_eq!(answer.status(), 400, "{answer:?}");
        }
    }
    assert!(records::all(&sandbox).len() >= 3);
}
