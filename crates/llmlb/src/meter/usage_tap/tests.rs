//! Answers of every kind.

use super::*;

fn watch(api: Api, media: &str, is_hiding: bool) -> UsageTap {
    let mut headers = HeaderMap::new();
    if !media.is_empty() {
        headers.insert(header::CONTENT_TYPE, media.parse().unwrap());
    }
    UsageTap::new(api, StatusCode::OK, &headers, is_hiding)
}

fn pass(watch: &mut UsageTap, text: &str) -> String {
    let out = watch.pass(Bytes::copy_from_slice(text.as_bytes()));
    String::from_utf8(out.to_vec()).unwrap()
}

fn numbers(usage: Usage) -> (u64, u64, u64, &'static str) {
    (
        usage.prompt,
        usage.completion,
        usage.total,
        usage.source.name(),
    )
}

const WORD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
const ALONE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";

#[test]
fn a_piece_that_ends_within_an_answer_is_not_taken_for_all_of_it() {
    let first = r#"{"results":[{"id":1,"usage":{"prompt_tokens":7}}"#;
    let rest = r#"],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let mut watch = watch(Api::Chat, "application/json", false);
    pass(&mut watch, first);
    assert!(!watch.saw_end());
    pass(&mut watch, rest);
    assert!(watch.saw_end());
    let usage = watch.usage(0, || panic!("it is told"));
    assert_eq!(numbers(usage), (9, 1, 10, "reported"));
}

#[test]
fn every_kind_of_answer_is_watched() {
    let chat = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
    let line = "{\"done\":true,\"prompt_eval_count\":9,\"eval_count\":1}\n";
    let events = [WORD, ALONE, "data: [DONE]\n\n"].concat();
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
        let mut watch = watch(api, media, false);
        assert!(!watch.saw_end() && !watch.may_shorten());
        for piece in [&text[..10], &text[10..]] {
            assert_eq!(pass(&mut watch, piece), piece);
        }
        assert!(watch.saw_end(), "{media} {text}");
        assert!(watch.finish().is_empty());
        assert!(watch.is_whole() && !watch.saw_error());
        let usage = watch.usage(0, || panic!("it is told"));
        assert_eq!(numbers(usage), (9, 1, 10, "reported"), "{media} {text}");
    }
}

#[test]
fn usage_is_hidden_from_a_client_that_did_not_ask() {
    for media in ["text/event-stream", ""] {
        let mut watch = watch(Api::Chat, media, true);
        assert!(watch.may_shorten());
        let text = [WORD, ALONE].concat();
        assert_eq!(pass(&mut watch, &text), WORD);
        assert_eq!(pass(&mut watch, "data: "), "");
        assert_eq!(watch.finish(), "data: ");
    }
}

#[test]
fn tokens_that_are_not_told_are_estimated() {
    let mut stream = watch(Api::Chat, "text/event-stream", true);
    pass(&mut stream, &[WORD, WORD, WORD].concat());
    assert_eq!(numbers(stream.usage(0, || 7)), (7, 3, 10, "estimated"));
    assert!(!stream.is_whole() && !stream.saw_end());

    let mut whole = watch(Api::Chat, "application/json", false);
    pass(
        &mut whole,
        &format!(r#"{{"choices":["{}"]}}"#, "x".repeat(784)),
    );
    assert_eq!(numbers(whole.usage(800, || 7)), (7, 100, 107, "estimated"));
    assert!(whole.is_whole());

    let mut vectors = watch(Api::Embeddings, "application/json", false);
    pass(&mut vectors, r#"{"data":[{"embedding":[0.1,0.2]}]}"#);
    assert_eq!(numbers(vectors.usage(0, || 7)), (7, 0, 7, "estimated"));

    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
    headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
    let mut coded = UsageTap::new(Api::Chat, StatusCode::OK, &headers, true);
    assert_eq!(pass(&mut coded, &"x".repeat(400)).len(), 400);
    assert_eq!(numbers(coded.usage(400, || 7)), (7, 100, 107, "estimated"));
}

#[test]
fn what_is_made_later_is_not_estimated_now() {
    for (status, expected) in [
        ("queued", (7, 0, 7, "estimated")),
        ("in_progress", (7, 0, 7, "estimated")),
        ("completed", (7, 14, 21, "estimated")),
    ] {
        let mut promise = watch(Api::Responses, "application/json", false);
        let text = format!(
            r#"{{"status":"{status}","usage":null,"instructions":"{:0>400}"}}"#,
            0
        );
        pass(&mut promise, &text);
        assert_eq!(
            numbers(promise.usage(text.len() as u64, || 7)),
            expected,
            "{status}"
        );
    }
}

#[test]
fn an_answer_of_anthropics_that_was_cut_has_what_was_seen_of_it() {
    let mut stream = watch(Api::Messages, "text/event-stream", false);
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
fn what_a_stream_told_before_it_was_cut_may_not_be_all() {
    let told = |usage: &str| WORD.replacen('{', &format!("{{\"usage\":{usage},"), 1);
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
        let mut stream = watch(Api::Chat, "text/event-stream", true);
        pass(&mut stream, &[&told(usage), WORD, WORD].concat());
        assert_eq!(numbers(stream.usage(0, || 7)), expected, "{usage}");
    }
    // Anthropic's may begin without an output.
    let mut stream = watch(Api::Messages, "text/event-stream", false);
    let begin =
        "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25}}}\n\n";
    let word = "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n";
    pass(&mut stream, &[begin, word, word].concat());
    assert_eq!(numbers(stream.usage(0, || 7)), (25, 2, 27, "estimated"));
    // Nor may it be told at the end.
    let stop = "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    pass(&mut stream, stop);
    assert!(stream.is_whole());
    assert_eq!(numbers(stream.usage(0, || 7)), (25, 2, 27, "estimated"));
}

#[test]
fn a_report_without_a_valid_part_is_completed_by_the_estimate() {
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
        // A prompt that is not empty has tokens.
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
            let mut watch = watch(Api::Chat, "application/json", false);
            if is_whole {
                watch.whole(Bytes::from(text.clone()));
            } else {
                pass(&mut watch, &text);
            }
            assert_eq!(numbers(watch.usage(800, || 7)), expected, "{usage}");
        }
    }
    let mut empty = watch(Api::Embeddings, "application/json", false);
    pass(
        &mut empty,
        r#"{"usage":{"prompt_tokens":0,"total_tokens":0}}"#,
    );
    assert_eq!(numbers(empty.usage(0, || 0)), (0, 0, 0, "reported"));
    assert_eq!(numbers(empty.usage(0, || 7)), (7, 0, 7, "estimated"));
    // An error has no completion to estimate.
    let mut error = watch(Api::Chat, "application/json", false);
    pass(&mut error, r#"{"error":"no","usage":{"prompt_tokens":9}}"#);
    assert_eq!(numbers(error.usage(800, || 7)), (9, 0, 9, "estimated"));
}

#[test]
fn a_stream_that_reports_no_tokens_for_its_text_is_estimated() {
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
        let mut stream = watch(Api::Chat, "text/event-stream", true);
        pass(&mut stream, &[WORD, WORD, stop, &usage].concat());
        assert_eq!(numbers(stream.usage(0, || 7)), expected, "{usage}");
    }
}

#[test]
fn an_unknown_endpoint_has_the_tokens_of_its_usage_object() {
    let told = r#"{"x":{"usage":{"input_tokens":1}},"usage":{"input_tokens":9,"output_tokens":1}}"#;
    for (media, text, expected) in [
        ("application/json", told.to_owned(), (9, 1, 10, "reported")),
        ("", told.to_owned(), (9, 1, 10, "reported")),
        (
            "text/event-stream",
            format!("data: {{}}\n\ndata: {told}\n\n"),
            (9, 1, 10, "reported"),
        ),
        (
            "application/x-ndjson",
            format!("{{}}\n{told}\n"),
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
        let mut watch = watch(Api::Unknown, media, false);
        for piece in [&text[..3], &text[3..]] {
            assert_eq!(pass(&mut watch, piece), piece);
        }
        assert!(watch.finish().is_empty() && watch.is_complete());
        assert_eq!(numbers(watch.usage(800, || 7)), expected, "{media} {text}");
    }
}

#[test]
fn response_in_a_format_that_is_not_read_is_estimated() {
    let mut watch = watch(Api::Embeddings, "application/octet-stream", false);
    assert_eq!(pass(&mut watch, "abcd"), "abcd");
    assert!(watch.is_complete());
    assert_eq!(numbers(watch.usage(4, || 7)), (7, 0, 7, "estimated"));
}

#[test]
fn where_there_is_nothing_to_count_nothing_is_counted() {
    let none = (0, 0, 0, "none");
    let asked = || panic!("there is no estimate");
    let headers = HeaderMap::new();
    for (api, status) in [(Api::Chat, 500), (Api::Chat, 429), (Api::Other, 200)] {
        let status = StatusCode::from_u16(status).unwrap();
        let mut watch = UsageTap::new(api, status, &headers, true);
        assert!(!watch.may_shorten());
        let text = r#"{"usage":{"prompt_tokens":9}}"#;
        assert_eq!(pass(&mut watch, text), text);
        assert_eq!(numbers(watch.usage(0, asked)), none);
        assert!(watch.is_whole() && !watch.saw_end());
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
        let mut watch = watch(api, media, true);
        assert_eq!(pass(&mut watch, text), text);
        assert_eq!(numbers(watch.usage(0, asked)), none, "{text}");
        assert!(watch.is_complete() != (text.contains("error") && media.contains("event")));
        assert_eq!(watch.saw_error(), text.contains("error"));
    }
}

#[test]
fn a_list_is_not_at_its_end_before_it_is() {
    let mut list = watch(Api::Rerank, "application/json", false);
    pass(&mut list, r#"[{"index":0,"score":0.5}"#);
    assert!(!list.saw_end() && list.is_whole());
    assert_eq!(numbers(list.usage(0, || 7)), (7, 0, 7, "estimated"));
    let mut object = watch(Api::Chat, "application/json", false);
    pass(&mut object, r#"{"choices":[]"#);
    assert!(!object.saw_end() && !object.is_whole());
}

#[test]
fn an_error_after_some_words_leaves_the_words_counted() {
    let mut stream = watch(Api::Chat, "text/event-stream", true);
    pass(
        &mut stream,
        &[WORD, WORD, "data: {\"error\":\"no\"}\n\n"].concat(),
    );
    assert!(stream.saw_error());
    assert_eq!(numbers(stream.usage(0, || 7)), (7, 2, 9, "estimated"));
}
