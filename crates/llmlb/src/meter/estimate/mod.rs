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

mod prompt;
mod text;

pub(crate) use prompt::{embedded, images, prompt};
use text::PARTS;
pub(crate) use text::parts;

/// The text of a picture or a sound inside of a prompt is not what the model reads. A picture is
/// some hundred tokens to most.
const ATTACHMENT: u64 = 500;

/// The JSON around the text of a whole answer.
const AROUND: u64 = 400;

/// The tokens of so many parts: at least one, if there is anything.
pub(crate) fn tokens(parts: u64) -> u64 {
    parts.div_ceil(PARTS)
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
        assert_eq!(of(r"\u30"), 1);
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
