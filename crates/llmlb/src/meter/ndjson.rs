//! Reads streams of JSON objects, one per line, as Ollama's native API sends them. The last object
//! has the token counts.

use std::sync::LazyLock;

use memchr::memchr;
use memchr::memmem::Finder as Search;

use super::json::Finder;
use super::sse::StreamSummary;
use crate::endpoint::Api;

/// Maximum length of a line that is buffered. A longer line is read in chunks by a [`Finder`], so
/// that a backend cannot use up memory.
const MAX_BUFFERED: usize = 64 * 1024;

/// Reads one stream of JSON lines, which passes to the client unchanged, to find its usage and its
/// end.
#[derive(Debug)]
pub(crate) struct Ndjson {
    summary: StreamSummary,
    partial: Vec<u8>,
    /// Reads the current line in chunks if it is too long to buffer; `partial` is then empty.
    long: Option<Box<Finder>>,
}

impl Ndjson {
    pub(crate) fn new(api: Api) -> Self {
        Self {
            summary: StreamSummary::new(api),
            partial: Vec::new(),
            long: None,
        }
    }

    /// Returns what the stream has reported so far: usage, errors and its end.
    pub(crate) fn summary(&self) -> &StreamSummary {
        &self.summary
    }

    /// Reads the next chunk of the stream. The chunk may end within a line, whose beginning is then
    /// kept.
    pub(crate) fn read(&mut self, mut data: &[u8]) {
        while let Some(end) = memchr(b'\n', data) {
            let (line, rest) = data.split_at(end);
            data = &rest[1..];
            if self.partial.is_empty() && self.long.is_none() {
                self.line(line);
            } else {
                self.grow(line);
                self.finish();
            }
        }
        self.grow(data);
    }

    /// Reads the current line as one JSON object, at its line break or at the end of the stream,
    /// which may lack one.
    pub(crate) fn finish(&mut self) {
        if let Some(long) = self.long.take() {
            self.summary.note(long.facts());
        }
        let mut partial = std::mem::take(&mut self.partial);
        self.line(&partial);
        partial.clear();
        self.partial = partial;
    }

    fn grow(&mut self, more: &[u8]) {
        if let Some(long) = &mut self.long {
            return long.read(more);
        }
        self.partial.extend_from_slice(more);
        if self.partial.len() > MAX_BUFFERED {
            let mut finder = Box::<Finder>::default();
            finder.read(&self.partial);
            self.partial = Vec::new();
            self.long = Some(finder);
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

    type NdjsonFacts = (Option<(u64, u64)>, bool, bool, u64);

    fn facts(api: Api, pieces: &[&[u8]]) -> NdjsonFacts {
        let mut stream = Ndjson::new(api);
        for piece in pieces {
            stream.read(piece);
        }
        stream.finish();
        let summary = stream.summary();
        let usage = summary.counts.usage(api);
        (
            usage.map(|usage| (usage.prompt, usage.completion)),
            summary.saw_end,
            summary.saw_error(),
            summary.estimate.tokens(),
        )
    }

    fn every_way(api: Api, text: &str) -> NdjsonFacts {
        let bytes = text.as_bytes();
        let expected = facts(api, &[bytes]);
        for at in 0..=bytes.len() {
            assert_eq!(facts(api, &[&bytes[..at], &bytes[at..]]), expected, "{at}");
        }
        let mut dice = Dice::new(8);
        for _ in 0..100 {
            assert_eq!(facts(api, &dice.pieces(bytes, 30)), expected);
        }
        expected
    }

    const WORD: &str = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"done\":false}\n";
    const LAST: &str = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done_reason\":\"stop\",\"done\":true,\"prompt_eval_count\":26,\"eval_count\":2}\n";

    #[test]
    fn counts_of_the_last_line_are_read() {
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
    fn stream_that_ends_early_has_no_counts() {
        let text = [WORD, WORD].concat();
        assert_eq!(every_way(Api::OllamaChat, &text), (None, false, false, 2));
        let text = [WORD, "{\"error\":\"out of memory\"}\n"].concat();
        assert!(every_way(Api::OllamaChat, &text).2);
        assert_eq!(every_way(Api::OllamaChat, ""), (None, false, false, 0));
    }

    #[test]
    fn long_line_is_read_without_buffering() {
        let text = LAST.replace("assistant", &"a".repeat(200_000));
        let mut stream = Ndjson::new(Api::OllamaChat);
        for piece in text.as_bytes().chunks(999) {
            stream.read(piece);
            assert!(stream.partial.len() <= MAX_BUFFERED);
        }
        assert!(stream.summary().counts.usage(Api::OllamaChat).is_some());
        assert!(stream.summary().saw_end);
    }
}
