//! Parsers for values of settings. An error describes the value; the caller appends the allowed
//! values from the table of settings.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::networks::{Network, Networks};
use super::problems::quoted;
use super::settings::{
    MOST_CONNECTIONS, MOST_MODELS, MOST_RESETS, MOST_STREAMS, MOST_WAITING, MOST_WORKERS, Setting,
};
use super::suggest::did_you_mean;

/// An unparsed value.
#[derive(Clone, Copy)]
pub(super) enum RawSetting<'a> {
    Toml(&'a DeValue<'a>),
    /// Text of a variable, a flag or a default.
    Text(&'a str),
}

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(60 * 60);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const DAYS: (&str, u64) = ("d", 86_400_000);
const DURATION_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// Maximum length of a host name (RFC 1035), in bytes.
const LONGEST_HOST: usize = 253;

const LARGEST_BODY: RangeInclusive<u64> = 1..=2 << 30;
/// Range of memory limits. Less than 1 MiB would not suffice for a few connections.
const LARGEST_MEMORY: RangeInclusive<u64> = 1 << 20..=1 << 40;
const BODY_RATE: RangeInclusive<u64> = 1..=1 << 30;
/// Range of `server.max_header`. The lower bound is the smallest read buffer of hyper.
const LARGEST_HEADER: RangeInclusive<u64> = 8 << 10..=1 << 20;
const SIZE_UNITS: [(&str, u64); 7] = [
    ("", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

pub(super) fn host(raw: RawSetting<'_>) -> Result<IpAddr, String> {
    let text = text(raw, "an IP address")?;
    if text.eq_ignore_ascii_case("localhost") {
        return Ok(Ipv4Addr::LOCALHOST.into());
    }
    // Convert IPv4 written as IPv6: not all systems can listen on such an address.
    (text.parse::<IpAddr>())
        .map(|address| address.to_canonical())
        .map_err(|_| format!("{} is not an IP address", quoted(text)))
}

pub(super) fn port(raw: RawSetting<'_>) -> Result<u16, String> {
    let (number, shown) = whole_number(raw)?;
    u16::try_from(number).map_err(|_| out_of_range(&shown))
}

pub(super) fn boolean(raw: RawSetting<'_>) -> Result<bool, String> {
    match raw {
        RawSetting::Toml(DeValue::Boolean(boolean)) => Ok(*boolean),
        RawSetting::Text("true") => Ok(true),
        RawSetting::Text("false") => Ok(false),
        other => Err(not(other, "true or false")),
    }
}

pub(super) fn networks(raw: RawSetting<'_>) -> Result<Networks, String> {
    list(raw, Network::parse).map(Networks::new)
}

/// Parses host names, converted to lower case, and IP addresses.
pub(super) fn hosts(raw: RawSetting<'_>) -> Result<Vec<String>, String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_letter);
    let is_name = |name: &str| name.len() <= LONGEST_HOST && name.split('.').all(is_label);
    list(raw, |item| {
        match item.trim_matches(['[', ']']).parse::<IpAddr>() {
            Ok(address) => Ok(address.to_canonical().to_string()),
            Err(_) if is_name(item) => Ok(item.to_ascii_lowercase()),
            Err(_) => Err(format!("{} is not a host name or IP address", quoted(item))),
        }
    })
}

pub(super) fn workers(raw: RawSetting<'_>) -> Result<usize, String> {
    number(raw, &(1..=MOST_WORKERS))
}

pub(super) fn queue(raw: RawSetting<'_>) -> Result<usize, String> {
    number(raw, &(0..=MOST_WAITING))
}

pub(super) fn max_models(raw: RawSetting<'_>) -> Result<usize, String> {
    number(raw, &(1..=MOST_MODELS))
}

pub(super) fn connections(raw: RawSetting<'_>) -> Result<usize, String> {
    number(raw, &(1..=MOST_CONNECTIONS))
}

pub(super) fn streams(raw: RawSetting<'_>) -> Result<u32, String> {
    number(raw, &(1..=MOST_STREAMS))
}

/// Parses a whole number within a range.
pub(super) fn number<T>(raw: RawSetting<'_>, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<i128> + PartialOrd,
{
    let (number, shown) = whole_number(raw)?;
    let number = T::try_from(number).map_err(|_| out_of_range(&shown))?;
    within(number, range, &shown)
}

pub(super) fn drain_timeout(raw: RawSetting<'_>) -> Result<Duration, String> {
    duration(raw, &(Duration::ZERO..=DAY))
}

/// Parses a timeout. Zero is not allowed.
pub(super) fn timeout(raw: RawSetting<'_>) -> Result<Duration, String> {
    duration(raw, &(MILLISECOND..=DAY))
}

pub(super) fn probe_interval(raw: RawSetting<'_>) -> Result<Duration, String> {
    duration(raw, &(100 * MILLISECOND..=DAY))
}

pub(super) fn every(raw: RawSetting<'_>) -> Result<Duration, String> {
    duration(raw, &(SECOND..=DAY))
}

/// Parses the age from which files are deleted.
pub(super) fn max_age(raw: RawSetting<'_>) -> Result<Duration, String> {
    let text = text(raw, "a time")?;
    span(text, &(HOUR..=3660 * DAY))
}

/// Parses the name of a variable that contains a secret. The error does not repeat an invalid name,
/// which is likely the secret itself.
pub(super) fn variable(raw: RawSetting<'_>) -> Result<String, String> {
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

/// True if a variable's name may be a key by mistake. Keys contain lower case letters; names of
/// variables usually do not.
pub(super) fn may_be_secret(variable: &str) -> bool {
    variable.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Returns the message for a variable that should contain a secret but is not set.
pub(super) fn not_set(variable: &str, setting: &Setting) -> String {
    if may_be_secret(variable) {
        let allowed = setting.allowed;
        format!("the variable that this names is not set, or empty; allowed: {allowed}")
    } else {
        format!("the variable {variable} is not set, or empty")
    }
}

/// Parses a TOML list, or text separated by commas or spaces. Items must be distinct.
pub(super) fn list<T: PartialEq>(
    raw: RawSetting<'_>,
    parse: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let texts: Vec<&str> = match raw {
        RawSetting::Text(text) => (text.split([',', ' ', '\t', '\n']))
            .filter(|item| !item.is_empty())
            .collect(),
        RawSetting::Toml(value) => {
            let items = value.as_array().ok_or_else(|| not(raw, "a list"))?;
            let text = |item: &'_ toml::Spanned<DeValue<'_>>| item.get_ref().as_str().is_some();
            if let Some(item) = items.iter().find(|item| !text(item)) {
                return Err(not(RawSetting::Toml(item.get_ref()), "text"));
            }
            items
                .iter()
                .filter_map(|item| item.get_ref().as_str())
                .collect()
        }
    };
    let mut items = Vec::new();
    for text in texts {
        let item = parse(text)?;
        if items.contains(&item) {
            return Err(format!("{} occurs twice", quoted(text)));
        }
        items.push(item);
    }
    Ok(items)
}

/// Parses a setting that allows only a few words, such as `forward` or `reject`.
pub(super) fn word<T: Copy>(raw: RawSetting<'_>, words: &[(&str, T)]) -> Result<T, String> {
    let text = text(raw, "a word")?;
    let found = words.iter().find(|(word, _)| *word == text);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let near = did_you_mean(text, words.iter().map(|(word, _)| *word));
        format!("{} is not known{near}", quoted(text))
    })
}

pub(super) fn max_body(raw: RawSetting<'_>) -> Result<usize, String> {
    size(raw, &LARGEST_BODY)
}

pub(super) fn body_memory(raw: RawSetting<'_>) -> Result<usize, String> {
    size(raw, &LARGEST_MEMORY)
}

/// Parses the size of a directory from which files are deleted.
pub(super) fn max_size(raw: RawSetting<'_>) -> Result<usize, String> {
    size(raw, &LARGEST_MEMORY)
}

pub(super) fn max_header(raw: RawSetting<'_>) -> Result<usize, String> {
    size(raw, &LARGEST_HEADER)
}

pub(super) fn body_rate(raw: RawSetting<'_>) -> Result<usize, String> {
    size(raw, &BODY_RATE)
}

pub(super) fn resets(raw: RawSetting<'_>) -> Result<u32, String> {
    number(raw, &(0..=MOST_RESETS))
}

/// Parses a number of bytes within a range.
fn size(raw: RawSetting<'_>, range: &RangeInclusive<u64>) -> Result<usize, String> {
    let (bytes, shown) = if let RawSetting::Toml(DeValue::Integer(_)) = raw {
        let (number, shown) = whole_number(raw)?;
        (u64::try_from(number).unwrap_or(u64::MAX), shown)
    } else {
        let text = text(raw, "a size")?;
        let shown = quoted(text);
        let bytes = counted(text, &SIZE_UNITS).ok_or_else(|| format!("{shown} is not a size"))?;
        (bytes, shown)
    };
    let bytes = within(bytes, range, &shown)?;
    usize::try_from(bytes).map_err(|_| out_of_range(&shown))
}

/// Formats a duration as in the configuration file.
pub(super) fn duration_in_words(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    in_units(duration.as_millis(), &DURATION_UNITS)
}

/// Formats an age in hours or days.
pub(super) fn age_in_words(age: Duration) -> String {
    let [.., hours] = DURATION_UNITS;
    in_units(age.as_millis(), &[hours, DAYS])
}

/// Formats a size as in the configuration file.
pub(super) fn size_in_words(bytes: usize) -> String {
    in_units(bytes as u128, &SIZE_UNITS[..4])
}

fn duration(raw: RawSetting<'_>, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    if let RawSetting::Toml(DeValue::Integer(number)) = raw {
        return Err(format!("{number} has no unit"));
    }
    let text = text(raw, "a duration")?;
    let shown = quoted(text);
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{shown} has no unit"));
    }
    let milliseconds =
        counted(text, &DURATION_UNITS).ok_or_else(|| format!("{shown} is not a duration"))?;
    within(Duration::from_millis(milliseconds), range, &shown)
}

/// Parses a duration of the command line, which may be in days.
pub(crate) fn span(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let shown = quoted(text);
    let [a, b, c, d] = DURATION_UNITS;
    let milliseconds = counted(text, &[a, b, c, d, DAYS])
        .ok_or_else(|| format!("{shown} is not a duration like 500ms, 30s, 5m, 1h or 7d"))?;
    within(Duration::from_millis(milliseconds), range, &shown)
}

/// Parses digits and a unit. An overflow yields `u64::MAX`, which every range rejects.
fn counted(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, worth) = units.iter().find(|(name, _)| *name == unit)?;
    if number.is_empty() {
        return None;
    }
    let number: u64 = number.parse().unwrap_or(u64::MAX);
    Some(number.saturating_mul(*worth))
}

/// Formats an amount in the largest unit that leaves no remainder.
fn in_units(amount: u128, units: &[(&str, u64)]) -> String {
    let fits = |worth: u64| amount >= u128::from(worth) && amount.is_multiple_of(worth.into());
    let unit = units.iter().rev().find(|(_, worth)| fits(*worth));
    let (name, worth) = unit.unwrap_or(&units[0]);
    format!("{}{name}", amount / u128::from(*worth))
}

/// Parses a whole number. Also returns the text to show in a message.
fn whole_number(raw: RawSetting<'_>) -> Result<(i128, String), String> {
    let (number, shown) = match raw {
        RawSetting::Toml(DeValue::Integer(number)) => (
            i128::from_str_radix(number.as_str(), number.radix()),
            number.to_string(),
        ),
        RawSetting::Text(text) if is_whole_number(text) => (text.parse(), text.to_owned()),
        other => return Err(not(other, "a whole number")),
    };
    // A well-formed number that does not parse has too many digits.
    let shown: String = shown.chars().take(40).collect();
    number
        .map(|number| (number, shown.clone()))
        .map_err(|_| out_of_range(&shown))
}

fn is_whole_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

pub(super) fn text<'a>(raw: RawSetting<'a>, wanted: &str) -> Result<&'a str, String> {
    match raw {
        RawSetting::Text(text) => Ok(text),
        RawSetting::Toml(value) => value.as_str().ok_or_else(|| not(raw, wanted)),
    }
}

fn within<T: PartialOrd>(value: T, range: &RangeInclusive<T>, shown: &str) -> Result<T, String> {
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(out_of_range(shown))
    }
}

fn out_of_range(shown: &str) -> String {
    format!("{shown} is out of range")
}

/// Returns the message for a value of the wrong type.
pub(super) fn not(raw: RawSetting<'_>, wanted: &str) -> String {
    match raw {
        RawSetting::Text(text) => format!("{} is not {wanted}", quoted(text)),
        // "is text" explains why a number in quotes is rejected.
        RawSetting::Toml(DeValue::String(text)) => {
            format!("{} is text, not {wanted}", quoted(text))
        }
        RawSetting::Toml(DeValue::Integer(number)) => format!("{number} is not {wanted}"),
        RawSetting::Toml(DeValue::Float(number)) => format!("{number} is not {wanted}"),
        RawSetting::Toml(DeValue::Boolean(boolean)) => format!("{boolean} is not {wanted}"),
        RawSetting::Toml(DeValue::Datetime(_)) => format!("a date is not {wanted}"),
        RawSetting::Toml(DeValue::Array(_)) => format!("a list is not {wanted}"),
        RawSetting::Toml(DeValue::Table(_)) => format!("a section is not {wanted}"),
    }
}
