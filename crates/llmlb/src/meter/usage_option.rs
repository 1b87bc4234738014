//! Asking a backend for usage on behalf of a client that did not.
//!
//! The request stays as it was, byte for byte, but for `stream_options.include_usage`.

use std::ops::Range;

use crate::body_edit::Edit;
use crate::endpoint::Api;
use crate::json;

/// Who asks for the usage of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Asking {
    /// Nobody need: it is no stream, or its API tells usage unasked.
    Nobody,
    /// The client, or it wrote something that is not ours to mend. It sees what comes.
    Client,
    /// We, by this change. What only comes because of it is kept from the client.
    Us(Edit),
}

/// The places of the values of the two fields that matter, as [`json::fields`] tells them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    pub(crate) stream: Option<Range<usize>>,
    pub(crate) stream_options: Option<Range<usize>>,
}

impl Asking {
    /// Finds out. `body` is an object, and these are the places in it.
    pub(crate) fn new(api: Api, body: &[u8], places: &Places) -> Self {
        let is_stream = |place: &Range<usize>| may_be_true(body.get(place.clone()));
        if !api.has_stream_options() || !places.stream.as_ref().is_some_and(is_stream) {
            return Self::Nobody;
        }
        let us = |place: Range<usize>, text: &str| {
            let text = text.to_owned();
            Self::Us(Edit { place, text })
        };
        let Some(place) = places.stream_options.clone() else {
            // After the brace. There is a field, `stream`, so the comma is right.
            return match body.iter().position(|byte| *byte == b'{') {
                Some(brace) => us(
                    brace + 1..brace + 1,
                    r#""stream_options":{"include_usage":true},"#,
                ),
                None => Self::Client,
            };
        };
        let options = body.get(place.clone()).unwrap_or_default();
        if options == b"null" {
            return us(place, r#"{"include_usage":true}"#);
        }
        let (mut is_empty, mut wish) = (true, None);
        let read = json::fields(options, |name, value| {
            is_empty = false;
            if name == b"include_usage" {
                wish = Some(value);
            }
        });
        let inside = place.start + 1;
        match wish {
            _ if read.is_err() => Self::Client,
            None if is_empty => us(inside..inside, r#""include_usage":true"#),
            None => us(inside..inside, r#""include_usage":true,"#),
            Some(value) if &options[value.clone()] == b"true" => Self::Client,
            Some(value) => us(place.start + value.start..place.start + value.end, "true"),
        }
    }
}

/// Whether some backend may read this as true. Many take `"true"`, `1` or `"yes"` for it; one that
/// does not will say so, as it would have without us.
fn may_be_true(value: Option<&[u8]>) -> bool {
    value.is_some_and(|value| !matches!(value, b"false" | b"null"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::body_edit::apply;

    fn asking(api: Api, body: &str) -> Asking {
        let mut places = Places::default();
        json::fields(body.as_bytes(), |name, place| match name {
            b"stream" => places.stream = Some(place),
            b"stream_options" => places.stream_options = Some(place),
            _ => {}
        })
        .unwrap();
        Asking::new(api, body.as_bytes(), &places)
    }

    fn changed(body: &str) -> Option<String> {
        let Asking::Us(edit) = asking(Api::Chat, body) else {
            return None;
        };
        let body = Bytes::copy_from_slice(body.as_bytes());
        let bytes = apply(&body, &mut [edit]).first;
        Some(String::from_utf8(bytes.to_vec()).unwrap())
    }

    #[test]
    fn usage_is_asked_for_without_changing_anything_else() {
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
            // What may be a stream is one, and what is not `true` is not the client's wish.
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
            // The last of two fields counts.
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
            // A parser sees the request as it was, and the option.
            let mut wanted: Value = serde_json::from_str(body).unwrap();
            if !wanted["stream_options"].is_object() {
                wanted["stream_options"] = json!({});
            }
            wanted["stream_options"]["include_usage"] = json!(true);
            assert_eq!(serde_json::from_str::<Value>(&changed).unwrap(), wanted);
            assert_eq!(asking(Api::Chat, &changed), Asking::Client);
        }
    }

    #[test]
    fn what_need_not_be_asked_is_left_alone() {
        for body in [
            r#"{"model":"m"}"#,
            r#"{"stream":false}"#,
            r#"{"stream":null}"#,
            r#"{"stream":true,"stream":false,"stream_options":{}}"#,
            "{}",
        ] {
            assert_eq!(asking(Api::Chat, body), Asking::Nobody, "{body}");
        }
        for api in [Api::Responses, Api::Messages, Api::Embeddings, Api::Other] {
            assert_eq!(asking(api, r#"{"stream":true}"#), Asking::Nobody);
        }
        assert!(matches!(
            asking(Api::Completions, r#"{"stream":true}"#),
            Asking::Us(_)
        ));
    }

    #[test]
    fn what_the_client_wrote_is_the_clients() {
        for options in [
            r#"{"include_usage":true}"#,
            r#"{"include_usage":false,"include_usage":true}"#,
            "[]",
            "7",
            r#""x""#,
            r#"{"a" 1}"#,
        ] {
            let body = format!(r#"{{"stream":true,"stream_options":{options}}}"#);
            assert_eq!(asking(Api::Chat, &body), Asking::Client, "{body}");
        }
    }

    #[test]
    fn several_changes_are_made_at_once() {
        let body = r#"{"model":"alias","stream":true}"#;
        let Asking::Us(option) = asking(Api::Chat, body) else {
            panic!("it is to be asked for");
        };
        let model = Edit {
            place: 9..16,
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
