//! Reading as much of a request as is needed to know where it goes.

use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Method, StatusCode, header, request};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use tokio::time::timeout;

use super::error::Refusal;
use super::is_inference;
use crate::forward::Payload;

/// How long a client that sends a request may pause.
const NEXT_PIECE_WITHIN: Duration = Duration::from_secs(30);

/// What a request asks for.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) model: Option<String>,
    pub(crate) payload: Payload,
}

/// Reads a JSON body to find the model; any other body is left to pass through.
///
/// `path` is what follows `/v1/`. Where a model is asked, a body that cannot be read is refused;
/// elsewhere it is the backend's affair.
pub(crate) async fn read(
    head: &request::Parts,
    path: &str,
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
            payload: Payload::Passing(Some(body)),
        });
    }
    let must_be_readable = is_json(&head.headers) && is_inference(path);
    if must_be_readable && is_compressed(&head.headers) {
        return Err(Refusal::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "compressed_body",
            "The request's body is compressed; send it as it is, so that its model can be found.",
        ));
    }
    let bytes = read_whole(body, most).await?;
    let model = match serde_json::from_slice::<Wanted>(&bytes) {
        Ok(wanted) => wanted.model,
        Err(error) if must_be_readable => {
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

async fn read_whole<B>(mut body: B, most: usize) -> Result<Bytes, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: fmt::Display,
{
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
    while let Some(frame) = timeout(NEXT_PIECE_WITHIN, body.frame())
        .await
        .map_err(|_| too_slow())?
    {
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

fn too_slow() -> Refusal {
    let seconds = NEXT_PIECE_WITHIN.as_secs();
    Refusal::new(
        StatusCode::REQUEST_TIMEOUT,
        "body_timeout",
        format!("Nothing of the request's body arrived for {seconds} s."),
    )
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

fn is_compressed(headers: &HeaderMap) -> bool {
    headers
        .get(header::CONTENT_ENCODING)
        .is_some_and(|coding| coding != "identity")
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

    #[tokio::test(start_paused = true)]
    async fn a_client_that_stops_sending_is_not_waited_for() {
        use hyper::body::Frame;
        use std::convert::Infallible;

        struct Never;
        impl Body for Never {
            type Data = Bytes;
            type Error = Infallible;

            fn poll_frame(
                self: std::pin::Pin<&mut Self>,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
                std::task::Poll::Pending
            }
        }

        let refusal = read_whole(Never, 100).await.unwrap_err();
        assert_eq!(refusal.status, StatusCode::REQUEST_TIMEOUT);
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
