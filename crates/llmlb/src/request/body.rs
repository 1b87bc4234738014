//! Reading as much of a request as is needed to know where it goes.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, header, request};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::Refusal;
use crate::forward::Payload;

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) model: Option<String>,
    pub(crate) payload: Payload,
}

/// Reads a JSON body to find the model; any other body is left to pass through.
pub(crate) async fn read(
    head: &request::Parts,
    body: Incoming,
    most: usize,
) -> Result<Asked, Refusal> {
    if body.is_end_stream() {
        return Ok(Asked {
            model: None,
            payload: Payload::Read(Bytes::new()),
        });
    }
    if head.method != Method::POST || !may_be_json(&head.headers) {
        return Ok(Asked {
            model: None,
            payload: Payload::Passing(body),
        });
    }
    let bytes = read_whole(body, most).await?;
    let model = match serde_json::from_slice::<Wanted>(&bytes) {
        Ok(wanted) => wanted.model,
        Err(error) if is_json(&head.headers) => {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "invalid_json",
                format!("The request's body is not a JSON object with a model's name: {error}"),
            ));
        }
        // Not said to be JSON, and it is not.
        Err(_) => None,
    };
    Ok(Asked {
        model,
        payload: Payload::Read(bytes),
    })
}

async fn read_whole(mut body: Incoming, most: usize) -> Result<Bytes, Refusal> {
    let too_large = || {
        Refusal::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "body_too_large",
            format!(
                "The request's body is larger than the {most} bytes that server.max_body allows."
            ),
        )
    };
    if body.size_hint().lower() > most as u64 {
        return Err(too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| incomplete(&error.to_string()))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        // Most bodies come in one piece, which then need not be copied.
        match first.take() {
            None if whole.is_empty() => first = Some(data),
            None => whole.extend_from_slice(&data),
            Some(piece) => {
                whole.reserve(
                    piece.len()
                        + data.len()
                        + usize::try_from(body.size_hint().lower()).unwrap_or(0),
                );
                whole.extend_from_slice(&piece);
                whole.extend_from_slice(&data);
            }
        }
        if whole.len() > most || first.as_ref().is_some_and(|piece| piece.len() > most) {
            return Err(too_large());
        }
    }
    Ok(first.unwrap_or_else(|| whole.freeze()))
}

/// The client did not send what it had announced.
pub(super) fn incomplete(why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "incomplete_body",
        format!("The request's body did not arrive whole: {why}"),
    )
}

fn is_json(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|kind| {
        kind.eq_ignore_ascii_case("application/json")
            || kind.to_ascii_lowercase().ends_with("+json")
    })
}

/// curl's `-d` says that JSON is a form; some programs say nothing.
fn may_be_json(headers: &HeaderMap) -> bool {
    is_json(headers)
        || media_type(headers).is_none_or(|kind| {
            kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
                || kind.eq_ignore_ascii_case("text/plain")
        })
}

fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().ok()?;
    Some(value.split(';').next().unwrap_or(value).trim())
}

/// The few fields of a request that we look at. The rest is skipped, not copied. Where a field
/// appears twice the last one counts, as it does for the backends.
#[derive(Debug, Default, PartialEq)]
struct Wanted {
    model: Option<String>,
}

impl<'de> Deserialize<'de> for Wanted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Wanted;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Wanted, A::Error> {
                let mut wanted = Wanted::default();
                while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
                    if name == "model" {
                        wanted.model = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(wanted)
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(text: &str) -> Result<Option<String>, String> {
        serde_json::from_str::<Wanted>(text)
            .map(|wanted| wanted.model)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn the_model_is_found_wherever_it_stands() {
        let found = |text| model(text).unwrap().unwrap();
        assert_eq!(found(r#"{"model":"a"}"#), "a");
        assert_eq!(
            found(r#"{"messages":[{"model":"no"}],"x":{"model":"no"},"model":"a"}"#),
            "a"
        );
        assert_eq!(found(r#" { "mod\u0065l" : "\u00e9\n" } "#), "é\n");
        assert_eq!(found(r#"{"model":"a","model":"b"}"#), "b");
        assert_eq!(model(r#"{"messages":[]}"#), Ok(None));
        assert_eq!(model(r#"{"model":null}"#), Ok(None));
    }

    #[test]
    fn what_is_no_request_is_refused_with_the_place() {
        for (text, why) in [
            ("", "EOF while parsing"),
            ("[]", "expected a JSON object"),
            (
                r#"{"model":5}"#,
                "invalid type: integer `5`, expected a string at line 1",
            ),
            (
                r#"{"model":"a"} x"#,
                "trailing characters at line 1 column 15",
            ),
            (r#"{"model":"a","#, "EOF while parsing"),
        ] {
            let error = model(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn json_is_known_by_its_type_and_suspected_without_one() {
        let with = |kind: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, kind.parse().unwrap());
            headers
        };
        assert!(is_json(&with("Application/JSON; charset=utf-8")));
        assert!(is_json(&with("application/problem+json")));
        assert!(may_be_json(&HeaderMap::new()));
        assert!(may_be_json(&with("application/x-www-form-urlencoded")));
        assert!(!may_be_json(&with("multipart/form-data; boundary=x")));
        assert!(!may_be_json(&with("application/octet-stream")));
    }
}
