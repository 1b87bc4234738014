//! Text that other processes choose. Before it is printed or logged, the characters that could steer a
//! terminal or reorder a line are replaced.

use serde_json::Value;

/// The longest name that is taken from a record, in characters.
const LONGEST: usize = 256;

/// The text with each unsafe character replaced by `?`.
pub(crate) fn plain(text: String) -> String {
    if text.contains(is_unsafe) {
        text.replace(is_unsafe, "?")
    } else {
        text
    }
}

/// The same for a name, which is shortened if it is longer than anyone reads.
pub(crate) fn name(text: String) -> String {
    let mut text = plain(text);
    if let Some((end, _)) = text.char_indices().nth(LONGEST) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// The same for every text in a JSON value, whose length is its owner's affair.
pub(crate) fn make_plain(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(is_unsafe) => *text = text.replace(is_unsafe, "?"),
        Value::Array(values) => values.iter_mut().for_each(make_plain),
        Value::Object(fields) => {
            let plain = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                make_plain(&mut value);
                (name.replace(is_unsafe, "?"), value)
            });
            *fields = plain.collect();
        }
        _ => {}
    }
}

/// True for characters that change how the text around them is displayed: control characters, line
/// and paragraph separators, bidirectional controls, and format characters that are invisible.
///
/// ```
/// let name = "root\u{1b}[2J";
/// assert_eq!(name.replace(tenure::text::is_unsafe, "?"), "root?[2J");
/// ```
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_characters_are_replaced_and_others_stay() {
        for (text, expected) in [
            ("zoë 日本 a-b_c.d", "zoë 日本 a-b_c.d"),
            ("\u{1b}[31mred\u{1b}[0m", "?[31mred?[0m"),
            ("a\nb\tc\rd", "a?b?c?d"),
            ("\u{9b}2J", "?2J"),
            ("user\u{202e}toor", "user?toor"),
            ("a\u{200b}b\u{2066}c\u{e0041}", "a?b?c?"),
        ] {
            assert_eq!(plain(text.to_owned()), expected);
        }
        assert_eq!(plain("é".repeat(300)).chars().count(), 300);
        assert_eq!(name("é".repeat(300)).chars().count(), LONGEST + 1);
    }

    #[test]
    fn every_text_of_a_value_is_made_plain() {
        let mut value = serde_json::json!({"a\u{1b}": ["\u{202e}x", {"b": "\r"}], "n": 1});
        make_plain(&mut value);
        assert_eq!(value, serde_json::json!({"a?": ["?x", {"b": "?"}], "n": 1}));
    }
}
