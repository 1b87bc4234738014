//! Estimated token counts, for responses without a usage report. Usage records mark them as estimates.
//!
//! The number of tokens of a text depends on the model's tokenizer. The estimate uses one ratio of
//! characters to tokens for each length of a character in UTF-8 (1 to 4 bytes). The ratios in this
//! table are approximately right for current models:
//!
//! | bytes | characters | tokens |
//! |---|---|---|
//! | 1 | ASCII: English, code | 4 characters per token |
//! | 2 | Latin with accents, Greek, Cyrillic, Hebrew, Arabic | 2 characters per token |
//! | 3 | Chinese, Japanese, Korean, scripts of India, Thai | 1 character per token |
//! | 4 | emoji | 2 tokens per character |
//!
//! Most backends stream one event per token, so the number of events is a better estimate than the
//! length of the text. Events with clearly more text than one token are measured by their text.

mod prompt;
mod text;

pub(crate) use prompt::{embedded, images, prompt};
use text::PARTS;
pub(crate) use text::parts;

/// Tokens that the estimate counts for an image, a sound or a file in a prompt. Most models use
/// some hundred tokens for an image, whatever the length of its base64 text.
const ATTACHMENT: u64 = 500;

/// Number of bytes of JSON around the text of a response that is not streamed. They are subtracted
/// before the completion is estimated, because the model did not generate them.
const JSON_OVERHEAD: u64 = 400;

/// Converts a length in parts of a token (`PARTS`) into tokens, rounded up, so that any text has at
/// least one token.
pub(crate) fn tokens(parts: u64) -> u64 {
    parts.div_ceil(PARTS)
}

/// Returns the estimated tokens of a text of which only the length in bytes is known, such as a
/// compressed response.
pub(crate) fn by_length(bytes: u64) -> u64 {
    tokens(bytes * 3)
}

pub(crate) fn response(bytes: u64) -> u64 {
    by_length(bytes.saturating_sub(JSON_OVERHEAD).max(1)) * u64::from(bytes > 0)
}

/// Estimated tokens of a streamed response, updated with every event.
///
/// To save CPU, only samples of the events are parsed: the first events, then one of every eight,
/// whose text counts for all eight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamEstimate {
    /// Number of events so far, from which [`event`](Self::event) decides if the next event is a
    /// sample that is parsed.
    events: u64,
    /// Estimated number of events with text. Most backends send one event per token, so this number
    /// is usually the number of tokens.
    text_events: u64,
    /// Estimated length of the text of all events, in parts of a token (12 parts are one token).
    /// The length determines the tokens if events have more text than one token.
    parts: u64,
}

const FIRST_EVENTS: u64 = 16;
const SAMPLE_GROUP: u64 = 8;

impl StreamEstimate {
    /// Counts an event. If the event is a sample to parse, returns the number of events that it
    /// represents.
    pub(crate) fn event(&mut self) -> Option<u64> {
        let index = self.events;
        self.events += 1;
        if index < FIRST_EVENTS {
            Some(1)
        } else {
            (index % SAMPLE_GROUP == SAMPLE_GROUP / 2).then_some(SAMPLE_GROUP)
        }
    }

    /// Adds the length of a sampled event's text (in parts of a token) once for every event that
    /// the sample represents.
    pub(crate) fn text(&mut self, parts: u64, represents: u64) {
        if parts > 0 {
            self.text_events += represents;
            self.parts += parts * represents;
        }
    }

    /// True if any parsed event had text. Only then are tokens estimated for a stream that ended
    /// with an error.
    pub(crate) fn has_text(&self) -> bool {
        self.text_events > 0
    }

    /// Returns the estimated tokens so far. Each event with text counts as one token, because most
    /// backends send one event per token. If the average event has the text of two tokens or more,
    /// the length of the text counts instead.
    pub(crate) fn tokens(&self) -> u64 {
        let has_more = self.parts >= 2 * PARTS * self.text_events;
        let tokens = if has_more {
            tokens(self.parts)
        } else {
            self.text_events
        };
        tokens.max(u64::from(self.events > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> u64 {
        tokens(parts(text.as_bytes()))
    }

    #[test]
    fn characters_count_by_their_script() {
        assert_eq!(count(""), 0);
        assert_eq!(count("a"), 1);
        assert_eq!(count("The quick brown fox "), 5);
        assert_eq!(count("Привет, мир!"), 6);
        assert_eq!(count("こんにちは"), 5);
        assert_eq!(count("😀😀"), 4);
    }

    #[test]
    fn json_escape_counts_as_the_character_that_it_encodes() {
        assert_eq!(count(r"\n\n\n\n"), 1);
        assert_eq!(count(r#"\"abc\\"#), 2);
        assert_eq!(count(r"\u3053\u3093"), count("こん"));
        assert_eq!(count(r"\u041f\u0440"), count("Пр"));
        assert_eq!(count(r"\u0041\u0042\u0043\u0044"), 1);
        assert_eq!(count(r"\ud83d\ude00"), count("😀"));
        assert_eq!(count(r"\u30"), 1);
    }

    #[test]
    fn response_that_is_not_empty_has_at_least_one_token() {
        assert_eq!(response(0), 0);
        assert_eq!(response(1), 1);
        assert_eq!(response(400), 1);
        assert_eq!(response(800), 100);
        let mut streamed = StreamEstimate::default();
        assert_eq!(streamed.tokens(), 0);
        streamed.event();
        assert_eq!(streamed.tokens(), 1);
    }

    #[test]
    fn event_counts_as_one_token_unless_it_has_the_text_of_several() {
        let stream = |events: u64, text: &str| {
            let mut streamed = StreamEstimate::default();
            for _ in 0..events {
                if let Some(represents) = streamed.event() {
                    streamed.text(parts(text.as_bytes()), represents);
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
