//! An answer of any kind, watched as it passes: what it took, and whether it is all there.

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use super::api::Api;
use super::estimate;
use super::json::Finder;
use super::ndjson::Ndjson;
use super::sse::{Heard, Sse};
use super::usage::{Source, Usage};

/// Watches one answer.
#[derive(Debug)]
pub(crate) struct Watch {
    api: Api,
    kind: Kind,
    bytes: u64,
}

#[derive(Debug)]
enum Kind {
    /// There is nothing to be known from it: an error, a file, a sound.
    Nothing,
    /// It is in a coding that is not undone here; its length is all that is known.
    Coded,
    /// It does not say what it is. Its first byte will.
    Unsaid {
        is_hiding: bool,
    },
    Whole(Box<Finder>),
    Events(Box<Sse>),
    Lines(Box<Ndjson>),
}

impl Watch {
    /// Watches an answer with this head. `is_hiding`: usage that comes alone in a stream is kept
    /// from the client, since we asked for it.
    pub(crate) fn new(api: Api, status: StatusCode, headers: &HeaderMap, is_hiding: bool) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let media =
            text(header::CONTENT_TYPE).map(|media| media.split(';').next().unwrap_or(media));
        let coding = text(header::CONTENT_ENCODING).unwrap_or("identity");
        let media = media.map(|media| media.trim().to_ascii_lowercase());
        let kind = match media.as_deref() {
            _ if !api.tells_usage() || !status.is_success() => Kind::Nothing,
            _ if !coding.eq_ignore_ascii_case("identity") => Kind::Coded,
            Some("text/event-stream") => Kind::Events(Box::new(Sse::new(api, is_hiding))),
            Some("application/x-ndjson" | "application/ndjson" | "application/jsonl") => {
                Kind::Lines(Box::new(Ndjson::new(api)))
            }
            None | Some("text/plain" | "") => Kind::Unsaid { is_hiding },
            Some(media) if media.ends_with("json") => Kind::Whole(Box::default()),
            Some(_) => Kind::Nothing,
        };
        Self {
            api,
            kind,
            bytes: 0,
        }
    }

    /// Looks at a frame. What it returns goes on to the client; it may be empty.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        self.bytes += data.len() as u64;
        if let Kind::Unsaid { is_hiding } = self.kind
            && let Some(first) = data.trim_ascii_start().first()
        {
            self.kind = match first {
                b'{' => Kind::Whole(Box::default()),
                b'd' | b'e' | b'i' | b'r' | b':' => {
                    Kind::Events(Box::new(Sse::new(self.api, is_hiding)))
                }
                _ => Kind::Nothing,
            };
        }
        match &mut self.kind {
            Kind::Events(events) => return events.pass(data),
            Kind::Whole(finder) => finder.read(&data),
            Kind::Lines(lines) => lines.look(&data),
            Kind::Nothing | Kind::Coded | Kind::Unsaid { .. } => {}
        }
        data
    }

    /// The answer is over, or nothing more of it comes. What was held back goes on.
    pub(crate) fn finish(&mut self) -> Bytes {
        match &mut self.kind {
            Kind::Events(events) => return events.finish(),
            Kind::Lines(lines) => lines.finish(),
            _ => {}
        }
        Bytes::new()
    }

    /// How many bytes the backend sent.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the mark after which nothing comes has been seen: what is to be done before the
    /// client has everything is to be done now.
    pub(crate) fn saw_end(&self) -> bool {
        match &self.kind {
            Kind::Whole(finder) => finder.is_over(),
            _ => self.heard().is_some_and(|heard| heard.saw_end),
        }
    }

    /// Whether the answer is all there, as far as one can tell. Some backends end a stream early
    /// without saying so.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.kind {
            Kind::Whole(finder) => finder.is_over(),
            _ => self.heard().is_none_or(Heard::saw_finish),
        }
    }

    /// Whether an answer that began well tells of an error.
    pub(crate) fn saw_error(&self) -> bool {
        match &self.kind {
            Kind::Whole(finder) => finder.said().is_error,
            _ => self.heard().is_some_and(Heard::saw_error),
        }
    }

    /// The tokens it took: as reported, else as estimated. `prompt` is asked only for an
    /// estimate.
    pub(crate) fn usage(&self, prompt: impl FnOnce() -> u64) -> Usage {
        let heard = self.heard();
        let counts = match &self.kind {
            Kind::Whole(finder) => Some(&finder.said().counts),
            _ => heard.map(|heard| &heard.counts),
        };
        let reported = counts.and_then(|counts| counts.usage(self.api));
        let streamed = heard.map_or(0, |heard| heard.streamed.tokens());
        match reported {
            // It was cut after it had told what it was given.
            Some(usage) if counts.is_some_and(|counts| counts.is_only_beginning()) => {
                let completion = usage.completion.max(streamed);
                Usage {
                    completion,
                    total: usage.prompt + completion,
                    source: Source::Estimated,
                    ..usage
                }
            }
            Some(usage) => usage,
            None if self.is_empty() => Usage::default(),
            None => {
                let completion = match &self.kind {
                    _ if !self.api.writes_text() => 0,
                    Kind::Events(_) | Kind::Lines(_) => streamed,
                    Kind::Coded => estimate::by_length(self.bytes),
                    _ => estimate::whole_answer(self.bytes),
                };
                let prompt = prompt();
                Usage {
                    prompt,
                    completion,
                    total: prompt + completion,
                    source: Source::Estimated,
                    ..Usage::default()
                }
            }
        }
    }

    /// Whether there is nothing to estimate: nobody read or wrote text, or it came to nothing.
    fn is_empty(&self) -> bool {
        let failed = match &self.kind {
            Kind::Nothing => true,
            Kind::Events(_) | Kind::Lines(_) => {
                let has_text = self.heard().is_some_and(|heard| heard.streamed.has_text());
                self.saw_error() && !has_text
            }
            _ => self.saw_error(),
        };
        failed || !self.api.reads_text()
    }

    fn heard(&self) -> Option<&Heard> {
        match &self.kind {
            Kind::Events(events) => Some(events.heard()),
            Kind::Lines(lines) => Some(lines.heard()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(api: Api, media: &str, is_hiding: bool) -> Watch {
        let mut headers = HeaderMap::new();
        if !media.is_empty() {
            headers.insert(header::CONTENT_TYPE, media.parse().unwrap());
        }
        Watch::new(api, StatusCode::OK, &headers, is_hiding)
    }

    fn pass(watch: &mut Watch, text: &str) -> String {
        let out = watch.pass(Bytes::copy_from_slice(text.as_bytes()));
        String::from_utf8(out.to_vec()).unwrap()
    }

    fn numbers(usage: Usage) -> (u64, u64, u64, &'static str) {
        (
            usage.prompt,
            usage.completion,
            usage.total,
            usage.source.name(),
        )
    }

    const WORD: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"}}]}\n\n";
    const ALONE: &str =
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n\n";

    #[test]
    fn every_kind_of_answer_is_watched() {
        let chat = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":1}}"#;
        let line = "{\"done\":true,\"prompt_eval_count\":9,\"eval_count\":1}\n";
        let events = [WORD, ALONE, "data: [DONE]\n\n"].concat();
        for (api, media, text) in [
            (Api::Chat, "application/json", chat),
            (Api::Chat, "Application/JSON; charset=utf-8", chat),
            (Api::Chat, "application/problem+json", chat),
            (Api::Chat, "", chat),
            (Api::Chat, "text/plain; charset=utf-8", chat),
            (Api::OllamaChat, "application/x-ndjson", line),
            (Api::OllamaChat, "application/json; charset=utf-8", line),
            (Api::Chat, "text/event-stream", &events),
            (Api::Chat, "text/event-stream; charset=utf-8", &events),
            (Api::Chat, "", &events),
        ] {
            let mut watch = watch(api, media, false);
            assert!(!watch.saw_end());
            for piece in [&text[..10], &text[10..]] {
                assert_eq!(pass(&mut watch, piece), piece);
            }
            assert!(watch.saw_end(), "{media} {text}");
            assert!(watch.finish().is_empty());
            assert!(watch.is_whole() && !watch.saw_error());
            let usage = watch.usage(|| panic!("it is told"));
            assert_eq!(numbers(usage), (9, 1, 10, "reported"), "{media} {text}");
            assert_eq!(watch.bytes(), text.len() as u64);
        }
    }

    #[test]
    fn usage_is_hidden_from_a_client_that_did_not_ask() {
        for media in ["text/event-stream", ""] {
            let mut watch = watch(Api::Chat, media, true);
            let text = [WORD, ALONE].concat();
            assert_eq!(pass(&mut watch, &text), WORD);
            assert_eq!(pass(&mut watch, "data: "), "");
            assert_eq!(watch.finish(), "data: ");
            assert_eq!(watch.bytes(), text.len() as u64 + 6);
        }
    }

    #[test]
    fn tokens_that_are_not_told_are_estimated() {
        let mut stream = watch(Api::Chat, "text/event-stream", true);
        pass(&mut stream, &[WORD, WORD, WORD].concat());
        assert_eq!(numbers(stream.usage(|| 7)), (7, 3, 10, "estimated"));
        assert!(!stream.is_whole() && !stream.saw_end());

        let mut whole = watch(Api::Chat, "application/json", false);
        pass(
            &mut whole,
            &format!(r#"{{"choices":["{}"]}}"#, "x".repeat(784)),
        );
        assert_eq!(numbers(whole.usage(|| 7)), (7, 100, 107, "estimated"));
        assert!(whole.is_whole());

        let mut vectors = watch(Api::Embeddings, "application/json", false);
        pass(&mut vectors, r#"{"data":[{"embedding":[0.1,0.2]}]}"#);
        assert_eq!(numbers(vectors.usage(|| 7)), (7, 0, 7, "estimated"));

        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
        headers.insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        let mut coded = Watch::new(Api::Chat, StatusCode::OK, &headers, true);
        assert_eq!(pass(&mut coded, &"x".repeat(400)).len(), 400);
        assert_eq!(numbers(coded.usage(|| 7)), (7, 100, 107, "estimated"));
    }

    #[test]
    fn an_answer_of_anthropics_that_was_cut_has_what_was_seen_of_it() {
        let mut stream = watch(Api::Messages, "text/event-stream", false);
        pass(
            &mut stream,
            "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\n",
        );
        let word = "data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"Hi\"}}\n\n";
        pass(&mut stream, &word.repeat(5));
        assert_eq!(numbers(stream.usage(|| 0)), (25, 5, 30, "estimated"));
        pass(
            &mut stream,
            "data: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":4}}\n\n",
        );
        assert_eq!(numbers(stream.usage(|| 0)), (25, 4, 29, "reported"));
    }

    #[test]
    fn where_there_is_nothing_to_count_nothing_is_counted() {
        let none = (0, 0, 0, "none");
        let asked = || panic!("there is no estimate");
        let headers = HeaderMap::new();
        for (api, status) in [(Api::Chat, 500), (Api::Chat, 429), (Api::Other, 200)] {
            let status = StatusCode::from_u16(status).unwrap();
            let mut watch = Watch::new(api, status, &headers, true);
            let text = r#"{"usage":{"prompt_tokens":9}}"#;
            assert_eq!(pass(&mut watch, text), text);
            assert_eq!(numbers(watch.usage(asked)), none);
            assert!(watch.is_whole() && !watch.saw_end());
        }
        for (api, media, text) in [
            (Api::Audio, "audio/mpeg", "ID3"),
            (Api::Audio, "application/json", r#"{"text":"Hi"}"#),
            (Api::Chat, "application/json", r#"{"error":"no"}"#),
            (
                Api::Chat,
                "text/event-stream",
                "data: {\"error\":\"no\"}\n\n",
            ),
            (Api::Chat, "", "<html>"),
        ] {
            let mut watch = watch(api, media, true);
            assert_eq!(pass(&mut watch, text), text);
            assert_eq!(numbers(watch.usage(asked)), none, "{text}");
            assert_eq!(watch.saw_error(), text.contains("error"));
        }
    }

    #[test]
    fn an_error_after_some_words_leaves_the_words_counted() {
        let mut stream = watch(Api::Chat, "text/event-stream", true);
        pass(
            &mut stream,
            &[WORD, WORD, "data: {\"error\":\"no\"}\n\n"].concat(),
        );
        assert!(stream.saw_error());
        assert_eq!(numbers(stream.usage(|| 7)), (7, 2, 9, "estimated"));
    }
}
