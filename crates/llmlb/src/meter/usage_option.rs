//! Adds `stream_options.include_usage` to streaming requests whose client did not set it. Without the
//! option, OpenAI-compatible backends report no usage for streams. All other bytes stay unchanged.

use std::ops::Range;

use crate::body_edit::Edit;
use crate::endpoint::Api;
use crate::json;

/// Origin of the `include_usage` option of a request. It determines if usage events are hidden from
/// the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UsageOption {
    /// The option is not needed: the request is no stream, or its API always reports usage.
    NotNeeded,
    /// The client set the option, or sent invalid `stream_options`. Usage events are forwarded.
    Client,
    /// llmlb adds the option by this edit. The usage event that results is hidden from the client.
    Added(Edit),
}

/// Ranges of the values of `stream` and `stream_options` in a request body.
#[derive(Clone, Debug, Default)]
pub(crate) struct OptionRanges {
    pub(crate) stream: Option<Range<usize>>,
    pub(crate) stream_options: Option<Range<usize>>,
}

impl UsageOption {
    /// Determines the origin of `include_usage`: the client set it, llmlb must add it, or the
    /// request needs none. `body` must be a JSON object.
    pub(crate) fn new(api: Api, body: &[u8], ranges: &OptionRanges) -> Self {
        let is_stream = |range: &Range<usize>| may_be_true(body.get(range.clone()));
        if !api.has_stream_options() || !ranges.stream.as_ref().is_some_and(is_stream) {
            return Self::NotNeeded;
        }
        let added = |range: Range<usize>, text: &str| {
            let text = text.to_owned();
            Self::Added(Edit { range, text })
        };
        let Some(range) = ranges.stream_options.clone() else {
            // Insert `stream_options` after the opening brace of the body. Add a comma behind it,
            // because the object has at least the field `stream`.
            return match body.iter().position(|byte| *byte == b'{') {
                Some(brace) => added(
                    brace + 1..brace + 1,
                    r#""stream_options":{"include_usage":true},"#,
                ),
                None => Self::Client,
            };
        };
        let options = body.get(range.clone()).unwrap_or_default();
        if options == b"null" {
            return added(range, r#"{"include_usage":true}"#);
        }
        let (mut is_empty, mut include_usage) = (true, None);
        let read = json::fields(options, |name, value| {
            is_empty = false;
            if name == b"include_usage" {
                include_usage = Some(value);
            }
        });
        let inside = range.start + 1;
        match include_usage {
            _ if read.is_err() => Self::Client,
            None if is_empty => added(inside..inside, r#""include_usage":true"#),
            None => added(inside..inside, r#""include_usage":true,"#),
            Some(value) if &options[value.clone()] == b"true" => Self::Client,
            Some(value) => added(range.start + value.start..range.start + value.end, "true"),
        }
    }
}

/// True if a backend may read this value of `stream` as true. Many backends accept `"true"`, `1` or
/// `"yes"`; the others reject the request with or without the usage option.
fn may_be_true(value: Option<&[u8]>) -> bool {
    value.is_some_and(|value| !matches!(value, b"false" | b"null"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::body_edit::apply;

    fn option(api: Api, body: &str) -> UsageOption {
        let mut ranges = OptionRanges::default();
        json::fields(body.as_bytes(), |name, range| match name {
            b"stream" => ranges.stream = Some(range),
            b"stream_options" => ranges.stream_options = Some(range),
            _ => {}
        })
        .unwrap();
        UsageOption::new(api, body.as_bytes(), &ranges)
    }

    fn changed(body: &str) -> Option<String> {
        let UsageOption::Added(edit) = option(Api::Chat, body) else {
            return None;
        };
        let body = Bytes::copy_from_slice(body.as_bytes());
        let bytes = apply(&body, &mut [edit]).first;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn option_is_added_without_changing_other_bytes() {
        for (body, expected) in [
            (
                r#"{"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                " {\n \"stream\": true }\n",
                " {\"stream_options\":{\"include_usage\":true},\n \"stream\": true }\n",
            ),
            (
                r#"{"stream":true,"stream_options":null,"n":1.0}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true},"n":1.0}"#,
            ),
            (
                r#"{"stream_options":{},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{ },"stream":true}"#,
                r#"{"stream_options":{"include_usage":true },"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":false},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage": null ,"a":1},"stream":true}"#,
                r#"{"stream_options":{"include_usage": true ,"a":1},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_obfuscation":false},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"include_obfuscation":false},"stream":true}"#,
            ),
            (
                r#"{"stream_options":{"include_usage":true,"include_usage":false},"stream":true}"#,
                r#"{"stream_options":{"include_usage":true,"include_usage":true},"stream":true}"#,
            ),
            // The option must be added for any `stream` that a backend may read as true, and for a
            // client's `include_usage` that is not `true`.
            (
                r#"{"stream":"true"}"#,
                r#"{"stream_options":{"include_usage":true},"stream":"true"}"#,
            ),
            (
                r#"{"stream":1,"stream_options":{"include_usage":0}}"#,
                r#"{"stream":1,"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{"include_usage":"false","a":[]}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"a":[]}}"#,
            ),
            (
                r#"{"stream":true,"stream_options":{"include_usage":{}}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
            ),
            // Of duplicate fields the last one counts, as in most JSON parsers of backends.
            (
                r#"{"stream":true,"stream_options":{"include_usage":true},"stream_options":{}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true},"stream_options":{"include_usage":true}}"#,
            ),
            (
                r#"{"stream":false,"stream":true,"messages":[{"content":"{\"stream_options\":{}}"}]}"#,
                r#"{"stream_options":{"include_usage":true},"stream":false,"stream":true,"messages":[{"content":"{\"stream_options\":{}}"}]}"#,
            ),
        ] {
            let changed = changed(body).unwrap();
            assert_eq!(changed, expected);
            let mut wanted: Value = serde_json::from_str(body).unwrap();
            if !wanted["stream_options"].is_object() {
                wanted["stream_options"] = json!({});
            }
            wanted["stream_options"]["include_usage"] = json!(true);
            assert_eq!(serde_json::from_str::<Value>(&changed).unwrap(), wanted);
            assert_eq!(option(Api::Chat, &changed), UsageOption::Client);
        }
    }

    #[test]
    fn option_is_not_added_to_requests_that_do_not_stream() {
        for body in [
            r#"{"model":"m"}"#,
            r#"{"stream":false}"#,
            r#"{"stream":null}"#,
            r#"{"stream":true,"stream":false,"stream_options":{}}"#,
            "{}",
        ] {
            assert_eq!(option(Api::Chat, body), UsageOption::NotNeeded, "{body}");
        }
        for api in [Api::Responses, Api::Messages, Api::Embeddings, Api::Other] {
            assert_eq!(option(api, r#"{"stream":true}"#), UsageOption::NotNeeded);
        }
        assert!(matches!(
            option(Api::Completions, r#"{"stream":true}"#),
            UsageOption::Added(_)
        ));
    }

    #[test]
    fn option_that_the_client_set_is_not_changed() {
        for options in [
            r#"{"include_usage":true}"#,
            r#"{"include_usage":false,"include_usage":true}"#,
            "[]",
            "7",
            r#""x""#,
            r#"{"a" 1}"#,
        ] {
            let body = format!(r#"{{"stream":true,"stream_options":{options}}}"#);
            assert_eq!(option(Api::Chat, &body), UsageOption::Client, "{body}");
        }
    }

    #[test]
    fn option_and_model_name_are_edited_together() {
        let body = r#"{"model":"alias","stream":true}"#;
        let UsageOption::Added(option) = option(Api::Chat, body) else {
            panic!("the option is missing");
        };
        let model = Edit {
            range: 9..16,
            text: r#""the model""#.to_owned(),
        };
        for mut edits in [
            [model.clone(), option.clone()],
            [option.clone(), model.clone()],
        ] {
            assert_eq!(
                apply(&Bytes::from_static(body.as_bytes()), &mut edits).first,
                r#"{"stream_options":{"include_usage":true},"model":"the model","stream":true}"#
            );
        }
        assert_eq!(apply(&Bytes::from_static(b"abc"), &mut []).first, "abc");
    }
}
