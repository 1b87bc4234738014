//! Finds the position and reason of an error in a JSON body, for the message to the client. The
//! values of the body are not stored, to save memory.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::json::{MAX_DEPTH, MAX_FIELDS};

/// Maximum size of a body in which the position of a JSON error is searched. The search is slow,
/// and clients could send many invalid bodies.
const MAX_SEARCHED: usize = 1 << 20;

/// Returns the reason why [`crate::json`] rejects a body, for the error message to the client.
pub(super) fn explain(body: &[u8]) -> String {
    let limits = format!(
        "the body is nested more than {MAX_DEPTH} deep or has more than {MAX_FIELDS} fields"
    );
    if body.len() > MAX_SEARCHED {
        return format!("the body is not valid JSON, or {limits}");
    }
    match serde_json::from_slice::<AnyObject>(body) {
        Ok(AnyObject) => limits,
        Err(error) => error.to_string(),
    }
}

/// Any JSON object.
struct AnyObject;

/// Visitor for any JSON value, which stores nothing. Unlike serde's `IgnoredAny`, it validates
/// numbers and strings, so that it finds every error.
struct AnyValue;

impl<'de> Deserialize<'de> for AnyObject {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct ObjectVisitor;
        impl<'de> Visitor<'de> for ObjectVisitor {
            type Value = AnyObject;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<AnyObject, A::Error> {
                AnyValue.visit_map(map).map(|AnyValue| AnyObject)
            }
        }
        from.deserialize_map(ObjectVisitor)
    }
}

impl<'de> Deserialize<'de> for AnyValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for AnyValue {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any valid JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while let Some(Self) = list.next_element()? {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while let Some((Self, Self)) = map.next_entry()? {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;

    #[test]
    fn error_is_the_one_of_a_parser_that_keeps_all_values() {
        let deep = "[".repeat(200);
        let texts: &[&[u8]] = &[
            b"",
            b"[]",
            b"7",
            b"\"x\"",
            b"{",
            b"{\"a\"",
            b"{\"a\":",
            b"{\"a\":1",
            b"{\"a\":1,",
            b"{\"a\":1,}",
            b"{\"a\" 1}",
            b"{a:1}",
            b"{1:1}",
            b"{\"a\":tru}",
            b"{\"a\":[1,]}",
            b"{\"a\":[1 2]}",
            b"{\"a\":1e999}",
            b"{\"a\":-}",
            b"{\"a\":01}",
            b"{\"a\":\"\\x\"}",
            b"{\"a\":\"\\ud800\"}",
            b"{\"a\":\"\xff\"}",
            b"{\"\xff\":1}",
            b"{\"a\":\"\n\"}",
            b"{\"a\":{\"b\":[{}},1]}",
            b"{}{}",
            b"{\"a\":1}\nx",
            deep.as_bytes(),
        ];
        for text in texts {
            let kept = serde_json::from_slice::<Map<String, Value>>(text).unwrap_err();
            let shown = String::from_utf8_lossy(text);
            assert_eq!(explain(text), kept.to_string(), "{shown}");
        }
        let deep = format!("{{\"a\":{deep}");
        let kept = serde_json::from_str::<Map<String, Value>>(&deep).unwrap_err();
        assert_eq!(explain(deep.as_bytes()), kept.to_string());
    }
}
