//! A model that is named in the query: whoever opens a WebSocket has no body to name it in.

use std::fmt::Write;
use std::ops::Range;

use http::StatusCode;

use super::error::Refusal;

/// The model that the query of a target names, and where it does. One that could be read in two
/// ways is refused: it would be routed and billed as one model, and served as another.
pub(super) fn model(target: &str) -> Result<Option<(String, Range<usize>)>, Refusal> {
    let Some((path, query)) = target.split_once('?') else {
        return Ok(None);
    };
    let mut found = None;
    let mut at = path.len() + 1;
    for field in query.split('&') {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let place = at + field.len() - value.len()..at + field.len();
        at += field.len() + 1;
        match decoded(name).as_deref() {
            Some("model") if found.is_none() => {
                let value = decoded(value).ok_or_else(|| refused("is not well encoded"))?;
                found = Some((value, place));
            }
            Some("model") => return Err(refused("is there twice")),
            Some(other) if other.eq_ignore_ascii_case("model") => {
                return Err(refused("is spelt in another way"));
            }
            _ => {}
        }
    }
    Ok(found.filter(|(name, _)| !name.is_empty()))
}

fn refused(why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_query",
        format!("The query names the model in a way that can be misread: `model` {why}."),
    )
    .param("model")
}

/// What a name or a value of a query says; `None` if it is not well encoded, or no text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high * 16 + low).ok()?
            }
            b'+' => b' ',
            other => other,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A value as it is written in a query.
pub(super) fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        // Slashes and colons are usual in names of models, and mean nothing in a query.
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing into memory cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_name_is_that_of_its_value() {
        for (target, name, place) in [
            ("/v1/realtime?model=a", "a", "a"),
            ("/v1/x?a=1&model=b%2fc&d", "b/c", "b%2fc"),
            ("/v1/x?&&m%6Fdel=a+b=c", "a b=c", "a+b=c"),
            ("/v1/x?q=?&model=%c3%a9", "é", "%c3%a9"),
        ] {
            let (found, at) = model(target).unwrap().unwrap();
            assert_eq!((found.as_str(), &target[at]), (name, place), "{target}");
        }
        for target in [
            "/v1/realtime",
            "/v1/x?",
            "/v1/x?model",
            "/v1/x?model=&a=model",
            "/v1/model=a?b=%zz",
        ] {
            assert!(model(target).unwrap().is_none(), "{target}");
        }
    }

    #[test]
    fn what_is_encoded_is_decoded_again() {
        for name in ["gpt-4o", "meta/llama:8b", "a b&c=d+e%f#g?é\u{0}", ""] {
            assert_eq!(decoded(&encoded(name)).as_deref(), Some(name));
        }
        for bad in ["%", "%1", "%zz", "%+1", "%ff"] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }
}
