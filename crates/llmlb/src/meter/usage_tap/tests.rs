//! Tests that the token usage of a response is read, estimated and hidden correctly, in every
//! response format.

use super::UsageEvents::{Forward, Hide};
use super::*;

fn tap(api: Api, media: &str, usage_events: UsageEvents) -> UsageTap {
    let mut headers = HeaderMap::new();
    if !media.is_empty() {
        headers.insert(header::CONTENT_TYPE, media.parse().unwrap());
    }
    UsageTap::new(api, StatusCode::OK, &headers, usage_events)
}

fn pass(tap: &mut UsageTap, text: &str) -> String {
    let out = tap.pass(Bytes::copy_from_slice(text.as_bytes()));
    String::from_utf8(out.to_vec()).unwrap()
}

fn numbers(usage: TokenUsage) -> (u64, u64, u64, &'static str) {
    (
        usage.prompt,
        usage.completion,
        usage.total,
        usage.source.name(),
    )
}

const WORD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";

#[test]
fn usage_of_a_nested_object_at_the_end_of_a_chunk_is_ignored() {
    let first = r#"{"results":[{"id":1,"usage":{"prompt_tokens":7}}"#;
    let rest = r#"],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let mut tap = tap(Api::Chat, "application/json", Forward);
    pass(&mut tap, first);
    assert!(!tap.saw_end());
    pass(&mut tap, rest);
    assert!(tap.saw_end());
    let usage = tap.usage(0, || panic!("usage was reported"));
    assert_eq!(numbers(usage), (9, 1, 10, "reported"));
}

#[test]
fn usage_is_read_from_every_response_format() {
    let chat = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let line = "{\"done\":true,\"prompt_eval_count\":9,\"eval_count\":1}\n";
    let events = [WORD, USAGE, "data: [DONE]\n\n"].concat();
    for (api, media, text) in [
        (Api::Chat, "application/json", chat),
        (Api::Chat, "Application/JSON; charset=utf-8", chat),
        (Api::Chat, "application/problem+json", chat),
        (Api::Chat, "", chat),
        (Api::Chat, "text/plain; charset=utf-8", chat),
        (Api::OllamaChat, "application/x-ndjson", line),
        (Api::OllamaChat, "application/json; charset=utf-8", line),
        (Api::Chat, "text/event-stream", &events),
        (Api::Chat, "text/event-stream; charset=utf-8", &events),
        (Api::Chat, "", &events),
    ] {
        let mut tap = tap(api, media, Forward);
        assert!(!tap.saw_end() && !tap.may_shorten());
        for piece in [&text[..10], &text[10..]] {
            assert_eq!(pass(&mut tap, piece), piece);
        }
        assert!(tap.saw_end(), "{media} {text}");
        assert!(tap.finish().is_empty());
        assert!(tap.is_finished() && !tap.saw_error());
        let usage = tap.usage(0, || panic!("usage was reported"));
        assert_eq!(numbers(usage), (9, 1, 10, "reported"), "{media} {text}");
    }
}

#[test]
fn usage_is_hidden_from_a_client_that_did_not_request_it() {
    for media in ["text/event-stream", ""] {
        let mut tap = tap(Api::Chat, media, Hide);
        assert!(tap.may_shorten());
        let text = [WORD, USAGE].concat();
        assert_eq!(pass(&mut tap, &text), WORD);
        assert_eq!(pass(&mut tap, "data: "), "");
        assert_eq!(tap.finish(), "data: ");
    }
}

#[test]
fn tokens_that_are_not_reported_are_estimated() {
    let mut stream = tap(Api::Chat, "text/event-stream", Hide);
    pass(&mut stream, &[WORD, WORD, WORD].concat());
    assert_eq!(numbers(stream.usage(0, || 7)), (7, 3, 10, "estimated"));
    assert!(!stream.is_finished() && !stream.saw_end());

    let mut whole = tap(Api::Chat, "application/json", Forward);
    pass(
        &mut whole,
        &format!(r#"{{"choices":["{}"]}}"#, "x".repeat(784)),
    );
    assert_eq!(numbers(whole.usage(800, || 7)), (7, 100, 107, "estimated"));
    assert!(whole.is_finished());

    let mut vectors = tap(Api::Embeddings, "application/json", Forward);
    pass(&mut vectors, r#"{"data":[{"embedding":[0.1,0.2]}]}"#);
    assert_eq!(numbers(vectors.usage(0, || 7)), (7, 0, 7, "estimated"));

    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
    headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
    let mut compressed = UsageTap::new(Api::Chat, StatusCode::OK, &headers, Hide);
    assert_eq!(pass(&mut compressed, &"x".repeat(400)).len(), 400);
    assert_eq!(
        numbers(compressed.usage(400, || 7)),
        (7, 100, 107, "estimated")
    );
}

#[test]
fn completion_of_a_pending_response_is_not_estimated() {
    for (status, expected) in [
        ("queued", (7, 0, 7, "estimated")),
        ("in_progress", (7, 0, 7, "estimated")),
        ("completed", (7, 14, 21, "estimated")),
    ] {
        let mut pending = tap(Api::Responses, "application/json", Forward);
        let text = format!(
            r#"{{"status":"{status}","usage":null,"instructions":"{:0>400}"}}"#,
            0
        );
        pass(&mut pending, &text);
        assert_eq!(
            numbers(pending.usage(text.len() as u64, || 7)),
            expected,
            "{status}"
        );
    }
}

#[test]
fn cut_stream_of_the_messages_api_counts_the_received_tokens() {
    let mut stream = tap(Api::Messages, "text/event-stream", Forward);
    pass(
        &mut stream,
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
    );
    let word = "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n";
    pass(&mut stream, &word.repeat(5));
    assert_eq!(numbers(stream.usage(0, || 0)), (25, 5, 30, "estimated"));
    pass(
        &mut stream,
        "data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":4}}\n\n",
    );
    assert_eq!(numbers(stream.usage(0, || 0)), (25, 4, 29, "reported"));
}

#[test]
fn usage_reported_before_a_stream_was_cut_is_a_lower_bound() {
    let reporting = |usage: &str| WORD.replacen('{', &format!("{{\"usage\":{usage},"), 1);
    for (usage, expected) in [
        (
            r#"{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}"#,
            (7, 3, 10, "estimated"),
        ),
        (
            r#"{"prompt_tokens":9,"completion_tokens":1}"#,
            (9, 3, 12, "estimated"),
        ),
        (
            r#"{"prompt_tokens":9,"completion_tokens":5,"total_tokens":20}"#,
            (9, 5, 20, "estimated"),
        ),
    ] {
        let mut stream = tap(Api::Chat, "text/event-stream", Hide);
        pass(&mut stream, &[&reporting(usage), WORD, WORD].concat());
        assert_eq!(numbers(stream.usage(0, || 7)), expected, "{usage}");
    }
    // Anthropic's first event may have no output tokens. The completion must then be estimated.
    let mut stream = tap(Api::Messages, "text/event-stream", Forward);
    let begin =
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25}}}\n\n";
    let word = "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n";
    pass(&mut stream, &[begin, word, word].concat());
    assert_eq!(numbers(stream.usage(0, || 7)), (25, 2, 27, "estimated"));
    // The stream ends with `message_stop`, but no event has output tokens. So the completion stays
    // an estimate although the stream is complete.
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    pass(&mut stream, stop);
    assert!(stream.is_finished());
    assert_eq!(numbers(stream.usage(0, || 7)), (25, 2, 27, "estimated"));
}

#[test]
fn partial_or_invalid_report_is_completed_by_the_estimate() {
    for (usage, expected) in [
        (r#"{"prompt_tokens":9}"#, (9, 100, 109, "estimated")),
        (r#"{"completion_tokens":4}"#, (7, 4, 11, "estimated")),
        (r#"{"total_tokens":20}"#, (7, 13, 20, "estimated")),
        (r#"{"total_tokens":5}"#, (7, 100, 107, "estimated")),
        (
            r#"{"prompt_tokens":9,"total_tokens":20}"#,
            (9, 11, 20, "estimated"),
        ),
        (
            r#"{"completion_tokens":4,"total_tokens":20}"#,
            (16, 4, 20, "estimated"),
        ),
        (
            r#"{"prompt_tokens":null,"completion_tokens":1.5}"#,
            (7, 100, 107, "estimated"),
        ),
        // A prompt that is not empty cannot have 0 tokens, so a reported 0 must be replaced by the
        // estimate.
        (
            r#"{"prompt_tokens":0,"completion_tokens":4,"total_tokens":4}"#,
            (7, 4, 11, "estimated"),
        ),
        (
            r#"{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}"#,
            (9, 0, 9, "reported"),
        ),
    ] {
        let begin = format!(r#"{{"usage":{usage},"choices":[""#);
        let text = format!(r#"{begin}{}"]}}"#, "x".repeat(797 - begin.len()));
        for is_whole in [false, true] {
            let mut tap = tap(Api::Chat, "application/json", Forward);
            if is_whole {
                tap.pass_complete(Bytes::from(text.clone()));
            } else {
                pass(&mut tap, &text);
            }
            assert_eq!(numbers(tap.usage(800, || 7)), expected, "{usage}");
        }
    }
    let mut empty = tap(Api::Embeddings, "application/json", Forward);
    pass(
        &mut empty,
        r#"{"usage":{"prompt_tokens":0,"total_tokens":0}}"#,
    );
    assert_eq!(numbers(empty.usage(0, || 0)), (0, 0, 0, "reported"));
    assert_eq!(numbers(empty.usage(0, || 7)), (7, 0, 7, "estimated"));
    let mut error = tap(Api::Chat, "application/json", Forward);
    pass(&mut error, r#"{"error":"no","usage":{"prompt_tokens":9}}"#);
    assert_eq!(numbers(error.usage(800, || 7)), (9, 0, 9, "estimated"));
}

#[test]
fn stream_that_reports_no_tokens_for_its_text_is_estimated() {
    let stop = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    for (usage, expected) in [
        (
            r#"{"prompt_tokens":9,"completion_tokens":0,"total_tokens":9}"#,
            (9, 2, 11, "estimated"),
        ),
        (
            r#"{"prompt_tokens":9,"completion_tokens":1,"total_tokens":10}"#,
            (9, 1, 10, "reported"),
        ),
        (r#"{"prompt_tokens":9}"#, (9, 2, 11, "estimated")),
    ] {
        let usage = format!("data: {{\"choices\":[],\"usage\":{usage}}}\n\n");
        let mut stream = tap(Api::Chat, "text/event-stream", Hide);
        pass(&mut stream, &[WORD, WORD, stop, &usage].concat());
        assert_eq!(numbers(stream.usage(0, || 7)), expected, "{usage}");
    }
}

#[test]
fn unknown_endpoint_is_metered_by_its_usage_object() {
    let reported =
        r#"{"x":{"usage":{"input_tokens":1}},"usage":{"input_tokens":9,"output_tokens":1}}"#;
    for (media, text, expected) in [
        (
            "application/json",
            reported.to_owned(),
            (9, 1, 10, "reported"),
        ),
        ("", reported.to_owned(), (9, 1, 10, "reported")),
        (
            "text/event-stream",
            format!("data: {{}}\n\ndata: {reported}\n\n"),
            (9, 1, 10, "reported"),
        ),
        (
            "application/x-ndjson",
            format!("{{}}\n{reported}\n"),
            (9, 1, 10, "reported"),
        ),
        (
            "application/json",
            r#"{"text":"Hi"}"#.to_owned(),
            (0, 0, 0, "none"),
        ),
        (
            "text/event-stream",
            "data: {\"text\":\"Hi\"}\n\n".to_owned(),
            (0, 0, 0, "none"),
        ),
        ("audio/mpeg", "ID3".to_owned(), (0, 0, 0, "none")),
    ] {
        let mut tap = tap(Api::Unknown, media, Forward);
        for piece in [&text[..3], &text[3..]] {
            assert_eq!(pass(&mut tap, piece), piece);
        }
        assert!(tap.finish().is_empty() && tap.is_complete());
        assert_eq!(numbers(tap.usage(800, || 7)), expected, "{media} {text}");
    }
}

#[test]
fn response_in_a_format_that_is_not_read_is_estimated() {
    let mut tap = tap(Api::Embeddings, "application/octet-stream", Forward);
    assert_eq!(pass(&mut tap, "abcd"), "abcd");
    assert!(tap.is_complete());
    assert_eq!(numbers(tap.usage(4, || 7)), (7, 0, 7, "estimated"));
}

#[test]
fn response_without_generated_text_has_no_estimate() {
    let none = (0, 0, 0, "none");
    let no_prompt = || panic!("the prompt was estimated");
    let headers = HeaderMap::new();
    for (api, status) in [(Api::Chat, 500), (Api::Chat, 429), (Api::Other, 200)] {
        let status = StatusCode::from_u16(status).unwrap();
        let mut tap = UsageTap::new(api, status, &headers, Hide);
        assert!(!tap.may_shorten());
        let text = r#"{"usage":{"prompt_tokens":9}}"#;
        assert_eq!(pass(&mut tap, text), text);
        assert_eq!(numbers(tap.usage(0, no_prompt)), none);
        assert!(tap.is_finished() && !tap.saw_end());
    }
    for (api, media, text) in [
        (Api::Audio, "audio/mpeg", "ID3"),
        (Api::Audio, "application/json", r#"{"text":"Hi"}"#),
        (Api::Chat, "application/json", r#"{"error":"no"}"#),
        (
            Api::Chat,
            "text/event-stream",
            "data: {\"error\":\"no\"}\n\n",
        ),
        (Api::Chat, "", "<html>"),
        (Api::Chat, "text/html", "<html>"),
        (Api::Chat, "text/plain", "dear client"),
        (Api::Audio, "text/plain", "data: what we need"),
        (Api::Audio, "", ": a smile"),
    ] {
        let mut tap = tap(api, media, Hide);
        assert_eq!(pass(&mut tap, text), text);
        assert_eq!(numbers(tap.usage(0, no_prompt)), none, "{text}");
        assert!(tap.is_complete() != (text.contains("error") && media.contains("event")));
        assert_eq!(tap.saw_error(), text.contains("error"));
    }
}

#[test]
fn json_list_is_never_recognized_as_ended() {
    let mut list = tap(Api::Rerank, "application/json", Forward);
    pass(&mut list, r#"[{"index":0,"score":0.5}"#);
    assert!(!list.saw_end() && list.is_finished());
    assert_eq!(numbers(list.usage(0, || 7)), (7, 0, 7, "estimated"));
    let mut object = tap(Api::Chat, "application/json", Forward);
    pass(&mut object, r#"{"choices":[]"#);
    assert!(!object.saw_end() && !object.is_finished());
}

#[test]
fn text_in_front_of_an_error_event_is_counted() {
    let mut stream = tap(Api::Chat, "text/event-stream", Hide);
    pass(
        &mut stream,
        &[WORD, WORD, "data: {\"error\":\"no\"}\n\n"].concat(),
    );
    assert!(stream.saw_error());
    assert_eq!(numbers(stream.usage(0, || 7)), (7, 2, 9, "estimated"));
}
