//! Tests that the finder returns the same usage, errors and end however a response is split into
//! chunks.

use std::fmt::Write as _;

use serde_json::Value;

use super::super::usage::TokenCounts;
use super::*;
use crate::dice::Dice;
use crate::endpoint::Api;

fn whole(text: &str) -> Facts {
    let mut finder = Finder::default();
    finder.read(text.as_bytes());
    assert!(finder.is_over(), "{text}");
    finder.facts
}

/// Reads a response in one chunk, split in two at every offset, byte by byte and in random chunks.
/// Every way must return the same facts.
fn every_way(text: &str) -> Facts {
    let expected = whole(text);
    let bytes = text.as_bytes();
    let read = |pieces: &[&[u8]]| {
        let mut finder = Finder::default();
        for piece in pieces {
            finder.read(piece);
        }
        assert_eq!(finder.facts, expected, "{pieces:?}");
        assert!(finder.is_over());
    };
    // Split a long text at about 1000 offsets only, so that the test stays fast.
    for at in (0..=bytes.len()).step_by(1 + bytes.len() / 1000) {
        read(&[&bytes[..at], &bytes[at..]]);
    }
    read(&bytes.chunks(1).collect::<Vec<_>>());
    let mut dice = Dice::new(3);
    for _ in 0..5 {
        read(&dice.pieces(bytes, 40));
    }
    expected
}

fn tokens(facts: &Facts, api: Api) -> Option<(u64, u64, u64)> {
    let usage = facts.counts.usage(api)?;
    Some((usage.prompt, usage.completion, usage.cached))
}

#[test]
fn usage_is_found_in_responses_of_every_api() {
    let chat = r#"{"id":"x","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,
        "message":{"role":"assistant","content":"He facts: \"usage\":{\"prompt_tokens\":99} \\"},
        "finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,
        "prompt_tokens_details":{"cached_tokens":8}}}"#;
    let facts = every_way(chat);
    assert_eq!(tokens(&facts, Api::Chat), Some((9, 4, 8)));
    assert!(facts.has_usage && facts.choices == Choices::Filled && !facts.is_error);

    let first = r#" {"usage":{"prompt_tokens":9,"completion_tokens":4},"choices":[]} "#;
    let facts = every_way(first);
    assert_eq!(tokens(&facts, Api::Chat), Some((9, 4, 0)));
    assert_eq!(facts.choices, Choices::Empty);

    let message = r#"{"id":"msg_1","type":"message","role":"assistant","content":[{"type":"text",
        "text":"Hi"}],"stop_reason":"end_turn","usage":{"input_tokens":3,"output_tokens":2,
        "cache_read_input_tokens":10}}"#;
    let facts = every_way(message);
    assert_eq!(tokens(&facts, Api::Messages), Some((13, 2, 10)));
    assert!(facts.counts.report(Api::Messages).unwrap().is_valid());

    let response = r#"{"id":"resp_1","object":"response","error":null,"output":[],
        "usage":{"input_tokens":3,"output_tokens":2,"total_tokens":5}}"#;
    let facts = every_way(response);
    assert_eq!(tokens(&facts, Api::Responses), Some((3, 2, 0)));
    assert!(!facts.is_error);

    let ollama = r#"{"model":"m","message":{"role":"assistant","content":"x"},"done":true,
        "prompt_eval_count":26,"eval_count":298}"#;
    let facts = every_way(ollama);
    assert_eq!(tokens(&facts, Api::OllamaChat), Some((26, 298, 0)));
    assert!(facts.is_last);
}

#[test]
fn usage_is_found_in_stream_events() {
    let completed = r#"{"type":"response.completed","response":{"usage":{"input_tokens":3,
        "output_tokens":2},"output":[{"usage":{"input_tokens":99}}]}}"#;
    let facts = every_way(completed);
    assert_eq!(tokens(&facts, Api::Responses), Some((3, 2, 0)));
    assert!(facts.is_last && !facts.has_usage);

    let start = r#"{"type":"message_start","message":{"id":"m","content":[],"usage":{
        "input_tokens":25,"output_tokens":1}}}"#;
    let facts = every_way(start);
    assert_eq!(tokens(&facts, Api::Messages), Some((25, 1, 0)));
    assert!(!facts.counts.report(Api::Messages).unwrap().is_valid() && !facts.is_last);

    let delta = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},
        "usage":{"output_tokens":15}}"#;
    assert_eq!(tokens(&every_way(delta), Api::Messages), Some((0, 15, 0)));
    assert!(every_way(r#"{"type":"message_stop"}"#).is_last);
    let failed = every_way(r#"{"type":"response.failed","response":{"usage":null}}"#);
    assert!(failed.is_last && failed.is_error);
}

#[test]
fn error_fields_and_error_events_are_recognized() {
    assert!(every_way(r#"{"error":{"message":"no"}}"#).is_error);
    assert!(every_way(r#"{"error":"no"}"#).is_error);
    assert!(every_way(r#"{"type":"error","x":1}"#).is_error);
    assert!(!every_way(r#"{"error":null}"#).is_error);
    assert!(!every_way(r#"{"choices":[{"error":"no"}]}"#).is_error);
}

#[test]
fn usage_in_nested_objects_and_strings_is_ignored() {
    for text in [
        r#"{"choices":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"x":{"usage":{"prompt_tokens":1}}}"#,
        r#"{"x":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"response":{"x":{"usage":{"prompt_tokens":1}}}}"#,
        r#"{"response":[{"usage":{"prompt_tokens":1}}]}"#,
        r#"{"response":"\"usage\":{\"prompt_tokens\":1}"}"#,
        r#"{"x":"\\\"usage\":{\"prompt_tokens\":1}"}"#,
        r#"{"usages":{"prompt_tokens":1}}"#,
        r#"{"a_name_that_is_longer_than_all_of_ours_usage":{"prompt_tokens":1}}"#,
        r#"{"usage":null}"#,
        r#"{"usage":[]}"#,
        "{}",
    ] {
        let facts = every_way(text);
        assert_eq!(tokens(&facts, Api::Chat), None, "{text}");
        assert!(!facts.has_usage, "{text}");
    }
    let escaped = r#"{"us\u0061ge":{"prompt_tokens":1}}"#;
    assert_eq!(tokens(&every_way(escaped), Api::Chat), Some((1, 0, 0)));
    // The escaped backslash is decoded once, so the name is not `usage` but contains a backslash.
    let backslash = r#"{"us\\u0061ge":{"prompt_tokens":1}}"#;
    assert_eq!(tokens(&every_way(backslash), Api::Chat), None);
}

#[test]
fn choices_are_recognized_before_the_list_ends() {
    let mut finder = Finder::default();
    finder.read(br#"{"id":"x","choices": [ "#);
    assert!(!finder.has_choices());
    finder.read(b"{");
    assert!(finder.has_choices());
    let wide = format!(r#"{{"choices":[{}{{}}]}}"#, " ".repeat(40));
    assert_eq!(every_way(&wide).choices, Choices::Filled);
    assert_eq!(
        every_way(r#"{"choices":[{}],"choices":[]}"#).choices,
        Choices::Filled
    );
}

#[test]
fn input_that_is_no_valid_object_has_no_facts() {
    for text in [
        "[{\"usage\":{\"prompt_tokens\":1}}]",
        "7",
        "x{}",
        "{x}",
        "{\"a\" 1}",
        "{\"a\":1 \"usage\":{\"prompt_tokens\":1}}",
        "{,}",
        "{{\"usage\":{\"prompt_tokens\":1}}}",
    ] {
        for length in 1..=text.len() {
            let mut finder = Finder::default();
            for piece in text.as_bytes().chunks(length) {
                finder.read(piece);
            }
            assert!(finder.is_invalid() && !finder.is_over(), "{text}");
            assert_eq!(finder.facts, Facts::default(), "{text}");
        }
    }
}

#[test]
fn form_feed_is_not_white_space() {
    let text = "{\"usage\":{\"prompt_tokens\":1},\"a\":1\u{c}\"b\":2}";
    every_way(text);
}

#[test]
fn buffer_of_a_long_value_is_bounded() {
    let long = format!(
        r#"{{"usage":{{"x":"{}","prompt_tokens":1}},"type":"{}","error":"{}"}}"#,
        "y".repeat(10_000),
        "z".repeat(1000),
        "w".repeat(1000)
    );
    let facts = every_way(&long);
    assert_eq!(tokens(&facts, Api::Chat), None);
    assert!(facts.is_error);
    let mut finder = Finder::default();
    for piece in long.as_bytes().chunks(7) {
        finder.read(piece);
        assert!(finder.kept.capacity() < 32 * 1024);
    }
}

/// Returns a random JSON object with the known field names at all depths. Only those at the right
/// depth may count.
fn document(dice: &mut Dice, text: &mut String, deep: usize) {
    text.push('{');
    for place in 0..dice.below(5) {
        if place > 0 {
            text.push_str(dice.pick(&[",", " , ", ",\n"]));
        }
        text.push_str(dice.pick(&[
            r#""usage""#,
            r#""response""#,
            r#""message""#,
            r#""error""#,
            r#""choices""#,
            r#""a""#,
            r#""\"""#,
            r#""\\""#,
            r#""type""#,
        ]));
        text.push_str(dice.pick(&[":", " : ", ": "]));
        match dice.below(if deep == 0 { 5 } else { 8 }) {
            0 => write!(text, r#"{{"prompt_tokens":{}}}"#, dice.below(50)).unwrap(),
            1 => text.push_str(dice.pick(&["null", "true", "false", "-1.5e3", "7"])),
            2 => text.push_str(dice.pick(&[
                r#""\"usage\":{}""#,
                r#""}\\""#,
                r#""{[""#,
                r#""message_stop""#,
                r#""""#,
                r#""é😀""#,
            ])),
            3 => text.push_str(dice.pick(&["[]", "[ ]", "[1,2]", r#"["]"]"#, "{}"])),
            4 => text.push_str(&"1".repeat(1 + dice.below(60))),
            5 => {
                text.push('[');
                document(dice, text, deep - 1);
                text.push(']');
            }
            _ => document(dice, text, deep - 1),
        }
    }
    text.push('}');
}

#[test]
fn finder_agrees_with_a_json_parser_on_random_documents() {
    let mut dice = Dice::new(4);
    let mut with_usage = 0;
    for _ in 0..3000 {
        let mut text = String::new();
        document(&mut dice, &mut text, 3);
        let value: Value = serde_json::from_str(&text).unwrap();
        if serde_json::to_string(&value).unwrap().matches(':').count() != text.matches(':').count()
        {
            continue;
        }
        let at = |place: &Value| place["usage"]["prompt_tokens"].as_u64();
        let expected = [at(&value), at(&value["response"]), at(&value["message"])];
        let expected = expected.into_iter().max().flatten();
        let facts = every_way(&text);
        let found = facts.counts.usage(Api::Chat).map(|usage| usage.prompt);
        assert_eq!(found, expected, "{text}");
        let is_none = |value: &Value| value.is_null() || *value == false || *value == "";
        let is_error = value.get("error").is_some_and(|error| !is_none(error));
        assert_eq!(facts.is_error, is_error, "{text}");
        with_usage += usize::from(found.is_some());
    }
    assert!(with_usage > 40, "{with_usage}");
}

/// Returns the usage found by searching from the end of a response, and the usage found by reading
/// all of it. Both must be equal.
fn both_ways(text: &str) -> [TokenCounts; 2] {
    let (mut from_end, mut all) = (Finder::default(), Finder::default());
    from_end.read_response(text.as_bytes());
    all.read(text.as_bytes());
    assert_eq!(from_end.is_over(), all.is_over(), "{text}");
    [from_end.facts.counts, all.facts.counts]
}

#[test]
fn search_from_the_end_finds_the_same_usage_as_a_full_read() {
    let usage = r#""usage":{"prompt_tokens":9,"completion_tokens":4}"#;
    for (text, has_usage) in [
        (format!(r#"{{"choices":[],{usage}}}"#), true),
        (
            format!(r#" {{ {usage} , "x":[1,{{"y":2}}], "z":"}}" }} "#),
            true,
        ),
        (format!(r#"{{"x":"\"usage\":{{}}",{usage}}}"#), true),
        (format!(r#"{{{usage},"usage":null}}"#), true),
        // Usage in a nested object must not count.
        (format!(r#"{{"choices":[{{{usage}}}]}}"#), false),
        (format!(r#"{{"choices":[],"x":{{{usage}}}}}"#), false),
        (format!(r#"{{"choices":[],"x":{{{usage}}},"y":1}}"#), false),
        // These responses have no usage, an empty one, or one outside of the top-level object.
        (
            r#"{"x":"a","y\"usage":{"prompt_tokens":9}}"#.to_owned(),
            false,
        ),
        (r#"{"usage":null}"#.to_owned(), false),
        (r#"{"usage":{}}"#.to_owned(), false),
        (format!("[{{{usage}}}]"), false),
        (String::new(), false),
    ] {
        let [from_end, all] = both_ways(&text);
        assert_eq!(from_end, all, "{text}");
        assert_eq!(from_end != TokenCounts::default(), has_usage, "{text}");
    }
    let text = format!(r#"{{"choices":[],{usage},"x":1}}"#);
    for end in 0..text.len() {
        both_ways(&text[..end]);
    }
    // Usage more than `END` bytes in front of the end is not found by the search from the end, so
    // the whole response must be read.
    let text = format!(r#"{{{usage},"x":"{}"}}"#, "y".repeat(2 * END));
    assert_eq!(both_ways(&text)[0], both_ways(&text)[1]);
}
