//! The beginning of what a receiver said, made fit for people and logs.

use super::token::Token;

const LONGEST: usize = 300;
const PIECE: usize = 8;

/// At most 300 characters, on one line, up to where the receiver repeats a secret of ours: the
/// token, or the query of the URL.
pub(super) fn excerpt(bytes: &[u8], token: Option<&Token>, query: Option<&str>) -> String {
    let text = String::from_utf8_lossy(bytes);
    // What it said must not look like lines of ours, nor do things to a terminal.
    let text = text.replace(|char: char| char.is_control() || is_invisible(char), " ");
    let secrets = token.map(Token::expose).into_iter().chain(query);
    let secrets: Vec<&str> = secrets.filter(|secret| !secret.is_empty()).collect();
    // Written in another way, it is not known where it begins.
    let plain = plain(&text);
    let is_hidden = secrets.iter().any(|secret| {
        let secret = self::plain(secret);
        pieces(&secret).any(|piece| plain.contains(piece))
    });
    let starts = secrets.iter().flat_map(|secret| pieces(secret));
    let end = starts.filter_map(|piece| text.find(piece)).min();
    let end = end.unwrap_or(if is_hidden { 0 } else { text.len() });
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

/// What of a secret must not be shown: all of it, and every piece that is long enough to help.
fn pieces(secret: &str) -> impl Iterator<Item = &str> {
    let starts = secret.char_indices().map(|(start, _)| start);
    let long = starts.filter_map(|start| secret.get(start..start + PIECE));
    std::iter::once(secret).chain(long)
}

/// Without the ways in which JSON and URLs write characters.
fn plain(text: &str) -> String {
    let text = text.replace('\\', "");
    let mut plain = String::new();
    let mut rest = &*text;
    while let Some((before, after)) = rest.split_once('%') {
        plain += before;
        let code = after
            .get(..2)
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        if let Some(code) = code.filter(u8::is_ascii) {
            plain.push(char::from(code));
            rest = &after[2..];
        } else {
            plain.push('%');
            rest = after;
        }
    }
    plain + rest
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

    #[test]
    fn no_way_of_writing_a_secret_shows_it() {
        let token = Token::new("T0K/ENT0K+EN/abc==").unwrap();
        for said in [
            r#"{"auth":"Bearer T0K\/ENT0K+EN\/abc=="}"#,
            "no: T0K%2FENT0K%2BEN%2Fabc%3D%3D",
            "you sent T0K/ENT0K+EN/abc==",
            "you sent ..ENT0K+EN/abc==",
            "not for key=S3CRET",
        ] {
            let shown = excerpt(said.as_bytes(), Some(&token), Some("key=S3CRET"));
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
