//! Finds the generated text in an event of a stream, to estimate its tokens. The text is found by
//! its field name, without parsing the event, since an estimate need not be exact.

use std::sync::LazyLock;

use memchr::memmem::Finder as Search;

use super::super::estimate;
use super::summary::value_after;
use crate::endpoint::Api;
use crate::json;

type FieldSearches = LazyLock<Vec<Search<'static>>>;

static CHAT: FieldSearches = names(|| {
    search(&[
        "\"content\"",
        "\"reasoning_content\"",
        "\"reasoning\"",
        "\"thinking\"",
        "\"arguments\"",
    ])
});
static COMPLETIONS: FieldSearches = names(|| search(&["\"text\""]));
static RESPONSES: FieldSearches = names(|| search(&["\"delta\""]));
static MESSAGES: FieldSearches =
    names(|| search(&["\"text\"", "\"thinking\"", "\"partial_json\""]));
static GENERATE: FieldSearches = names(|| search(&["\"response\"", "\"thinking\""]));

const fn names(make: fn() -> Vec<Search<'static>>) -> FieldSearches {
    LazyLock::new(make)
}

fn search(names: &[&'static str]) -> Vec<Search<'static>> {
    names.iter().map(|name| Search::new(*name)).collect()
}

/// Returns the length of the generated text in the data of an event, in parts of a token.
pub(super) fn parts(api: Api, data: &[u8]) -> u64 {
    let names: &[Search<'_>] = match api {
        Api::Chat | Api::OllamaChat => &CHAT,
        Api::Completions => &COMPLETIONS,
        Api::Responses => &RESPONSES,
        Api::Messages => &MESSAGES,
        Api::OllamaGenerate => &GENERATE,
        _ => &[],
    };
    let text = |name: &Search<'_>| {
        let at = name.find(data)? + name.needle().len();
        let value = value_after(data, at);
        let value = &value[..json::skip(value, 0).ok()?];
        let text = value.strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        Some(estimate::parts(text)).filter(|parts| *parts > 0)
    };
    names.iter().find_map(text).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_text_is_found_for_every_api() {
        for (api, data, expected) in [
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"content":"abcd"}}]}"#,
                1,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta": {"content" : "abcd"}}]}"#,
                1,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"content":null,"reasoning_content":"abcd"}}]}"#,
                1,
            ),
            (
                Api::Chat,
                r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\"a\""}}]}}]}"#,
                1,
            ),
            (Api::Chat, r#"{"choices":[{"delta":{"content":""}}]}"#, 0),
            (Api::Chat, r#"{"choices":[{"delta":{"content":"abc"#, 0),
            (Api::Completions, r#"{"choices":[{"text":"abcdefgh"}]}"#, 2),
            (
                Api::Responses,
                r#"{"type":"response.output_text.delta","delta":"abcd"}"#,
                1,
            ),
            (
                Api::Responses,
                r#"{"type":"response.output_text.done","text":"abcd"}"#,
                0,
            ),
            (
                Api::Messages,
                r#"{"delta":{"type":"text_delta","text":"abcd"}}"#,
                1,
            ),
            (
                Api::Messages,
                r#"{"delta":{"type":"input_json_delta","partial_json":"abcd"}}"#,
                1,
            ),
            (
                Api::OllamaGenerate,
                r#"{"response":"abcd","done":false}"#,
                1,
            ),
            (Api::OllamaChat, r#"{"message":{"content":"abcd"}}"#, 1),
            (Api::Images, r#"{"content":"abcd"}"#, 0),
        ] {
            let found = estimate::tokens(parts(api, data.as_bytes()));
            assert_eq!(found, expected, "{data}");
        }
    }
}
