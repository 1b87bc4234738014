//! A stream of JSON objects, one to a line, as Ollama's own API sends it. The last one has the
//! counts.

use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::Finder as Search;

use super::json::Finder;
use super::sse::StreamSummary;
use crate::endpoint::Api;

/// A line that is longer is followed as it comes, and not kept.
const LONGEST_KEPT: usize = 64 * 1024;

/// Watches one stream. It passes as it is.
#[derive(Debug)]
pub(crate) struct Ndjson {
    summary: StreamSummary,
    /// The line whose end has not come.
    open: Vec<u8>,
    /// Follows it instead, when it is long.
    huge: Option<Box<Finder>>,
}

impl Ndjson {
    pub(crate) fn new(api: Api) -> Self {
        Self {
            summary: StreamSummary::new(api),
            open: Vec::new(),
            huge: None,
        }
    }

    /// What is known so far.
    pub(crate) fn summary(&self) -> &StreamSummary {
        &self.summary
    }

    /// Looks at a frame.
    pub(crate) fn look(&mut self, mut data: &[u8]) {
        while let Some(end) = memchr(b'\n', data) {
            let (line, rest) = data.split_at(end);
            data = &rest[1..];
            if self.open.is_empty() && self.huge.is_none() {
                self.line(line);
            } else {
                self.grow(line);
                self.finish();
            }
        }
        self.grow(data);
    }

    /// The stream is over, or a line that was open.
    pub(crate) fn finish(&mut self) {
        if let Some(huge) = self.huge.take() {
            self.summary.note(huge.facts());
        }
        let mut open = std::mem::take(&mut self.open);
        self.line(&open);
        open.clear();
        self.open = open;
    }

    fn grow(&mut self, more: &[u8]) {
        if let Some(huge) = &mut self.huge {
            return huge.read(more);
        }
        self.open.extend_from_slice(more);
        if self.open.len() > LONGEST_KEPT {
            let mut finder = Box::<Finder>::default();
            finder.read(&self.open);
            self.open = Vec::new();
            self.huge = Some(finder);
        }
    }

    fn line(&mut self, line: &[u8]) {
        static LAST: LazyLock<Search<'static>> = LazyLock::new(|| Search::new("\"done_reason\""));
        static COUNT: LazyLock<Search<'static>> = LazyLock::new(|| Search::new("eval_count\""));
        static USAGE: LazyLock<Search<'static>> = LazyLock::new(|| Search::new("\"usage\""));
        let line = line.trim_ascii();
        if line.is_empty() {
            return;
        }
        self.summary.object(line);
        self.summary.remember(line);
        let may_count = match self.summary.api() {
            Api::Unknown => USAGE.find(line).is_some(),
            _ => COUNT.find(line).is_some() || LAST.find(line).is_some(),
        };
        if may_count {
            let mut finder = Finder::default();
            finder.read(line);
            self.summary.note(finder.facts());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dice::Dice;

    type Told = (Option<(u64, u64)>, bool, bool, u64);

    fn told(api: Api, pieces: &[&[u8]]) -> Told {
        let mut stream = Ndjson::new(api);
        for piece in pieces {
            stream.look(piece);
        }
        stream.finish();
        let summary = stream.summary();
        let usage = summary.counts.usage(api);
        (
            usage.map(|usage| (usage.prompt, usage.completion)),
            summary.saw_end,
            summary.saw_error(),
            summary.streamed.tokens(),
        )
    }

    fn every_way(api: Api, text: &str) -> Told {
        let bytes = text.as_bytes();
        let expected = told(api, &[bytes]);
        for at in 0..=bytes.len() {
            assert_eq!(told(api, &[&bytes[..at], &bytes[at..]]), expected, "{at}");
        }
        let mut dice = Dice::new(8);
        for _ in 0..100 {
            assert_eq!(told(api, &dice.pieces(bytes, 30)), expected);
        }
        expected
    }

    const WORD: &str = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"done\":false}\n";
    const LAST: &str = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done_reason\":\"stop\",\"done\":true,\"prompt_eval_count\":26,\"eval_count\":2}\n";

    #[test]
    fn the_last_line_has_the_counts() {
        let text = [WORD, WORD, LAST].concat();
        let expected = (Some((26, 2)), true, false, 2);
        assert_eq!(every_way(Api::OllamaChat, &text), expected);
        assert_eq!(every_way(Api::OllamaChat, text.trim_end()), expected);
        assert_eq!(
            every_way(Api::OllamaChat, &text.replace('\n', "\r\n")),
            expected
        );
        let word = "{\"model\":\"m\",\"response\":\"Hi\",\"done\":false}\n";
        let last = "{\"model\":\"m\",\"response\":\"\",\"done\":true,\"done_reason\":\"stop\",\"eval_count\":1}\n";
        assert_eq!(
            every_way(Api::OllamaGenerate, &[word, last].concat()),
            (Some((0, 1)), true, false, 1)
        );
    }

    #[test]
    fn a_stream_that_ends_early_has_none() {
        let text = [WORD, WORD].concat();
        assert_eq!(every_way(Api::OllamaChat, &text), (None, false, false, 2));
        let text = [WORD, "{\"error\":\"out of memory\"}\n"].concat();
        assert!(every_way(Api::OllamaChat, &text).2);
        assert_eq!(every_way(Api::OllamaChat, ""), (None, false, false, 0));
    }

    #[test]
    fn a_long_line_is_not_kept() {
        let text = LAST.replace("assistant", &"a".repeat(200_000));
        let mut stream = Ndjson::new(Api::OllamaChat);
        for piece in text.as_bytes().chunks(999) {
            stream.look(piece);
            assert!(stream.open.len() <= LONGEST_KEPT);
        }
        assert!(stream.summary().counts.usage(Api::OllamaChat).is_some());
        assert!(stream.summary().saw_end);
    }
}
