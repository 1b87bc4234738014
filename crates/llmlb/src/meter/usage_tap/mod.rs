//! Reads a response of any format as it passes, to find its usage and whether it is complete.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use super::estimate::{self, Streamed};
use super::json::Finder;
use super::ndjson::Ndjson;
use super::sse::{self, Sse, StreamSummary};
use super::usage::{Source, Usage};
use crate::endpoint::Api;

/// Reads one response as it passes.
#[derive(Debug)]
pub(crate) struct UsageTap {
    api: Api,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// There is nothing to be known from it: an error, a page for people, the content of a file.
    Nothing,
    /// A success in a format that is not read, such as embeddings in binary. The model has read the
    /// prompt.
    Opaque,
    /// It is in a coding that is not undone here; its length is all that is known.
    Coded,
    /// It does not say what it is. Its first bytes will.
    Unsaid {
        is_hiding: bool,
    },
    Whole(Box<Finder>),
    Events(Box<Sse>),
    Lines(Box<Ndjson>),
}

impl UsageTap {
    /// Watches an answer with this head. `is_hiding`: usage that comes alone in a stream is kept
    /// from the client, since we asked for it.
    pub(crate) fn new(api: Api, status: StatusCode, headers: &HeaderMap, is_hiding: bool) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let media = text(header::CONTENT_TYPE).unwrap_or_default();
        let media = media.split(';').next().unwrap_or(media).trim();
        let is = |name: &str| media.eq_ignore_ascii_case(name);
        let coding = text(header::CONTENT_ENCODING).unwrap_or("identity");
        let kind = if !api.tells_usage() || !status.is_success() {
            Kind::Nothing
        } else if !coding.eq_ignore_ascii_case("identity") {
            Kind::Coded
        } else if is("text/event-stream") {
            Kind::Events(Box::new(Sse::new(api, is_hiding)))
        } else if is("application/x-ndjson") || is("application/ndjson") {
            Kind::Lines(Box::new(Ndjson::new(api)))
        } else if is("application/json") || is_kind_of_json(media) {
            Kind::Whole(Box::default())
        } else if is("") || is("text/plain") {
            Kind::Unsaid { is_hiding }
        } else if is("text/html") {
            // A page of a proxy, such as a login form.
            Kind::Nothing
        } else {
            Kind::Opaque
        };
        Self { api, kind }
    }

    /// Whether less may go on than came: then nobody can say beforehand how long the answer is.
    pub(crate) fn may_shorten(&self) -> bool {
        match &self.kind {
            Kind::Unsaid { is_hiding } => *is_hiding,
            Kind::Events(events) => events.is_hiding(),
            _ => false,
        }
    }

    /// Whether it cannot be read, and nothing can be taken out of it.
    pub(crate) fn is_coded(&self) -> bool {
        matches!(self.kind, Kind::Coded)
    }

    /// Whether it comes as it is made.
    pub(crate) fn is_stream(&self) -> bool {
        self.summary().is_some()
    }

    /// Looks at an answer that is all here. What it returns goes on to the client.
    pub(crate) fn whole(&mut self, data: Bytes) -> Bytes {
        if let Kind::Whole(finder) = &mut self.kind {
            finder.read_answer(&data);
            return data;
        }
        let passed = self.pass(data);
        concat(passed, self.finish())
    }

    /// Looks at a frame. What it returns goes on to the client; it may be empty.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        if let Kind::Unsaid { is_hiding } = self.kind {
            let begin = data.trim_ascii_start();
            self.kind = match begin.first() {
                None => Kind::Unsaid { is_hiding },
                Some(b'{') => Kind::Whole(Box::default()),
                // Whatever else is text, such as what somebody said, may begin in any way.
                Some(_) if self.api.writes_text() && sse::may_begin(begin) => {
                    Kind::Events(Box::new(Sse::new(self.api, is_hiding)))
                }
                Some(_) => Kind::Nothing,
            };
        }
        match &mut self.kind {
            Kind::Events(events) => return events.pass(data),
            Kind::Whole(finder) => finder.read(&data),
            Kind::Lines(lines) => lines.look(&data),
            Kind::Nothing | Kind::Opaque | Kind::Coded | Kind::Unsaid { .. } => {}
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

    /// Whether the mark after which nothing comes has been seen: what is to be done before the
    /// client has everything is to be done now.
    pub(crate) fn saw_end(&self) -> bool {
        match &self.kind {
            Kind::Whole(finder) => finder.is_over(),
            _ => self.summary().is_some_and(|summary| summary.saw_end),
        }
    }

    /// Whether the answer is all there, as far as one can tell. Some backends end a stream early
    /// without saying so.
    pub(crate) fn is_whole(&self) -> bool {
        match &self.kind {
            // The end of an unknown kind of response has no mark.
            _ if self.api == Api::Unknown => true,
            Kind::Whole(finder) => finder.is_over() || finder.is_invalid(),
            _ => self.summary().is_none_or(StreamSummary::saw_finish),
        }
    }

    /// Whether the client has an answer that did not break off, whatever it says. A stream that tells
    /// of an error ends there.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_whole() && !self.summary().is_some_and(StreamSummary::saw_error)
    }

    /// Whether an answer that began well tells of an error.
    fn saw_error(&self) -> bool {
        match &self.kind {
            Kind::Whole(finder) => finder.facts().is_error,
            _ => self.summary().is_some_and(StreamSummary::saw_error),
        }
    }

    /// The tokens of the request: as reported, else as estimated, by the length of the response if
    /// nothing else is known of it. A report that is partial or invalid is completed by the estimate.
    /// `prompt` is called only for an estimate.
    pub(crate) fn usage(&self, bytes: u64, prompt: impl FnOnce() -> u64) -> Usage {
        let summary = self.summary();
        let counts = match &self.kind {
            Kind::Whole(finder) => Some(&finder.facts().counts),
            _ => summary.map(|summary| &summary.counts),
        };
        let prompt = || if self.is_empty() { 0 } else { prompt() };
        let Some(report) = counts.and_then(|counts| counts.report(self.api)) else {
            if self.is_empty() {
                return Usage::default();
            }
            let (prompt, completion) = (prompt(), self.estimated_completion(bytes));
            return Usage {
                prompt,
                completion,
                total: prompt + completion,
                source: Source::Estimated,
                ..Usage::default()
            };
        };
        // A stream that was cut may have had more tokens than it reported on its way.
        let is_cut = self.api.writes_text() && summary.is_some_and(|summary| !summary.saw_finish());
        let mut is_reported = report.is_valid() && !is_cut;
        let prompt = match report.prompt {
            Some(tokens) if tokens > 0 => tokens,
            reported => {
                // No tokens are no valid count of a prompt that is not empty.
                let estimated = prompt();
                is_reported &= reported == Some(estimated);
                let rest = report.completion.and_then(|part| report.rest(part));
                rest.unwrap_or(estimated)
            }
        };
        let streamed = summary.map(|summary| &summary.streamed);
        let has_text = streamed.is_some_and(Streamed::has_text);
        let completion = match report.completion {
            Some(tokens) if tokens > 0 || !has_text => tokens,
            _ => {
                is_reported = false;
                let rest = report.rest(prompt);
                rest.unwrap_or_else(|| self.estimated_completion(bytes))
            }
        };
        let streamed = streamed.filter(|_| is_cut).map_or(0, Streamed::tokens);
        let source = if is_reported {
            Source::Reported
        } else {
            Source::Estimated
        };
        report.usage(prompt, completion.max(streamed), source)
    }

    /// The tokens of a response that did not report them.
    fn estimated_completion(&self, bytes: u64) -> u64 {
        if self.is_empty() || !self.api.writes_text() {
            return 0;
        }
        match (&self.kind, self.summary()) {
            (_, Some(summary)) => summary.streamed.tokens(),
            (Kind::Whole(finder), _) if finder.facts().is_promise => 0,
            (Kind::Coded | Kind::Opaque, _) => estimate::by_length(bytes),
            _ => estimate::whole_answer(bytes),
        }
    }

    /// Whether there is nothing to estimate: nobody read or wrote text, or it came to nothing.
    fn is_empty(&self) -> bool {
        let failed = match &self.kind {
            Kind::Nothing => true,
            Kind::Events(_) | Kind::Lines(_) => {
                let has_text = self
                    .summary()
                    .is_some_and(|summary| summary.streamed.has_text());
                self.saw_error() && !has_text
            }
            _ => self.saw_error(),
        };
        failed || !self.api.reads_text()
    }

    fn summary(&self) -> Option<&StreamSummary> {
        match &self.kind {
            Kind::Events(events) => Some(events.summary()),
            Kind::Lines(lines) => Some(lines.summary()),
            _ => None,
        }
    }
}

/// Joins two chunks. One of them is almost always empty.
pub(crate) fn concat(first: Bytes, second: Bytes) -> Bytes {
    match (first.is_empty(), second.is_empty()) {
        (_, true) => first,
        (true, false) => second,
        (false, false) => [first, second].concat().into(),
    }
}

/// Such as `application/problem+json`.
fn is_kind_of_json(media: &str) -> bool {
    media.to_ascii_lowercase().ends_with("+json")
}
