//! Selected fields of a JSON object, each as the JSON text of its value.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Selected fields of a JSON object. There are few, so that a list is faster than a map.
pub(crate) struct Fields<'a> {
    found: Vec<(Cow<'a, str>, &'a RawValue)>,
    /// True if the object has no fields at all.
    pub(crate) is_empty: bool,
}

impl<'a> Fields<'a> {
    /// Parses an object and keeps the fields that `is_wanted` selects. Of several fields with the
    /// same name the last counts, but a second `id` is an error.
    pub(crate) fn read(
        json: &'a str,
        is_wanted: impl Fn(&str) -> bool,
    ) -> Result<Self, serde_json::Error> {
        let mut reader = serde_json::Deserializer::from_str(json);
        let fields = Wanted(is_wanted).deserialize(&mut reader)?;
        reader.end()?;
        Ok(fields)
    }

    /// Returns the JSON text of a field's value.
    pub(crate) fn get(&self, name: &str) -> Option<&'a str> {
        let mut found = self.found.iter();
        found
            .find(|field| field.0 == name)
            .map(|field| field.1.get())
    }

    /// Returns the content of a field whose value is a string.
    pub(crate) fn text(&self, name: &str) -> Option<Cow<'a, str>> {
        text(self.get(name)?).ok()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &'a str)> {
        let found = self.found.iter();
        found.map(|(name, value)| (&**name, value.get()))
    }
}

/// Returns the content of a JSON string, and an error for any other value. `json` must be valid
/// JSON.
pub(crate) fn text(json: &str) -> Result<Cow<'_, str>, serde_json::Error> {
    let inner = json
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'));
    match inner {
        // Fast path: the content of a JSON string without escapes is the text between its quotes.
        Some(inner) if !inner.contains('\\') => Ok(Cow::Borrowed(inner)),
        _ => serde_json::from_str::<Text<'_>>(json).map(|text| text.0),
    }
}

/// A JSON string; its content is copied only if it has escapes.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Deserializes an object into the [`Fields`] that the predicate selects.
struct Wanted<F>(F);

impl<'de, F: Fn(&str) -> bool> DeserializeSeed<'de> for Wanted<F> {
    type Value = Fields<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Fields<'de>, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, F: Fn(&str) -> bool> Visitor<'de> for Wanted<F> {
    type Value = Fields<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields<'de>, A::Error> {
        let mut fields = Fields {
            found: Vec::with_capacity(16),
            is_empty: true,
        };
        while let Some(Text(name)) = map.next_key()? {
            fields.is_empty = false;
            if !(self.0)(&name) {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let value = map.next_value()?;
            match fields.found.iter_mut().find(|field| field.0 == name) {
                Some(_) if name == "id" => return Err(Error::duplicate_field("id")),
                Some(field) => field.1 = value,
                None => fields.found.push((name, value)),
            }
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selected_fields_are_returned_as_they_are_written() {
        let json = r#"{"a\u0062":"x\"y","n": 1e400 ,"n":2.50,"other":[1,{"n":3}],"o":{"a": 1}}"#;
        let fields = Fields::read(json, |name| name != "other").unwrap();
        assert_eq!(fields.get("ab"), Some(r#""x\"y""#));
        assert_eq!(fields.text("ab").as_deref(), Some("x\"y"));
        assert_eq!(fields.get("n"), Some("2.50"), "the last one");
        assert_eq!(fields.text("n"), None);
        assert_eq!(fields.get("o"), Some(r#"{"a": 1}"#));
        assert_eq!(fields.get("other"), None);
        assert_eq!(fields.iter().count(), 3);
        assert!(!fields.is_empty && Fields::read("{}", |_| true).unwrap().is_empty);
        for json in ["", "[]", "{} {}", r#"{"id":1,"id":1}"#, r#"{"a":}"#] {
            assert!(Fields::read(json, |_| true).is_err(), "{json}");
        }
    }
}
