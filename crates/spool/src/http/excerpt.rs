//! Excerpts of responses that are safe to print and to log.

use super::token::Token;

const MAX_LENGTH: usize = 300;
/// Minimum length in bytes of a piece of a secret that an excerpt must not show.
const PIECE: usize = 8;

/// Returns the beginning of a response on one line. The excerpt ends where the receiver repeats a
/// secret: the token, or the query of the URL.
pub(super) fn excerpt(bytes: &[u8], token: Option<&Token>, query: Option<&str>) -> String {
    let text = String::from_utf8_lossy(bytes);
    // Replace control characters: in a response of a hostile receiver they could forge log lines or
    // control a terminal.
    let text = text.replace(|char: char| char.is_control() || is_invisible(char), " ");
    let secrets = token.map(Token::expose).into_iter().chain(query);
    let secrets: Vec<&str> = secrets.filter(|secret| !secret.is_empty()).collect();
    // The position of an escaped secret in the text is unknown, so no part of a text with such a
    // secret is shown.
    let unescaped = unescape(&text);
    let has_escaped_secret = secrets.iter().any(|secret| {
        let secret = unescape(secret);
        pieces(&secret).any(|piece| unescaped.contains(piece))
    });
    let starts = secrets.iter().flat_map(|secret| pieces(secret));
    let end = starts.filter_map(|piece| text.find(piece)).min();
    let end = end.unwrap_or(if has_escaped_secret { 0 } else { text.len() });
    let (before, after) = text.split_at(end);
    let before = if after.is_empty() {
        before.trim()
    } else {
        before.trim_start()
    };
    let mut shown: String = before.chars().take(MAX_LENGTH).collect();
    if shown.len() < before.len() {
        shown.push('…');
    } else if !after.is_empty() {
        shown.push_str("***");
    }
    shown
}

/// Returns the parts of a secret that must not be shown: all of it, and every piece that is long
/// enough to help an attacker.
fn pieces(secret: &str) -> impl Iterator<Item = &str> {
    let starts = secret.char_indices().map(|(start, _)| start);
    let long = starts.filter_map(|start| secret.get(start..start + PIECE));
    std::iter::once(secret).chain(long)
}

/// Removes the escapes of JSON and URLs from a text, so that an escaped secret is found in it. The
/// result is never shown.
fn unescape(text: &str) -> String {
    let text = text.replace('\\', "");
    let mut unescaped = String::new();
    let mut rest = &*text;
    while let Some((before, after)) = rest.split_once('%') {
        unescaped += before;
        let code = after
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            unescaped.push(char::from(code));
            rest = &after[2..];
        } else {
            unescaped.push('%');
            rest = after;
        }
    }
    unescaped + rest
}

/// True for characters that hide text or reverse its direction. An excerpt must not contain them,
/// because a hostile receiver could disguise its response.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excerpt_is_short_and_on_one_line() {
        assert_eq!(
            excerpt(b" {\"a\":\r\n1}\x1b[2J \0", None, None),
            "{\"a\":  1} [2J"
        );
        assert_eq!(excerpt("é\u{202e}é".as_bytes(), None, None), "é é");
        assert_eq!(excerpt(b"\xff\xfe", None, None), "\u{fffd}\u{fffd}");
        let long = excerpt("é".repeat(1000).as_bytes(), None, None);
        assert_eq!(long.chars().count(), MAX_LENGTH + 1);
        assert!(long.ends_with('…'));
    }

    #[test]
    fn excerpt_never_contains_the_token() {
        let token = Token::new("s3cret").unwrap();
        let shown = |text: &str| excerpt(text.as_bytes(), Some(&token), None);
        assert_eq!(shown("bad token s3cret, s3cret"), "bad token ***");
        assert_eq!(shown("s3cret"), "***");
        assert_eq!(shown("fine"), "fine");
        // The maximum length falls into the token. Its first half must not be shown either.
        let edge = format!("{}s3cret", "x".repeat(MAX_LENGTH - 3));
        assert!(!shown(&edge).contains("s3"));
    }

    #[test]
    fn excerpt_never_contains_an_escaped_or_partial_secret() {
        let token = Token::new("T0K/ENT0K+EN/abc==").unwrap();
        for response in [
            r#"{"auth":"Bearer T0K\/ENT0K+EN\/abc=="}"#,
            "no: T0K%2FENT0K%2BEN%2Fabc%3D%3D",
            "you sent T0K/ENT0K+EN/abc==",
            "you sent ..ENT0K+EN/abc==",
            "not for key=S3CRET",
        ] {
            let shown = excerpt(response.as_bytes(), Some(&token), Some("key=S3CRET"));
            assert!(shown.ends_with("***"), "{shown}");
            assert!(
                !shown.contains("ENT0K") && !shown.contains("S3CRET"),
                "{shown}"
            );
        }
        let harmless = "100% of %zz and \\ are fine";
        assert_eq!(excerpt(harmless.as_bytes(), Some(&token), None), harmless);
    }
}
