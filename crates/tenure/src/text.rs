//! Sanitizes text that other processes choose. Before it is printed or logged, characters that
//! control a terminal or reorder a line are replaced.

use serde_json::Value;

/// Maximum length of a name that is read from a lock record, in characters. Another program may
/// have written a name that would flood a message.
const MAX_NAME_CHARS: usize = 256;

/// Replaces each unsafe character by `?`.
pub(crate) fn sanitize(text: String) -> String {
    if text.contains(is_unsafe) {
        text.replace(is_unsafe, "?")
    } else {
        text
    }
}

/// Sanitizes a name and truncates it to [`MAX_NAME_CHARS`], so that it does not flood a message.
pub(crate) fn sanitize_name(text: String) -> String {
    let mut text = sanitize(text);
    if let Some((end, _)) = text.char_indices().nth(MAX_NAME_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Sanitizes every text in a JSON value. Lengths are not limited.
pub(crate) fn sanitize_json(value: &mut Value) {
    match value {
        Value::String(text) if text.contains(is_unsafe) => *text = text.replace(is_unsafe, "?"),
        Value::Array(values) => values.iter_mut().for_each(sanitize_json),
        Value::Object(fields) => {
            let plain = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                sanitize_json(&mut value);
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
    fn unsafe_characters_are_replaced_and_others_are_kept() {
        for (text, expected) in [
            ("zoë 日本 a-b_c.d", "zoë 日本 a-b_c.d"),
            ("\u{1b}[31mred\u{1b}[0m", "?[31mred?[0m"),
            ("a\nb\tc\rd", "a?b?c?d"),
            ("\u{9b}2J", "?2J"),
            ("user\u{202e}toor", "user?toor"),
            ("a\u{200b}b\u{2066}c\u{e0041}", "a?b?c?"),
        ] {
            assert_eq!(sanitize(text.to_owned()), expected);
        }
        assert_eq!(sanitize("é".repeat(300)).chars().count(), 300);
        assert_eq!(
            sanitize_name("é".repeat(300)).chars().count(),
            MAX_NAME_CHARS + 1
        );
    }

    #[test]
    fn every_text_of_a_json_value_is_sanitized() {
        let mut value = serde_json::json!({"a\u{1b}": ["\u{202e}x", {"b": "\r"}], "n": 1});
        sanitize_json(&mut value);
        assert_eq!(value, serde_json::json!({"a?": ["?x", {"b": "?"}], "n": 1}));
    }
}
