//! Sanitizing of text that peers choose: model names, paths, error messages. Characters that could
//! control a terminal or reorder a line are replaced or escaped before the text is printed or logged.

use std::borrow::Cow;
use std::fmt::Write;

pub(crate) use tenure::text::is_unsafe;

/// Returns the text with each unsafe character replaced by `?`, so that it cannot control a
/// terminal.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    replaced(text, is_unsafe)
}

/// Returns a text of several lines with each unsafe character replaced by `?`. Line feeds and tabs
/// stay, because they structure the text.
pub(crate) fn plain_lines(text: &str) -> Cow<'_, str> {
    replaced(text, |c| is_unsafe(c) && !matches!(c, '\n' | '\t'))
}

/// Returns at most the first `max` characters, followed by an ellipsis if the text is longer.
pub(crate) fn shortened(text: &str, max: usize) -> Cow<'_, str> {
    match text.char_indices().nth(max) {
        None => text.into(),
        Some((end, _)) => format!("{}…", &text[..end]).into(),
    }
}

/// Returns the text with each unsafe character escaped as in JSON, such as `\u202e`, so that it can
/// be printed.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    escaped_where(text, is_unsafe)
}

/// Returns an equivalent JSON document in which the unsafe characters of strings are escaped, so
/// that it can be printed on a terminal. Line feeds between values stay.
pub(crate) fn escaped_json(document: &str) -> Cow<'_, str> {
    escaped_where(document, |c| is_unsafe(c) && c != '\n')
}

fn replaced(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.contains(&is_bad) {
        text.replace(is_bad, "?").into()
    } else {
        text.into()
    }
}

fn escaped_where(text: &str, is_bad: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_bad) {
        return text.into();
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_bad(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Ignore the result: writing into a `String` cannot fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_of_any_script_is_unchanged() {
        for text in ["", "llama-3.3:70b", "käse/模型 модель", "👍", "a\u{301}"] {
            assert_eq!(plain(text), text);
            assert_eq!(escaped(text), text);
        }
    }

    #[test]
    fn unsafe_characters_are_replaced_or_escaped() {
        for c in [
            '\0',
            '\u{1b}',
            '\u{7f}',
            '\u{9b}',
            '\u{202e}',
            '\u{2067}',
            '\u{e0041}',
        ] {
            assert_eq!(plain(&format!("a{c}b")), "a?b", "{c:?}");
        }
        assert_eq!(escaped("a\u{1b}b\u{202e}"), "a\\u001bb\\u202e");
        assert_eq!(plain("a\nb\tc"), "a?b?c");
        assert_eq!(plain_lines("a\nb\tc\r"), "a\nb\tc?");
    }

    #[test]
    fn escaped_document_parses_to_the_same_value() {
        let name = "\u{85}\u{9b}[31m\u{202e}\u{2028}\u{e0041}\n\u{feff}x";
        let document = serde_json::to_string_pretty(&[name]).unwrap();
        let safe = escaped_json(&document);
        assert!(!safe.contains(|c| is_unsafe(c) && c != '\n'), "{safe:?}");
        let read: Vec<String> = serde_json::from_str(&safe).unwrap();
        assert_eq!(read, [name]);
    }

    #[test]
    fn long_text_is_shortened_at_a_character_boundary() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüß", 3), "äöü…");
        assert_eq!(shortened("", 0), "");
    }
}
