//! Types of settings. Range and unit belong to the type, so that parser, documentation and messages
//! use the same ones.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use toml::de::DeValue;

use super::instance::{self, Instance};
use super::networks::{Network, Networks};
use super::problems::{one_line, quoted};
use super::suggest::did_you_mean;
use super::values::{self, RawSetting};
use crate::headers::HeaderPatterns;

const MILLISECOND: Duration = Duration::from_millis(1);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const MINUTE: Duration = Duration::from_secs(60);
pub(super) const HOUR: Duration = Duration::from_secs(60 * 60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Maximum length of a host name (RFC 1035), in bytes.
const MAX_HOST: usize = 253;

/// Type of a setting's value, such as a number within a range.
pub(super) trait ValueType<T>: Sync {
    /// Parses a value. The error describes the value; the caller appends the allowed values.
    fn parse(&self, raw: RawSetting<'_>) -> Result<T, String>;

    /// Formats a value as it is written in the configuration file.
    fn format(&self, value: &T) -> String;

    /// Describes the allowed values, for error messages and the documentation.
    fn allowed(&self) -> String;

    /// Returns a JSON Schema of the allowed values in the file. It may allow more values than
    /// [`Self::parse`] accepts.
    fn schema(&self) -> Value;
}

/// Type of a setting that may have no value. `llmlb check` then shows `unset`.
pub(super) struct Optional<V> {
    pub(super) of: V,
    pub(super) unset: &'static str,
}

impl<T, V: ValueType<T>> ValueType<Option<T>> for Optional<V> {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Option<T>, String> {
        self.of.parse(raw).map(Some)
    }

    fn format(&self, value: &Option<T>) -> String {
        let unset = || self.unset.to_owned();
        value
            .as_ref()
            .map_or_else(unset, |value| self.of.format(value))
    }

    fn allowed(&self) -> String {
        self.of.allowed()
    }

    fn schema(&self) -> Value {
        self.of.schema()
    }
}

pub(super) struct Boolean;

impl ValueType<bool> for Boolean {
    fn parse(&self, raw: RawSetting<'_>) -> Result<bool, String> {
        match raw {
            RawSetting::Toml(DeValue::Boolean(boolean)) => Ok(*boolean),
            RawSetting::Text("true") => Ok(true),
            RawSetting::Text("false") => Ok(false),
            other => Err(values::not(other, "true or false")),
        }
    }

    fn format(&self, value: &bool) -> String {
        value.to_string()
    }

    fn allowed(&self) -> String {
        "true or false".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "boolean" })
    }
}

/// A whole number.
pub(super) struct Number<T> {
    pub(super) range: RangeInclusive<T>,
}

impl<T> ValueType<T> for Number<T>
where
    T: TryFrom<i128> + PartialOrd + fmt::Display + Sync,
{
    fn parse(&self, raw: RawSetting<'_>) -> Result<T, String> {
        values::number(raw, &self.range)
    }

    fn format(&self, value: &T) -> String {
        value.to_string()
    }

    fn allowed(&self) -> String {
        format!("{} to {}", self.range.start(), self.range.end())
    }

    fn schema(&self) -> Value {
        // Write the bounds as JSON numbers: readers of JSON keep integers up to 2⁵³ exactly, and
        // the ranges of all settings are below that.
        let end = |end: &T| end.to_string().parse::<u64>().unwrap_or_default();
        let (start, end) = (end(self.range.start()), end(self.range.end()));
        json!({ "type": "integer", "minimum": start, "maximum": end })
    }
}

/// Type of a setting that is a duration, written in milliseconds, seconds, minutes or hours.
pub(super) struct TimeSpan {
    pub(super) range: RangeInclusive<Duration>,
}

/// Type of a setting that is a timeout. Zero is rejected, because every operation would time out at
/// once.
pub(super) const TIMEOUT: TimeSpan = TimeSpan {
    range: MILLISECOND..=DAY,
};

impl ValueType<Duration> for TimeSpan {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Duration, String> {
        values::duration(raw, &self.range)
    }

    fn format(&self, value: &Duration) -> String {
        values::duration_text(*value)
    }

    fn allowed(&self) -> String {
        let [start, end] = [self.range.start(), self.range.end()].map(|end| self.format(end));
        format!(r#"text like "500ms", "30s", "5m" or "1h", from "{start}" to "{end}""#)
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h)$" })
    }
}

/// Type of a setting that is the age from which files are deleted, in hours or days.
pub(super) struct Age {
    pub(super) range: RangeInclusive<Duration>,
}

impl ValueType<Duration> for Age {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Duration, String> {
        values::span(values::text(raw, "a time")?, &self.range)
    }

    fn format(&self, value: &Duration) -> String {
        values::age_text(*value)
    }

    fn allowed(&self) -> String {
        let [start, end] = [self.range.start(), self.range.end()].map(|end| self.format(end));
        format!(r#"text like "36h" or "90d", from "{start}" to "{end}""#)
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[0-9]+(ms|s|m|h|d)$" })
    }
}

/// A number of bytes.
pub(super) struct ByteSize {
    pub(super) range: RangeInclusive<u64>,
    pub(super) examples: &'static str,
}

impl ByteSize {
    /// Returns the type of a setting that limits memory: a number of bytes within `range`. Its
    /// examples in messages are typical sizes of memory.
    pub(super) const fn in_memory(range: RangeInclusive<u64>) -> Self {
        Self {
            range,
            examples: r#""64KiB", "32MiB" or "1GiB" (also KB, MB, GB)"#,
        }
    }
}

impl ValueType<u64> for ByteSize {
    fn parse(&self, raw: RawSetting<'_>) -> Result<u64, String> {
        values::size(raw, &self.range)
    }

    fn format(&self, value: &u64) -> String {
        values::size_text(*value)
    }

    fn allowed(&self) -> String {
        let quoted = |bytes: &u64| match values::size_text(*bytes) {
            number if number.bytes().all(|byte| byte.is_ascii_digit()) => number,
            text => format!("\"{text}\""),
        };
        let [start, end] = [self.range.start(), self.range.end()].map(quoted);
        let examples = self.examples;
        format!("a number of bytes, or text like {examples}, from {start} to {end}")
    }

    fn schema(&self) -> Value {
        let (start, end) = (self.range.start(), self.range.end());
        json!({ "anyOf": [
            { "type": "integer", "minimum": start, "maximum": end },
            { "type": "string", "pattern": "^[0-9]+([KMG]i?B)?$" },
        ] })
    }
}

impl ValueType<usize> for ByteSize {
    fn parse(&self, raw: RawSetting<'_>) -> Result<usize, String> {
        let bytes: u64 = self.parse(raw)?;
        usize::try_from(bytes).map_err(|_| format!("{bytes} is out of range"))
    }

    fn format(&self, value: &usize) -> String {
        values::size_text(*value as u64)
    }

    fn allowed(&self) -> String {
        ValueType::<u64>::allowed(self)
    }

    fn schema(&self) -> Value {
        ValueType::<u64>::schema(self)
    }
}

/// Type of a setting that allows a few words, each of which stands for a value of `T`.
pub(super) struct Word<T: 'static> {
    pub(super) words: &'static [(&'static str, T)],
    /// Expected value in error messages: `a name` yields "7 is not a name".
    pub(super) noun: &'static str,
}

impl<T: Copy + PartialEq + Sync> ValueType<T> for Word<T> {
    fn parse(&self, raw: RawSetting<'_>) -> Result<T, String> {
        let text = values::text(raw, self.noun)?;
        let found = self.words.iter().find(|(word, _)| *word == text);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let near = did_you_mean(text, self.words.iter().map(|(word, _)| *word));
            format!("{} is not known{near}", quoted(text))
        })
    }

    fn format(&self, value: &T) -> String {
        word_for(value, self.words).to_owned()
    }

    fn allowed(&self) -> String {
        let words: Vec<&str> = self.words.iter().map(|(word, _)| *word).collect();
        match words.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        }
    }

    fn schema(&self) -> Value {
        let words = self.words.iter().map(|(word, _)| *word);
        json!({ "enum": words.collect::<Vec<_>>() })
    }
}

/// Returns the word that stands for a value in the configuration file, such as `refuse` for
/// `OnFailure::Refuse`.
pub(super) fn word_for<T: PartialEq>(meaning: &T, words: &[(&'static str, T)]) -> &'static str {
    let found = words.iter().find(|(_, known)| known == meaning);
    found.map_or("", |(word, _)| word)
}

/// Type of a setting that is an IP address or `localhost`.
pub(super) struct IpAddress;

impl ValueType<IpAddr> for IpAddress {
    fn parse(&self, raw: RawSetting<'_>) -> Result<IpAddr, String> {
        let text = values::text(raw, "an IP address")?;
        if text.eq_ignore_ascii_case("localhost") {
            return Ok(Ipv4Addr::LOCALHOST.into());
        }
        // Convert an IPv4 address written as IPv6, because some systems cannot listen on that form.
        (text.parse::<IpAddr>())
            .map(|address| address.to_canonical())
            .map_err(|_| format!("{} is not an IP address", quoted(text)))
    }

    fn format(&self, value: &IpAddr) -> String {
        value.to_string()
    }

    fn allowed(&self) -> String {
        "an IP address, or localhost".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^([0-9A-Fa-f:.]+|[Ll][Oo][Cc][Aa][Ll][Hh][Oo][Ss][Tt])$" })
    }
}

/// Type of a setting that is a list of host names, converted to lower case, and IP addresses.
pub(super) struct HostNames;

impl ValueType<Vec<String>> for HostNames {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Vec<String>, String> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_letter);
        let is_name = |name: &str| name.len() <= MAX_HOST && name.split('.').all(is_label);
        values::list(raw, |item| {
            match item.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(address) => Ok(address.to_canonical().to_string()),
                Err(_) if is_name(item) => Ok(item.to_ascii_lowercase()),
                Err(_) => Err(format!("{} is not a host name or IP address", quoted(item))),
            }
        })
    }

    fn format(&self, value: &Vec<String>) -> String {
        list_text(value.join(", "))
    }

    fn allowed(&self) -> String {
        "a list of host names and IP addresses, without ports".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "uniqueItems": true })
    }
}

/// Type of a setting that is the path of a file. A relative path starts at the working directory.
pub(super) struct FilePath;

impl ValueType<PathBuf> for FilePath {
    fn parse(&self, raw: RawSetting<'_>) -> Result<PathBuf, String> {
        match values::text(raw, "the path of a file")? {
            "" => Err("the path is empty".to_owned()),
            path => Ok(path.into()),
        }
    }

    fn format(&self, value: &PathBuf) -> String {
        value.display().to_string()
    }

    fn allowed(&self) -> String {
        "the path of a file".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "minLength": 1 })
    }
}

/// Type of a setting that is the name of a server in usage records.
pub(super) struct InstanceName;

impl ValueType<Instance> for InstanceName {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Instance, String> {
        let text = values::text(raw, "a name")?;
        Instance::parse(text)
            .ok_or_else(|| format!("{} is not a name of an instance", quoted(text)))
    }

    fn format(&self, value: &Instance) -> String {
        value.as_str().to_owned()
    }

    fn allowed(&self) -> String {
        let most = instance::MAX_LENGTH;
        format!("1 to {most} letters, digits and the characters - _ . :")
    }

    fn schema(&self) -> Value {
        let pattern = format!("^[A-Za-z0-9_.:-]{{1,{}}}$", instance::MAX_LENGTH);
        json!({ "type": "string", "pattern": pattern })
    }
}

/// Type of a setting that is a list of IP addresses and networks in CIDR notation.
pub(super) struct NetworkList;

impl ValueType<Networks> for NetworkList {
    fn parse(&self, raw: RawSetting<'_>) -> Result<Networks, String> {
        values::list(raw, Network::parse).map(Networks::new)
    }

    fn format(&self, value: &Networks) -> String {
        list_text(value.to_string())
    }

    fn allowed(&self) -> String {
        "a list of IP addresses and networks like 10.0.0.0/8".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "uniqueItems": true })
    }
}

/// Type of a setting that is a list of header names which may be forwarded.
pub(super) struct HeaderNames;

impl ValueType<HeaderPatterns> for HeaderNames {
    fn parse(&self, raw: RawSetting<'_>) -> Result<HeaderPatterns, String> {
        let pattern = |name: &str| {
            let refused = |why| format!("{} {why}", quoted(name));
            HeaderPatterns::parse_one(name).map_err(refused)
        };
        values::list(raw, pattern).map(HeaderPatterns::new)
    }

    fn format(&self, value: &HeaderPatterns) -> String {
        value.to_string()
    }

    fn allowed(&self) -> String {
        "a list of header names; a * at the end of one matches any rest".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "array", "items": { "type": "string", "minLength": 1 }, "uniqueItems": true })
    }
}

/// Type of a setting that is the path of a directory, which need not exist yet.
pub(super) struct DirectoryPath;

impl ValueType<PathBuf> for DirectoryPath {
    fn parse(&self, raw: RawSetting<'_>) -> Result<PathBuf, String> {
        let text = values::text(raw, "a path")?;
        if text.is_empty() || text.contains('\0') {
            return Err(format!("{} is not a path", quoted(text)));
        }
        // Reject a path that begins with `~`: a shell replaces it in a command line, but no program
        // replaces it in a file.
        if text == "~" || text.starts_with("~/") {
            return Err(format!(
                "{} begins with ~, which llmlb does not replace by the home directory",
                quoted(text)
            ));
        }
        Ok(text.into())
    }

    fn format(&self, value: &PathBuf) -> String {
        one_line(&value.to_string_lossy())
    }

    fn allowed(&self) -> String {
        "a path such as /var/lib/llmlb".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "minLength": 1 })
    }
}

/// Type of a setting that names the environment variable with a secret.
pub(super) struct VariableName;

impl ValueType<String> for VariableName {
    /// Parses the name of an environment variable. The error does not repeat an invalid name, which
    /// is likely the secret itself.
    fn parse(&self, raw: RawSetting<'_>) -> Result<String, String> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        match raw {
            RawSetting::Text(name) => Some(name),
            RawSetting::Toml(value) => value.as_str(),
        }
        .filter(|name| !name.is_empty() && name.bytes().all(allowed))
        .filter(|name| !name.starts_with(|first: char| first.is_ascii_digit()))
        .map(str::to_owned)
        .ok_or_else(|| {
            "this cannot be the name of a variable (the key itself does not belong here)".to_owned()
        })
    }

    fn format(&self, value: &String) -> String {
        value.clone()
    }

    fn allowed(&self) -> String {
        "the name of an environment variable".to_owned()
    }

    fn schema(&self) -> Value {
        json!({ "type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$" })
    }
}

impl VariableName {
    /// True if the text given as a variable's name may be the secret itself, entered by mistake, so
    /// that messages must not show it. Secrets contain lower case letters; names of variables
    /// usually do not.
    pub(super) fn may_be_secret(variable: &str) -> bool {
        variable.bytes().any(|byte| byte.is_ascii_lowercase())
    }

    /// Returns the message for an environment variable that should contain a secret but is not set.
    pub(super) fn not_set(variable: &str) -> String {
        if Self::may_be_secret(variable) {
            let allowed = Self.allowed();
            format!("the variable that this setting names is not set, or empty; allowed: {allowed}")
        } else {
            format!("the variable {variable} is not set, or empty")
        }
    }
}

fn list_text(items: String) -> String {
    if items.is_empty() {
        "-".to_owned()
    } else {
        items
    }
}
