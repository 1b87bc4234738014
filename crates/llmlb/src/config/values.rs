//! Parsers for numbers, lists, durations and sizes. An error describes the value; the setting appends
//! the allowed values.

use std::ops::RangeInclusive;
use std::time::Duration;

use toml::de::DeValue;

use super::problems::quoted;

/// An unparsed value.
#[derive(Clone, Copy)]
pub(super) enum RawSetting<'a> {
    Toml(&'a DeValue<'a>),
    /// Text of an environment variable or a flag, in which numbers and lists are not yet
    /// recognized.
    Text(&'a str),
}

const DAYS: (&str, u64) = ("d", 86_400_000);
const DURATION_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

const SIZE_UNITS: [(&str, u64); 7] = [
    ("", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

/// Parses a whole number, and rejects a number outside of the range.
pub(super) fn number<T>(raw: RawSetting<'_>, range: &RangeInclusive<T>) -> Result<T, String>
where
    T: TryFrom<i128> + PartialOrd,
{
    let (number, shown) = whole_number(raw)?;
    let number = T::try_from(number).map_err(|_| out_of_range(&shown))?;
    within(number, range, &shown)
}

/// Parses a TOML list, or text separated by commas or spaces. A repeated item is rejected.
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

/// Parses a number of bytes, such as `32MiB`, and rejects a number outside of the range.
pub(super) fn size(raw: RawSetting<'_>, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let (bytes, shown) = if let RawSetting::Toml(DeValue::Integer(_)) = raw {
        let (number, shown) = whole_number(raw)?;
        (u64::try_from(number).unwrap_or(u64::MAX), shown)
    } else {
        let text = text(raw, "a size")?;
        let shown = quoted(text);
        let bytes = counted(text, &SIZE_UNITS).ok_or_else(|| format!("{shown} is not a size"))?;
        (bytes, shown)
    };
    within(bytes, range, &shown)
}

/// Formats a duration as it is written in the configuration file.
pub(super) fn duration_text(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    in_units(duration.as_millis(), &DURATION_UNITS)
}

/// Formats an age in hours or days, as it is written in the configuration file.
pub(super) fn age_text(age: Duration) -> String {
    let [.., hours] = DURATION_UNITS;
    in_units(age.as_millis(), &[hours, DAYS])
}

/// Formats a number of bytes as it is written in the configuration file.
pub(super) fn size_text(bytes: u64) -> String {
    in_units(bytes.into(), &SIZE_UNITS[..4])
}

pub(super) fn duration(
    raw: RawSetting<'_>,
    range: &RangeInclusive<Duration>,
) -> Result<Duration, String> {
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

/// Parses a duration on the command line, which may be in days.
pub(crate) fn span(text: &str, range: &RangeInclusive<Duration>) -> Result<Duration, String> {
    let shown = quoted(text);
    let [a, b, c, d] = DURATION_UNITS;
    let milliseconds = counted(text, &[a, b, c, d, DAYS])
        .ok_or_else(|| format!("{shown} is not a duration like 500ms, 30s, 5m, 1h or 7d"))?;
    within(Duration::from_millis(milliseconds), range, &shown)
}

/// Parses digits and a unit, such as `30s`. Returns `u64::MAX` for a number that is too large: that
/// value is outside of every range, so it is rejected.
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

/// Formats an amount in its largest unit that leaves no remainder, such as `5m` instead of `300s`.
fn in_units(amount: u128, units: &[(&str, u64)]) -> String {
    let fits = |worth: u64| amount >= u128::from(worth) && amount.is_multiple_of(worth.into());
    let unit = units.iter().rev().find(|(_, worth)| fits(*worth));
    let (name, worth) = unit.unwrap_or(&units[0]);
    format!("{}{name}", amount / u128::from(*worth))
}

/// Parses a whole number, and returns it together with its text for error messages.
fn whole_number(raw: RawSetting<'_>) -> Result<(i128, String), String> {
    let (number, shown) = match raw {
        RawSetting::Toml(DeValue::Integer(number)) => (
            i128::from_str_radix(number.as_str(), number.radix()),
            number.to_string(),
        ),
        RawSetting::Text(text) if is_whole_number(text) => (text.parse(), text.to_owned()),
        other => return Err(not(other, "a whole number")),
    };
    // Report a number that cannot be parsed as too large: it consists of digits, so it cannot be
    // wrong otherwise.
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

/// Returns the message for a value of the wrong type, such as `true is not a number`.
pub(super) fn not(raw: RawSetting<'_>, wanted: &str) -> String {
    match raw {
        RawSetting::Text(text) => format!("{} is not {wanted}", quoted(text)),
        // Write "is text" in the message, which explains why a number in quotes is rejected.
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
