//! Types of the fields of an API key. The command line and `keys.json` follow the same rules.

use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde_json::{Value, json};
use toml::Spanned;
use toml::de::DeValue;

use super::super::backends::fields::ModelPatterns;
use super::super::env::Environment;
use super::super::problems::quoted;
use super::super::secret::Secret;
use super::super::types::{ValueType, VariableName};
use super::super::values::{self, RawSetting};
use super::{MAX_SECRET, MIN_SECRET, SecretHash};

/// Maximum length of the name of an API key or team, in bytes.
const MAX_NAME: usize = 64;

/// Name of an API key or team. It needs no escapes in JSON, logs and metrics.
pub(in super::super) struct KeyName;

impl ValueType<String> for KeyName {
    fn parse(&self, raw: RawSetting<'_>) -> Result<String, String> {
        let name = values::text(raw, "a name")?;
        if is_name(name) {
            Ok(name.to_owned())
        } else {
            Err(format!("{} cannot be a name", quoted(name)))
        }
    }

    fn format(&self, value: &String) -> String {
        value.clone()
    }

    fn allowed(&self) -> String {
        format!("1 to {MAX_NAME} of a-z A-Z 0-9 . _ -")
    }

    fn schema(&self) -> Value {
        let pattern = format!("^[A-Za-z0-9._][A-Za-z0-9._-]{{0,{}}}$", MAX_NAME - 1);
        json!({ "type": "string", "pattern": pattern })
    }
}

/// True for a valid name of an API key or team.
pub(crate) fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    // Reject a name that begins with a hyphen: commands would read it as a flag.
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('-')
}

/// SHA-256 of an API key's secret, in hexadecimal digits. The parser's error does not repeat the
/// text, which may be the secret itself.
pub(in super::super) struct Sha256Hex;

impl ValueType<SecretHash> for Sha256Hex {
    fn parse(&self, raw: RawSetting<'_>) -> Result<SecretHash, String> {
        let text = match raw {
            RawSetting::Text(text) => Some(text),
            RawSetting::Toml(value) => value.as_str(),
        };
        text.and_then(SecretHash::from_hex)
            .ok_or_else(|| "this is not a SHA-256 (the secret itself does not belong here)".into())
    }

    fn format(&self, _value: &SecretHash) -> String {
        "set".to_owned()
    }

    fn allowed(&self) -> String {
        "64 hexadecimal digits, as sha256sum prints them".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[0-9A-Fa-f]{64}$" })
    }
}

/// Time at which an API key expires.
pub(in super::super) struct Expiry;

impl ValueType<Timestamp> for Expiry {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Timestamp, String> {
        let text = match raw {
            RawSetting::Toml(DeValue::Datetime(time)) => time.to_string(),
            other => values::text(other, "a time")?.to_owned(),
        };
        parse_expiry(&text).ok_or_else(|| format!("{} is not a time", quoted(&text)))
    }

    fn format(&self, value: &Timestamp) -> String {
        value.to_string()
    }

    fn allowed(&self) -> String {
        "a date like 2026-12-31, or a time like 2026-12-31T18:00:00Z".to_owned()
    }

    fn schema(&self) -> Value {
        // Describe a date as text: TOML has a type for dates, JSON Schema has none, and editors
        // pass dates to the schema as text.
        json!({ "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}" })
    }
}

/// Parses the expiry of an API key: a time as in RFC 3339, or a date. A key with a date works until
/// the end of that day (UTC).
pub(crate) fn parse_expiry(text: &str) -> Option<Timestamp> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Some(time);
    }
    // Reject a time without an offset, which the parser for dates also accepts: its time zone would
    // be unclear.
    let is_date = text.len() == "2026-12-31".len();
    let date: Date = text.parse().ok().filter(|_| is_date)?;
    let end = date.tomorrow().ok()?.to_zoned(TimeZone::UTC).ok()?;
    Some(end.timestamp())
}

/// Parses names of models, each of which may end in a `*`. The error is the reason why a name is
/// rejected.
pub(crate) fn model_patterns(names: &[String]) -> Result<Vec<String>, String> {
    let names = names.iter().map(String::as_str);
    let names: Vec<DeValue<'_>> = names.map(|name| DeValue::String(name.into())).collect();
    let names = names.into_iter().map(|name| Spanned::new(0..0, name));
    let list = DeValue::Array(names.collect());
    ModelPatterns.parse(RawSetting::Toml(&list))
}

/// Returns the secret of an API key that an environment variable contains.
pub(super) fn secret_in(variable: &str, env: &Environment) -> Result<Secret, String> {
    let is_secret = |text: &str| {
        (MIN_SECRET..=MAX_SECRET).contains(&text.len())
            && text.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match env.text(variable) {
        Some(Ok(text)) if is_secret(text) => Ok(Secret::new(text.to_owned())),
        Some(_) => Err(format!(
            "the value of the variable {variable} cannot be a secret; allowed: {MIN_SECRET} to \
             {MAX_SECRET} visible ASCII characters"
        )),
        None => Err(VariableName::not_set(variable)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_with_a_date_works_until_the_end_of_the_day() {
        let parsed = |text: &str| parse_expiry(text).map(|time| time.to_string());
        for (text, time) in [
            ("2026-12-31", "2027-01-01T00:00:00Z"),
            ("2026-12-31T18:00:00Z", "2026-12-31T18:00:00Z"),
            ("2026-12-31T18:00:00.5+02:00", "2026-12-31T16:00:00.5Z"),
        ] {
            assert_eq!(parsed(text).as_deref(), Some(time), "{text}");
        }
        for text in [
            "",
            "never",
            "2026-13-01",
            "2026-12-31T18:00:00",
            "20261231",
            "9999-12-31",
            "2026-12-31\0",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn name_has_only_characters_that_need_no_escapes() {
        for name in ["a", "team-7.gpu_X", &"x".repeat(64)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", "-a", "a b", "a\n", "ä", "a/b", "a\"", &"x".repeat(65)] {
            assert!(!is_name(name), "{name:?}");
        }
    }
}
