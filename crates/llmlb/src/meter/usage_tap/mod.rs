//! Reads a response of any format while it passes to the client, to find its usage and its end.

#[cfg(test)]
mod tests;

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};

use super::estimate::{self, StreamEstimate};
use super::json::Finder;
use super::ndjson::Ndjson;
use super::sse::{self, Sse, StreamSummary, UsageEvents};
use super::usage::{TokenUsage, UsageSource};
use crate::endpoint::Api;
use crate::headers::media_type;

/// Reader of one response, through which all bytes for the client pass. It finds the token usage
/// and the end of the response, and hides usage events.
#[derive(Debug)]
pub(crate) struct UsageTap {
    api: Api,
    format: ResponseFormat,
}

#[derive(Debug)]
enum ResponseFormat {
    /// A response without usage, such as an error, an HTML page or the content of a file.
    Unmetered,
    /// Success in a format that is not parsed, such as binary embeddings. The model has read the
    /// prompt, so its tokens are estimated.
    Opaque,
    /// Compressed response. Only its length is known, from which its tokens are estimated.
    Compressed,
    /// Response without a Content-Type, or with `text/plain`. Some backends label streams or JSON
    /// so, so its first bytes determine the format.
    Undetermined {
        usage_events: UsageEvents,
    },
    Whole(Box<Finder>),
    Events(Box<Sse>),
    Lines(Box<Ndjson>),
}

impl UsageTap {
    /// Determines the format of a response from its status, Content-Type and Content-Encoding.
    pub(crate) fn new(
        api: Api,
        status: StatusCode,
        headers: &HeaderMap,
        usage_events: UsageEvents,
    ) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let media = media_type(text(header::CONTENT_TYPE).unwrap_or_default());
        let is = |name: &str| media.eq_ignore_ascii_case(name);
        let coding = text(header::CONTENT_ENCODING).unwrap_or("identity");
        let format = if !api.is_metered() || !status.is_success() {
            ResponseFormat::Unmetered
        } else if !coding.eq_ignore_ascii_case("identity") {
            ResponseFormat::Compressed
        } else if is("text/event-stream") {
            ResponseFormat::Events(Box::new(Sse::new(api, usage_events)))
        } else if is("application/x-ndjson") || is("application/ndjson") {
            ResponseFormat::Lines(Box::new(Ndjson::new(api)))
        } else if is("application/json") || has_json_suffix(media) {
            ResponseFormat::Whole(Box::default())
        } else if is("") || is("text/plain") {
            ResponseFormat::Undetermined { usage_events }
        } else if is("text/html") {
            // No model generated an HTML page: a proxy in front of the backend sent it, such as a
            // login form. Charge no tokens.
            ResponseFormat::Unmetered
        } else {
            ResponseFormat::Opaque
        };
        Self { api, format }
    }

    /// True if bytes may be removed from the response, so that a Content-Length would be wrong.
    pub(crate) fn may_shorten(&self) -> bool {
        match &self.format {
            ResponseFormat::Undetermined { usage_events } => *usage_events == UsageEvents::Hide,
            ResponseFormat::Events(events) => events.is_hiding(),
            _ => false,
        }
    }

    pub(crate) fn is_compressed(&self) -> bool {
        matches!(self.format, ResponseFormat::Compressed)
    }

    /// True if the response is a stream of events or JSON lines. The usage record then has `"stream":true`,
    /// even if the request did not demand a stream.
    pub(crate) fn is_stream(&self) -> bool {
        self.summary().is_some()
    }

    /// Reads a response that arrived in one chunk, for which the end can be searched first. Returns
    /// the bytes to forward to the client.
    pub(crate) fn pass_complete(&mut self, data: Bytes) -> Bytes {
        if let ResponseFormat::Whole(finder) = &mut self.format {
            finder.read_response(&data);
            return data;
        }
        let passed = self.pass(data);
        concat(passed, self.finish())
    }

    /// Reads a chunk of the response. Returns the bytes to forward to the client: none if all of
    /// them are hidden or held back.
    pub(crate) fn pass(&mut self, data: Bytes) -> Bytes {
        if let ResponseFormat::Undetermined { usage_events } = self.format {
            let begin = data.trim_ascii_start();
            self.format = match begin.first() {
                None => ResponseFormat::Undetermined { usage_events },
                Some(b'{') => ResponseFormat::Whole(Box::default()),
                // Take plain text for an event stream only if the API generates text. A transcript,
                // for example, may begin with the same bytes as an event and must be forwarded
                // unchanged.
                Some(_) if self.api.writes_text() && sse::may_begin(begin) => {
                    ResponseFormat::Events(Box::new(Sse::new(self.api, usage_events)))
                }
                Some(_) => ResponseFormat::Unmetered,
            };
        }
        match &mut self.format {
            ResponseFormat::Events(events) => return events.pass(data),
            ResponseFormat::Whole(finder) => finder.read(&data),
            ResponseFormat::Lines(lines) => lines.read(&data),
            ResponseFormat::Unmetered
            | ResponseFormat::Opaque
            | ResponseFormat::Compressed
            | ResponseFormat::Undetermined { .. } => {}
        }
        data
    }

    /// Ends the response, even an incomplete one. Returns the bytes that were held back for the
    /// client.
    pub(crate) fn finish(&mut self) -> Bytes {
        match &mut self.format {
            ResponseFormat::Events(events) => return events.finish(),
            ResponseFormat::Lines(lines) => lines.finish(),
            _ => {}
        }
        Bytes::new()
    }

    /// True if the end of the response was read. The usage record is persisted before the end is
    /// forwarded, so that no finished request is lost.
    pub(crate) fn saw_end(&self) -> bool {
        match &self.format {
            ResponseFormat::Whole(finder) => finder.is_over(),
            _ => self.summary().is_some_and(|summary| summary.saw_end),
        }
    }

    /// True unless the response is known to be truncated: a JSON body without its end, or a stream
    /// without a finish reason. A connection that the backend closes in order is no proof of the
    /// end, because some backends close a stream early without an error.
    pub(crate) fn is_finished(&self) -> bool {
        match &self.format {
            // Streams of unknown endpoints have no end mark that llmlb knows. Count them as
            // finished, otherwise every one would count as truncated.
            _ if self.api == Api::Unknown => true,
            ResponseFormat::Whole(finder) => finder.is_over() || finder.is_invalid(),
            _ => self.summary().is_none_or(StreamSummary::saw_finish),
        }
    }

    /// True if the response is finished and, if it is a stream, contains no error. A backend that
    /// fails within a stream sends an error event as its end.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_finished() && !self.summary().is_some_and(StreamSummary::saw_error)
    }

    /// True if a response with a success status contains an error, as some backends send. Its
    /// tokens are then not estimated unless text was streamed.
    fn saw_error(&self) -> bool {
        match &self.format {
            ResponseFormat::Whole(finder) => finder.facts().is_error,
            _ => self.summary().is_some_and(StreamSummary::saw_error),
        }
    }

    /// Returns the usage of the request: the reported numbers, completed by estimates if the report is
    /// missing, partial or invalid. `bytes` is the length of the response. `prompt` is called only if the
    /// prompt must be estimated.
    pub(crate) fn usage(&self, bytes: u64, prompt: impl FnOnce() -> u64) -> TokenUsage {
        let summary = self.summary();
        let counts = match &self.format {
            ResponseFormat::Whole(finder) => Some(&finder.facts().counts),
            _ => summary.map(|summary| &summary.counts),
        };
        let prompt = || if self.is_empty() { 0 } else { prompt() };
        let Some(report) = counts.and_then(|counts| counts.report(self.api)) else {
            if self.is_empty() {
                return TokenUsage::default();
            }
            let (prompt, completion) = (prompt(), self.estimated_completion(bytes));
            return TokenUsage {
                prompt,
                completion,
                total: prompt + completion,
                source: UsageSource::Estimated,
                ..TokenUsage::default()
            };
        };
        // The backend may have generated more tokens after the last report of a stream that it cut.
        // So the report counts as a lower bound, and the usage as estimated.
        let is_cut = self.api.writes_text() && summary.is_some_and(|summary| !summary.saw_finish());
        let mut is_reported = report.is_valid() && !is_cut;
        let prompt = match report.prompt {
            Some(tokens) if tokens > 0 => tokens,
            reported => {
                // Some backends report 0 tokens for a prompt that is not empty. Use the estimate
                // instead.
                let estimated = prompt();
                is_reported &= reported == Some(estimated);
                let rest = report.completion.and_then(|part| report.rest(part));
                rest.unwrap_or(estimated)
            }
        };
        let streamed = summary.map(|summary| &summary.estimate);
        let has_text = streamed.is_some_and(StreamEstimate::has_text);
        let completion = match report.completion {
            Some(tokens) if tokens > 0 || !has_text => tokens,
            _ => {
                is_reported = false;
                let rest = report.rest(prompt);
                rest.unwrap_or_else(|| self.estimated_completion(bytes))
            }
        };
        let streamed = streamed
            .filter(|_| is_cut)
            .map_or(0, StreamEstimate::tokens);
        let source = if is_reported {
            UsageSource::Reported
        } else {
            UsageSource::Estimated
        };
        report.usage(prompt, completion.max(streamed), source)
    }

    fn estimated_completion(&self, bytes: u64) -> u64 {
        if self.is_empty() || !self.api.writes_text() {
            return 0;
        }
        match (&self.format, self.summary()) {
            (_, Some(summary)) => summary.estimate.tokens(),
            (ResponseFormat::Whole(finder), _) if finder.facts().is_pending => 0,
            (ResponseFormat::Compressed | ResponseFormat::Opaque, _) => estimate::by_length(bytes),
            _ => estimate::response(bytes),
        }
    }

    /// True if no tokens can be estimated: the response failed without text, or its API reads no
    /// text.
    fn is_empty(&self) -> bool {
        let failed = match &self.format {
            ResponseFormat::Unmetered => true,
            ResponseFormat::Events(_) | ResponseFormat::Lines(_) => {
                let has_text = self
                    .summary()
                    .is_some_and(|summary| summary.estimate.has_text());
                // Check for text first, which costs less: the search for an error parses the last
                // event.
                !has_text && self.saw_error()
            }
            _ => self.saw_error(),
        };
        failed || !self.api.reads_text()
    }

    fn summary(&self) -> Option<&StreamSummary> {
        match &self.format {
            ResponseFormat::Events(events) => Some(events.summary()),
            ResponseFormat::Lines(lines) => Some(lines.summary()),
            _ => None,
        }
    }
}

/// Concatenates two chunks. If one of them is empty, no byte is copied.
pub(crate) fn concat(first: Bytes, second: Bytes) -> Bytes {
    match (first.is_empty(), second.is_empty()) {
        (_, true) => first,
        (true, false) => second,
        (false, false) => [first, second].concat().into(),
    }
}

/// True for media types such as `application/problem+json`, whose content is JSON.
fn has_json_suffix(media: &str) -> bool {
    media.to_ascii_lowercase().ends_with("+json")
}
