//! The beginning of what a receiver said, made fit for people and logs.

use super::token::Token;

const LONGEST: usize = 300;

/// At most 300 characters, on one line, up to where the receiver repeats a secret of ours: the
/// token, or the query of the URL.
pub(super) fn excerpt(bytes: &[u8], token: Option<&Token>, query: Option<&str>) -> String {
    let text = String::from_utf8_lossy(bytes);
    // What it said must not look like lines of ours, nor do things to a terminal.
    let text = text.replace(|char: char| char.is_control() || is_invisible(char), " ");
    let secrets = token.map(Token::expose).into_iter().chain(query);
    let secrets = secrets.filter(|secret| !secret.is_empty());
    let end = secrets.filter_map(|secret| text.find(secret)).min();
    let end = end.unwrap_or(text.len());
    let (before, after) = text.split_at(end);
    let before = if after.is_empty() {
        before.trim()
    } else {
        before.trim_start()
    };
    let mut said: String = before.chars().take(LONGEST).collect();
    if said.len() < before.len() {
        said.push('…');
    } else if !after.is_empty() {
        said.push_str("***");
    }
    said
}

/// Characters that turn text around or hide it.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_is_short_and_on_one_line() {
        assert_eq!(
            excerpt(b" {\"a\":\r\n1}\x1b[2J \0", None, None),
            "{\"a\":  1} [2J"
        );
        assert_eq!(excerpt("é\u{202e}é".as_bytes(), None, None), "é é");
        assert_eq!(excerpt(b"\xff\xfe", None, None), "\u{fffd}\u{fffd}");
        let long = excerpt("é".repeat(1000).as_bytes(), None, None);
        assert_eq!(long.chars().count(), LONGEST + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn the_token_is_never_repeated() {
        let token = Token::new("s3cret").unwrap();
        let said = |text: &str| excerpt(text.as_bytes(), Some(&token), None);
        assert_eq!(said("bad token s3cret, s3cret"), "bad token ***");
        assert_eq!(said("s3cret"), "***");
        assert_eq!(said("fine"), "fine");
        // Cut in its middle it would still be shown.
        let edge = format!("{}s3cret", "x".repeat(LONGEST - 3));
        assert!(!said(&edge).contains("s3"));
    }
}
