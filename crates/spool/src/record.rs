//! Records: JSON objects with an id.

use std::fmt;

use uuid::{Uuid, Version};

use crate::fields::{Fields, text};
use crate::time::new_id;

/// Maximum length of a record's JSON text in bytes. Longer records are rejected.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// A JSON object with an `id`. Its text is kept: unknown fields, the order of fields, Unicode and
/// numbers of any size are preserved.
///
/// ```
/// use spool::Record;
///
/// let record = Record::parse(r#"{ "tokens": 12345678901234567890123 }"#)?;
/// assert!(record.json().starts_with(r#"{"id":""#)); // a record without an id gets one
/// assert!(record.json().ends_with(r#","tokens":12345678901234567890123}"#));
/// assert_eq!(Record::parse(record.json())?, record);
/// # Ok::<(), spool::BadRecord>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    id: Uuid,
    /// JSON on one line, without white space between tokens.
    json: String,
}

/// Reason why a text is not a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord(String);

impl Record {
    /// Parses a record. A record without an id gets a new one.
    pub fn parse(json: &str) -> Result<Self, BadRecord> {
        Self::parse_or(json, new_id)
    }

    /// Parses a record. A record without an id gets `id`, such as the id in the name of its file.
    pub fn parse_with_id(json: &str, id: Uuid) -> Result<Self, BadRecord> {
        Self::parse_or(json, || id)
    }

    fn parse_or(json: &str, id: impl FnOnce() -> Uuid) -> Result<Self, BadRecord> {
        let found = read_fields(json, |name| name == "id")?;
        let (id_found, is_empty) = (id_in(&found)?, found.is_empty);
        let mut json = without_space(json)?;
        let id = if let Some(id) = id_found {
            id
        } else {
            let id = id();
            let comma = if is_empty { "" } else { "," };
            json.insert_str(1, &format!(r#""id":"{id}"{comma}"#));
            id
        };
        if json.len() > MAX_BYTES {
            let length = json.len();
            return Err(bad(format!("{length} bytes, more than {MAX_BYTES}")));
        }
        Ok(Self { id, json })
    }

    /// Creates a record without parsing it. The caller must ensure that `json` is a JSON object on
    /// one line, at most 1 MiB long, whose `id` is this one, a UUID of version 7. Consolidation
    /// checks the record, and moves an invalid one to `failed/`.
    ///
    /// ```
    /// use spool::Record;
    ///
    /// let id = uuid::Uuid::now_v7();
    /// let record = Record::from_trusted(id, format!(r#"{{"id":"{id}","tokens":42}}"#));
    /// assert_eq!(Record::parse(record.json()), Ok(record));
    /// ```
    pub fn from_trusted(id: Uuid, json: String) -> Self {
        debug_assert_eq!(Self::parse(&json).map(|record| record.id), Ok(id));
        Self { id, json }
    }

    /// Parses a record of a batch. Consolidation has checked it, so that only its id is parsed.
    pub(crate) fn parse_stored(json: &str) -> Result<Self, BadRecord> {
        // Fast path: in nearly all records the id is the first field.
        let first = json.strip_prefix(r#"{"id":""#);
        let first = first.and_then(|rest| rest.split_once('"'));
        let id = if let Some(id) = first.and_then(|(text, _)| parse_id(text).ok()) {
            id
        } else {
            let found =
                Fields::read(json, |name| name == "id").map_err(|error| bad(error.to_string()))?;
            id_in(&found)?.ok_or_else(|| bad("no id"))?
        };
        Ok(Self::trusted(id, json.to_owned()))
    }

    /// Creates a record that was checked when it was staged.
    pub(crate) fn trusted(id: Uuid, json: String) -> Self {
        Self { id, json }
    }

    /// Id of the record, which no other record has.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// JSON text of the record, on one line.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Parses the record, and returns the fields that `is_wanted` selects. Fails if the record was
    /// created with [`Record::from_trusted`] and is not valid.
    pub(crate) fn fields(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Fields<'_>, BadRecord> {
        let is_wanted = |name: &str| name == "id" || is_wanted(name);
        let fields = read_fields(&self.json, is_wanted)?;
        if id_in(&fields)? != Some(self.id) {
            let id = self.id;
            return Err(bad(format!(
                "the id in the record's JSON is not {id}, with which the record was staged"
            )));
        }
        Ok(fields)
    }

    /// Returns the text of the field with this name, if its value is a string that is not empty.
    #[cfg(feature = "http")]
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let fields = self.fields(|field| field == name).ok()?;
        let text = fields.text(name)?.into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// CRC-32 of the record's text. It distinguishes records with the same id.
    pub(crate) fn checksum(&self) -> u32 {
        crc32fast::hash(self.json.as_bytes())
    }
}

/// Parses the id of a record or of an entry: a UUID of version 7, so that ids sort by time.
pub(crate) fn parse_id(text: &str) -> Result<Uuid, BadRecord> {
    match Uuid::try_parse(text) {
        Ok(id) if id.get_version() == Some(Version::SortRand) => Ok(id),
        Ok(_) => Err(bad(format!("its id {text:?} is not a UUID of version 7"))),
        Err(_) => Err(bad(format!("its id {text:?} is not a UUID"))),
    }
}

/// Parses a JSON object that receivers can parse, and returns the fields that `is_wanted` selects.
fn read_fields(json: &str, is_wanted: impl Fn(&str) -> bool) -> Result<Fields<'_>, BadRecord> {
    let fields = Fields::read(json, is_wanted).map_err(|error| bad(error.to_string()))?;
    // Check that the strings in values are Unicode, since `Fields` does not decode them. A receiver
    // does, and many parsers reject the whole batch because of one such string.
    match lone_surrogate(json) {
        Some(escape) => Err(bad(format!("lone surrogate {escape} in a string"))),
        None => Ok(fields),
    }
}

/// Finds an escaped UTF-16 surrogate that is not part of a pair. `json` must be valid JSON.
fn lone_surrogate(json: &str) -> Option<&str> {
    let code_unit = |text: &str| {
        let digits = text.strip_prefix(r"\u")?.get(..4)?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut rest = json;
    while let Some(start) = rest.find('\\') {
        rest = &rest[start..];
        let length = match code_unit(rest) {
            Some(0xD800..=0xDBFF) if matches!(code_unit(&rest[6..]), Some(0xDC00..=0xDFFF)) => 12,
            Some(0xD800..=0xDFFF) => return Some(&rest[..6]),
            Some(_) => 6,
            None => 2,
        };
        rest = &rest[length..];
    }
    None
}

/// Returns the id among the fields of an object, if it has one.
fn id_in(fields: &Fields<'_>) -> Result<Option<Uuid>, BadRecord> {
    let id = fields
        .get("id")
        .map(|json| text(json).map_err(|error| bad(error.to_string())));
    id.map(|id| parse_id(&id?)).transpose()
}

fn bad(why: impl Into<String>) -> BadRecord {
    BadRecord(why.into())
}

/// Maximum depth of nested values. Many receivers use parsers with a limit that is little higher,
/// and would reject the whole batch.
const MAX_DEPTH: usize = 100;

/// Removes white space between the tokens of valid JSON.
fn without_space(json: &str) -> Result<String, BadRecord> {
    let mut kept = String::with_capacity(json.len());
    let (mut in_string, mut escaped, mut depth) = (false, false, 0_usize);
    for char in json.chars() {
        if in_string {
            in_string = escaped || char != '"';
            escaped = !escaped && char == '\\';
        } else if char.is_ascii_whitespace() {
            continue;
        } else {
            in_string = char == '"';
            match char {
                '{' | '[' => depth += 1,
                '}' | ']' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_DEPTH {
                return Err(bad(format!(
                    "its JSON is nested more than {MAX_DEPTH} deep"
                )));
            }
        }
        kept.push(char);
    }
    Ok(kept)
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a record: {}", self.0)
    }
}

impl std::error::Error for BadRecord {}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "01890a5d-ac96-774b-bcce-b302099a8057";

    #[test]
    fn parsing_preserves_numbers_strings_and_the_order_of_fields() {
        let text = format!(
            "{{ \"id\" : \"{ID}\",\r\n\t\"n\": 1e400, \"text\": \" a \\\" b\\\\\", \"é\": [ 1.10, {{ }} ] }}\n"
        );
        let record = Record::parse(&text).unwrap();
        assert_eq!(record.id().to_string(), ID);
        let expected = format!(r#"{{"id":"{ID}","n":1e400,"text":" a \" b\\","é":[1.10,{{}}]}}"#);
        assert_eq!(record.json(), expected);
        assert!(!record.json().contains('\n'));
    }

    #[test]
    fn record_without_an_id_gets_the_given_one() {
        let id = Uuid::try_parse(ID).unwrap();
        let given = |text| Record::parse_with_id(text, id).unwrap().json().to_owned();
        assert_eq!(given("{}"), format!(r#"{{"id":"{ID}"}}"#));
        assert_eq!(
            given(r#"{"a":{"id":"x"}}"#),
            format!(r#"{{"id":"{ID}","a":{{"id":"x"}}}}"#)
        );
        let own = Uuid::now_v7();
        let record = Record::parse_with_id(&format!(r#"{{"id":"{own}"}}"#), id).unwrap();
        assert_eq!(record.id(), own, "the record's own id takes precedence");
    }

    #[test]
    fn invalid_records_are_rejected_with_the_reason() {
        for (text, why) in [
            ("", "EOF"),
            ("[]", "a JSON object"),
            ("{} {}", "trailing characters"),
            (r#"{"id":7}"#, "expected a string"),
            (r#"{"id":"x"}"#, "is not a UUID"),
            (
                r#"{"id":"936da01f-9abd-4d9d-80c7-02af85c822a8"}"#,
                "version 7",
            ),
            (
                r#"{"id":"01890a5d-ac96-774b-bcce-b302099a8057","id":"01890a5d-ac96-774b-bcce-b302099a8057"}"#,
                "duplicate field",
            ),
            ("{\"a\":\"\n\"}", "control character"),
            (r#"{"a":"\ude00"}"#, r"lone surrogate \ude00"),
            (r#"{"a":[{"b":"\\\uD83D"}]}"#, r"lone surrogate \uD83D"),
            (r#"{"a":"\ud83d\n\ude00"}"#, r"lone surrogate \ud83d"),
            (
                r#"{"a":{"\ud83d\ud83d\ude00":1}}"#,
                r"lone surrogate \ud83d",
            ),
            (
                &format!("{{\"a\":{}{}}}", "[".repeat(100), "]".repeat(100)),
                "nested",
            ),
        ] {
            let error = Record::parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn stored_record_is_parsed_with_any_spelling_of_its_id() {
        for text in [
            format!(r#"{{"id":"{ID}","n":1}}"#),
            format!(r#"{{"n":1,"id":"{ID}"}}"#),
            format!(r#"{{"id":"{}\u0037"}}"#, &ID[..ID.len() - 1]),
            format!(r#"{{"i\u0064":"{ID}"}}"#),
        ] {
            let record = Record::parse(&text).unwrap();
            assert_eq!(Record::parse_stored(record.json()), Ok(record), "{text}");
        }
        assert!(Record::parse_stored("{}").is_err());
    }

    #[test]
    fn escaped_surrogate_pairs_and_text_that_resembles_an_escape_are_accepted() {
        for text in [
            r#"{"a":"\ud83d\ude00\uD83D\uDE00"}"#,
            r#"{"a":"\\ude00\u00e9\""}"#,
        ] {
            assert!(Record::parse(text).is_ok(), "{text}");
        }
    }

    #[test]
    fn trusted_record_with_a_lone_surrogate_is_rejected_when_its_fields_are_read() {
        let json = format!(r#"{{"id":"{ID}","a":"\ude00"}}"#);
        let record = Record::trusted(Uuid::try_parse(ID).unwrap(), json);
        assert!(record.fields(|_| false).is_err());
    }
}
