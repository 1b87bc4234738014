//! What is wrong with a body, and where. Nothing of it is kept: it is read to find the place.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use crate::json::{DEEPEST, MOST_FIELDS};

/// Maximum size of a body in which the place of an error is searched: the search is slow.
const MOST_READ: usize = 1 << 20;

/// Why a text that [`crate::json`] does not take is no request.
pub(super) fn explain(body: &[u8]) -> String {
    let limits =
        format!("it is nested more than {DEEPEST} deep or has more than {MOST_FIELDS} fields");
    if body.len() > MOST_READ {
        return format!("it is not valid, or {limits}");
    }
    match serde_json::from_slice::<Object>(body) {
        Ok(Object) => limits,
        Err(error) => error.to_string(),
    }
}

/// An object, whatever it has.
struct Object;

/// Any value. Unlike serde's own it is looked at as closely as if it were kept.
struct Anything;

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Object;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object, A::Error> {
                Anything.visit_map(map).map(|Anything| Object)
            }
        }
        from.deserialize_map(Fields)
    }
}

impl<'de> Deserialize<'de> for Anything {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for Anything {
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
    fn what_is_told_is_what_a_parser_tells_that_keeps_everything() {
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
