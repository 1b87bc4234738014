//! One unit of what is staged: a JSON object with an id.

use std::fmt;

use uuid::{Uuid, Version};

use crate::fields::{Fields, text};
use crate::time::new_id;

/// The longest record that is taken.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// A JSON object with an `id`, kept as the text it came in: unknown fields, the order of fields,
/// Unicode and numbers of any size survive.
///
/// ```
/// use spool::Record;
///
/// let record = Record::parse(r#"{ "tokens": 12345678901234567890123 }"#)?;
/// assert!(record.json().starts_with(r#"{"id":""#)); // it had none and was given one
/// assert!(record.json().ends_with(r#","tokens":12345678901234567890123}"#));
/// assert_eq!(Record::parse(record.json())?, record);
/// # Ok::<(), spool::BadRecord>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    id: Uuid,
    /// One line: no white space outside of strings.
    json: String,
}

/// Why a text is no record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRecord(String);

impl Record {
    /// Reads a record. One without an id is given a new one.
    pub fn parse(json: &str) -> Result<Self, BadRecord> {
        Self::parse_or(json, new_id)
    }

    /// Reads a record. One without an id takes this one, such as that in its file's name.
    pub fn parse_with_id(json: &str, id: Uuid) -> Result<Self, BadRecord> {
        Self::parse_or(json, || id)
    }

    fn parse_or(json: &str, id: impl FnOnce() -> Uuid) -> Result<Self, BadRecord> {
        let found =
            Fields::read(json, |name| name == "id").map_err(|error| bad(error.to_string()))?;
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
            let long = json.len();
            return Err(bad(format!("it has {long} bytes, more than {MAX_BYTES}")));
        }
        Ok(Self { id, json })
    }

    /// A record whose writer vouches for it: `json` is a JSON object on one line, at most 1 MiB
    /// long, and its `id` is this one, a UUID of version 7. Saves the reading; what is wrong with
    /// it is found when it is consolidated, and put into quarantine.
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

    /// Reads a record that was checked when it was consolidated.
    pub(crate) fn parse_stored(json: &str) -> Result<Self, BadRecord> {
        // Where nearly all have it.
        let first = json.strip_prefix(r#"{"id":""#);
        let first = first.and_then(|rest| rest.split_once('"'));
        let id = if let Some(id) = first.and_then(|(text, _)| parse_id(text).ok()) {
            id
        } else {
            let found =
                Fields::read(json, |name| name == "id").map_err(|error| bad(error.to_string()))?;
            id_in(&found)?.ok_or_else(|| bad("it has no id"))?
        };
        Ok(Self::trusted(id, json.to_owned()))
    }

    /// A record that was checked when it was staged.
    pub(crate) fn trusted(id: Uuid, json: String) -> Self {
        Self { id, json }
    }

    /// What tells it from every other record.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Its text, on one line.
    pub fn json(&self) -> &str {
        &self.json
    }

    /// Those of its fields that are wanted. One that its writer vouched for may turn out to be no
    /// record.
    pub(crate) fn fields(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Fields<'_>, BadRecord> {
        let is_wanted = |name: &str| name == "id" || is_wanted(name);
        let fields = Fields::read(&self.json, is_wanted).map_err(|error| bad(error.to_string()))?;
        if id_in(&fields)? != Some(self.id) {
            return Err(bad(format!("its id is not {}", self.id)));
        }
        Ok(fields)
    }

    /// A field that is text, and not empty.
    #[cfg(feature = "http")]
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let fields = self.fields(|field| field == name).ok()?;
        let text = fields.text(name)?.into_owned();
        Some(text).filter(|text| !text.is_empty())
    }

    /// Tells this text from another one with the same id.
    pub(crate) fn checksum(&self) -> u32 {
        crc32fast::hash(self.json.as_bytes())
    }
}

/// Reads the id of a record or of a file: a UUID of version 7, so that ids sort by time.
pub(crate) fn parse_id(text: &str) -> Result<Uuid, BadRecord> {
    match Uuid::try_parse(text) {
        Ok(id) if id.get_version() == Some(Version::SortRand) => Ok(id),
        Ok(_) => Err(bad(format!("its id {text:?} is not a UUID of version 7"))),
        Err(_) => Err(bad(format!("its id {text:?} is not a UUID"))),
    }
}

/// The id among the fields of an object.
fn id_in(fields: &Fields<'_>) -> Result<Option<Uuid>, BadRecord> {
    let id = fields
        .get("id")
        .map(|json| text(json).map_err(|error| bad(error.to_string())));
    id.map(|id| parse_id(&id?)).transpose()
}

fn bad(why: impl Into<String>) -> BadRecord {
    BadRecord(why.into())
}

/// Deeper than many parsers go: whoever reads it must be able to.
const DEEPEST: usize = 100;

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
            if depth > DEEPEST {
                return Err(bad(format!("it is nested more than {DEEPEST} deep")));
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
    fn what_a_record_says_survives_to_the_digit() {
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
    fn a_record_without_an_id_takes_the_one_it_is_given() {
        let id = Uuid::try_parse(ID).unwrap();
        let given = |text| Record::parse_with_id(text, id).unwrap().json().to_owned();
        assert_eq!(given("{}"), format!(r#"{{"id":"{ID}"}}"#));
        assert_eq!(
            given(r#"{"a":{"id":"x"}}"#),
            format!(r#"{{"id":"{ID}","a":{{"id":"x"}}}}"#)
        );
        let own = Uuid::now_v7();
        let record = Record::parse_with_id(&format!(r#"{{"id":"{own}"}}"#), id).unwrap();
        assert_eq!(record.id(), own, "its own id goes first");
    }

    #[test]
    fn what_is_no_record_is_refused_with_the_reason() {
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
    fn what_was_stored_is_read_however_its_id_is_written() {
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
}
