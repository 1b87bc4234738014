//! Tokens, where nobody tells them. A guess, and marked as one.
//!
//! How much text a token is depends on the model. These are the round numbers that are about
//! right for those in use, by the length of a character in UTF-8:
//!
//! | bytes | characters | tokens |
//! |---|---|---|
//! | 1 | ASCII: English, code | 4 characters make one |
//! | 2 | Latin with accents, Greek, Cyrillic, Hebrew, Arabic | 2 characters make one |
//! | 3 | Chinese, Japanese, Korean, scripts of India, Thai | a character is one |
//! | 4 | emoji | a character is two |
//!
//! A backend that streams sends an event for each token, and this count is better than any rule
//! about text. Unless it collects several: then the events have clearly more text than a token.

/// A token is so many parts, so that whole numbers do.
const PARTS: u64 = 12;

/// The text of a picture or a sound inside of a prompt is not what the model reads. A picture is
/// some hundred tokens to most.
const ATTACHMENT: u64 = 500;
const SHORTEST_ATTACHMENT: usize = 1024;

/// The JSON around the text of a whole answer.
const AROUND: u64 = 400;

/// Measures text in parts of a token, as it stands in a JSON string: escapes are the characters
/// they mean.
pub(crate) fn parts(text: &[u8]) -> u64 {
    let mut parts = 0;
    let mut rest = text;
    loop {
        let plain = memchr::memchr(b'\\', rest).unwrap_or(rest.len());
        parts += without_escapes(&rest[..plain]);
        rest = match &rest[plain..] {
            [] => return parts,
            [b'\\', b'u', a, b, c, _, tail @ ..] => {
                parts += match [*a, *b, *c] {
                    [b'0', b'0', b'0'..=b'7'] => 3,
                    [b'0', b'0'..=b'7', _] => 6,
                    // Half of a pair is half of an emoji.
                    _ => PARTS,
                };
                tail
            }
            [_, _, tail @ ..] => {
                parts += 3;
                tail
            }
            [_] => return parts + 3,
        };
    }
}

fn without_escapes(text: &[u8]) -> u64 {
    if text.is_ascii() {
        return 3 * text.len() as u64;
    }
    let of = |byte: &u8| match byte {
        0..0x80 => 3,
        // The bytes that follow the first one.
        0x80..0xC0 => 0,
        0xC0..0xE0 => 6,
        0xE0..0xF0 => PARTS,
        0xF0.. => 2 * PARTS,
    };
    text.iter().map(of).sum()
}

/// Of a long text a few pieces stand for the whole: it is an estimate anyway.
fn parts_of_long(text: &[u8]) -> u64 {
    const PIECES: usize = 8;
    const PIECE: usize = 512;
    if text.len() <= 4 * PIECES * PIECE {
        return parts(text);
    }
    let pieces = text.chunks(text.len() / PIECES).take(PIECES);
    let measured: u64 = pieces.map(|piece| parts(&piece[..PIECE])).sum();
    measured * text.len() as u64 / (PIECES * PIECE) as u64
}

/// The tokens of so many parts: at least one, if there is anything.
pub(crate) fn tokens(parts: u64) -> u64 {
    parts.div_ceil(PARTS)
}

/// The tokens of a prompt: of the JSON value of `messages`, `prompt` or `input`. The names of
/// fields and roles stand for what a chat template puts there. A number is a token's id.
pub(crate) fn prompt(json: &[u8]) -> u64 {
    let (mut all, mut numbers, mut attachments) = (0, 0, 0);
    let mut at = 0;
    let mut is_number = false;
    while let Some(&byte) = json.get(at) {
        if byte == b'"' {
            let end = crate::request::scan::skip(json, at).unwrap_or(json.len());
            let text = &json[at + 1..(end - 1).max(at + 1)];
            if text.len() >= SHORTEST_ATTACHMENT && is_attachment(text) {
                attachments += ATTACHMENT;
            } else {
                all += parts_of_long(text);
            }
            is_number = false;
            at = end;
            continue;
        }
        let was_number = is_number;
        is_number = byte.is_ascii_digit() || (was_number && byte != b',' && byte != b']');
        numbers += u64::from(is_number && !was_number);
        at += 1;
    }
    tokens(all) + numbers + attachments
}

/// Whether it is data and not words: a `data:` address, or base64 without a space in a thousand
/// characters.
fn is_attachment(text: &[u8]) -> bool {
    let begin = &text[..SHORTEST_ATTACHMENT.min(text.len())];
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=-_".contains(byte);
    begin.starts_with(b"data:") || begin.iter().all(is_base64)
}

/// The tokens of something of which only the length is known.
pub(crate) fn by_length(bytes: u64) -> u64 {
    tokens(bytes * 3)
}

/// The tokens of an answer that came whole, of which only the length is known.
pub(crate) fn whole_answer(bytes: u64) -> u64 {
    by_length(bytes.saturating_sub(AROUND).max(1)) * u64::from(bytes > 0)
}

/// A streamed answer, as it grows.
///
/// Not every event is looked into: the first ones are, and then one of eight, which stands for
/// the others.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Streamed {
    events: u64,
    /// How many had text, and how much.
    spoken: u64,
    parts: u64,
}

const ALL_OF_THE_FIRST: u64 = 16;
const GROUP: u64 = 8;

impl Streamed {
    /// Another event came. If it is to be looked into: for how many it stands.
    pub(crate) fn event(&mut self) -> Option<u64> {
        let place = self.events;
        self.events += 1;
        if place < ALL_OF_THE_FIRST {
            Some(1)
        } else {
            // One from the midst of each group.
            (place % GROUP == GROUP / 2).then_some(GROUP)
        }
    }

    /// The event, and those it stands for, had so much text.
    pub(crate) fn text(&mut self, parts: u64, stands_for: u64) {
        if parts > 0 {
            self.spoken += stands_for;
            self.parts += parts * stands_for;
        }
    }

    /// Whether any of it was text.
    pub(crate) fn has_text(&self) -> bool {
        self.spoken > 0
    }

    /// How many tokens it has so far; at least one if there was any event.
    ///
    /// One for each event with text, unless their text is that of two or more each.
    pub(crate) fn tokens(&self) -> u64 {
        let has_more = self.parts >= 2 * PARTS * self.spoken;
        let tokens = if has_more {
            tokens(self.parts)
        } else {
            self.spoken
        };
        tokens.max(u64::from(self.events > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> u64 {
        tokens(parts(text.as_bytes()))
    }

    #[test]
    fn text_is_measured_by_its_script() {
        assert_eq!(of(""), 0);
        assert_eq!(of("a"), 1);
        assert_eq!(of("The quick brown fox "), 5);
        assert_eq!(of("Привет, мир!"), 6);
        assert_eq!(of("こんにちは"), 5);
        assert_eq!(of("😀😀"), 4);
    }

    #[test]
    fn an_escape_is_the_character_that_it_means() {
        assert_eq!(of(r"\n\n\n\n"), 1);
        assert_eq!(of(r#"\"abc\\"#), 2);
        assert_eq!(of(r"\u3053\u3093"), of("こん"));
        assert_eq!(of(r"\u041f\u0440"), of("Пр"));
        assert_eq!(of(r"\u0041\u0042\u0043\u0044"), 1);
        assert_eq!(of(r"\ud83d\ude00"), of("😀"));
        assert_eq!(of(r"\"), 1);
        assert_eq!(of(r"\u30"), 1);
    }

    #[test]
    fn a_prompt_is_its_strings_and_numbers() {
        let messages = r#"[{"role":"user","content":"The quick brown fox "}]"#;
        assert_eq!(prompt(messages.as_bytes()), 5 + 4);
        assert_eq!(prompt(br#""The quick brown fox ""#), 5);
        assert_eq!(prompt(b"[1,22,333]"), 3);
        assert_eq!(prompt(b"[[1, 22], [333,4]]"), 4);
        assert_eq!(prompt(b""), 0);
        assert_eq!(prompt(b"null"), 0);
        assert_eq!(prompt(b"\""), 0);
        assert_eq!(prompt(b"\"abcd"), 1);
    }

    #[test]
    fn a_picture_is_not_read_as_text() {
        let picture = format!(
            r#"[{{"url":"data:image/png;base64,{}"}}]"#,
            "A".repeat(1 << 20)
        );
        assert_eq!(prompt(picture.as_bytes()), 501);
        let sound = format!(r#"{{"data":"{}"}}"#, "Ab+/".repeat(4096));
        assert_eq!(prompt(sound.as_bytes()), 501);
        let words = format!(r#""{}""#, "word ".repeat(800));
        assert_eq!(prompt(words.as_bytes()), 1000);
        let long = format!(r#""{}""#, "word ".repeat(80_000));
        assert_eq!(prompt(long.as_bytes()), 100_000);
    }

    #[test]
    fn an_answer_that_is_not_empty_has_a_token() {
        assert_eq!(whole_answer(0), 0);
        assert_eq!(whole_answer(1), 1);
        assert_eq!(whole_answer(400), 1);
        assert_eq!(whole_answer(800), 100);
        let mut streamed = Streamed::default();
        assert_eq!(streamed.tokens(), 0);
        streamed.event();
        assert_eq!(streamed.tokens(), 1);
    }

    #[test]
    fn an_event_is_a_token_unless_it_has_more_text() {
        let stream = |events: u64, text: &str| {
            let mut streamed = Streamed::default();
            for _ in 0..events {
                if let Some(stands_for) = streamed.event() {
                    streamed.text(parts(text.as_bytes()), stands_for);
                }
            }
            streamed.tokens()
        };
        assert_eq!(stream(1, " word"), 1);
        assert_eq!(stream(10, " word"), 10);
        assert_eq!(stream(80, " a"), 80);
        assert_eq!(stream(800, " longer"), 800);
        assert_eq!(stream(800, "words and words "), 3200);
        assert_eq!(stream(10, ""), 1);
        assert!(stream(83, " a").abs_diff(83) <= 4);
    }
}
