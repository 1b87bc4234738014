//! Reads the model in the query of a request. A request that opens a WebSocket names its model
//! there, because it has no body.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::Range;

use http::StatusCode;

use super::case_variant::is_variant;
use super::error::Refusal;
use crate::endpoint;
use crate::headers::may_be_credential;

/// Returns the model that a query names, and the range of the name. A query that could be read in
/// two ways is rejected: the request would be routed and billed as one model and served as another.
pub(super) fn model(query: &str) -> Result<Option<(String, Range<usize>)>, Refusal> {
    let mut found = None;
    for field in fields(query) {
        match decoded(field.name).as_deref() {
            Some("model") if found.is_none() => {
                let value = &query[field.value.clone()];
                let value = decoded(value).ok_or_else(|| {
                    refused("the value of the parameter `model` is not valid percent-encoded UTF-8")
                })?;
                found = Some((value, field.value));
            }
            Some("model") => return Err(refused("the parameter `model` is there twice")),
            Some(other) if is_variant("model", other) => {
                return Err(refused(
                    "the name of the parameter `model` is not in lower case",
                ));
            }
            _ => {}
        }
    }
    Ok(found)
}

/// Returns the query without the parameters in which clients send credentials, so that no backend
/// sees them. The rest is unchanged.
pub(super) fn without_credentials(query: &str) -> Cow<'_, str> {
    let is_credential = |field: &Field<'_>| {
        // Some servers treat a semicolon as the end of a parameter, so a credential may be in front
        // of or behind one.
        field.whole.split(';').any(|parameter| {
            let name = parameter.split('=').next().unwrap_or(parameter);
            let name = decoded(name).unwrap_or_else(|| name.to_owned());
            // Convert to upper case first: some letters beyond ASCII become ASCII only this way,
            // and a server could read them so.
            may_be_credential(&name.to_uppercase().to_lowercase())
        })
    };
    if !fields(query).any(|field| is_credential(&field)) {
        return Cow::Borrowed(query);
    }
    let kept = fields(query).filter(|field| !is_credential(field));
    let kept: Vec<_> = kept.map(|field| field.whole).collect();
    Cow::Owned(kept.join("&"))
}

/// Field of a query as it is written, without percent-decoding.
struct Field<'a> {
    whole: &'a str,
    name: &'a str,
    value: Range<usize>,
}

fn fields(query: &str) -> impl Iterator<Item = Field<'_>> {
    let mut at = 0;
    query.split('&').map(move |whole| {
        let (name, value) = whole.split_once('=').unwrap_or((whole, ""));
        let end = at + whole.len();
        at = end + 1;
        Field {
            whole,
            name,
            value: end - value.len()..end,
        }
    })
}

fn refused(why: &str) -> Refusal {
    Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_query",
        format!("The query names the model in a way that can be misread: {why}."),
    )
    .param("model")
}

/// Returns the percent-decoded name or value of a query; `None` if it is not valid UTF-8.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let whole @ [first, tail @ ..] = rest {
        rest = tail;
        bytes.push(match first {
            b'%' => {
                rest = tail.get(2..)?;
                endpoint::decode_escape(whole)?
            }
            b'+' => b' ',
            other => *other,
        });
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        // Leave slashes and colons as they are: names of models often have them, and a query allows
        // them.
        if byte.is_ascii_alphanumeric() || b"-._~/:".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_is_decoded_and_its_range_found() {
        for (query, name, value) in [
            ("model=a", "a", "a"),
            ("a=1&model=b%2fc&d", "b/c", "b%2fc"),
            ("&&m%6Fdel=a+b=c", "a b=c", "a+b=c"),
            ("q=?&model=%c3%a9", "é", "%c3%a9"),
        ] {
            let (found, at) = model(query).unwrap().unwrap();
            assert_eq!((found.as_str(), &query[at]), (name, value), "{query}");
        }
        for query in ["", "models=a", "b=%zz"] {
            assert!(model(query).unwrap().is_none(), "{query}");
        }
        for query in ["model", "model=&a=model"] {
            assert_eq!(model(query).unwrap().unwrap().0, "", "{query}");
        }
        for query in ["model=a&model=a", "Model=a", "m%4fdel=a", "model=%ff"] {
            assert!(model(query).is_err(), "{query}");
        }
    }

    #[test]
    fn credentials_are_removed_and_nothing_else() {
        for (query, left) in [
            ("a=1&b=%20", "a=1&b=%20"),
            ("key=sk-1", ""),
            ("a=1&api_key=x&b", "a=1&b"),
            ("a&API%2DKEY=x&&access_token=y&keys=z", "a&&keys=z"),
            ("a=1;api_key=x&b=2", "b=2"),
        ] {
            assert_eq!(without_credentials(query), left, "{query}");
        }
        for name in [
            "auth",
            "api_token",
            "x-goog-api-key",
            "openai_api_key",
            "accessToken",
            "auth_token",
            "subscription_key",
            "Password",
            "secret",
            "sig",
            "bearer",
            "O%41uth",
            "\u{212a}ey",
        ] {
            assert_eq!(
                without_credentials(&format!("a=1&{name}=x")),
                "a=1",
                "{name}"
            );
        }
        let harmless = "max_tokens=5&author=x&page_token=y&after=z&code=1&deep&monkey=b";
        assert_eq!(without_credentials(harmless), harmless);
    }

    #[test]
    fn decoding_reverts_encoding() {
        for name in ["gpt-4o", "meta/llama:8b", "a b&c=d+e%f#g?é\u{0}", ""] {
            assert_eq!(decoded(&encoded(name)).as_deref(), Some(name));
        }
        for bad in ["%", "%1", "%zz", "%+1", "%ff"] {
            assert_eq!(decoded(bad), None, "{bad}");
        }
    }
}
