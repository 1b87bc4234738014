//! Measures the token usage and the size of a response, for the usage record and the access log.

use std::time::Instant;

use bytes::Bytes;

use crate::endpoint::Api;
use crate::meter::usage::TokenUsage;
use crate::meter::usage_tap::UsageTap;
use crate::meter::websocket::SessionTap;

/// Token usage, size and time of the first byte of a response, as far as it has arrived.
#[derive(Debug, Default)]
pub(crate) struct Metering {
    pub(super) is_stream: bool,
    /// Estimated number of tokens of the prompt, used if the backend does not report the number.
    pub(super) prompt_tokens: u64,
    /// Reader of the usage in the response; `None` before the response begins, and if metering is
    /// off.
    pub(crate) tap: Option<UsageTap>,
    /// Reader of the usage in the messages of a WebSocket; `None` for other responses, and if
    /// metering is off.
    session: Option<Box<SessionTap>>,
    /// Token usage that the usage record contains; `None` until the record is final.
    pub(crate) usage: Option<TokenUsage>,
    pub(crate) first_byte: Option<Instant>,
    /// Bytes of the response body that came from the backend, from which tokens are estimated.
    received: u64,
    /// Bytes of the response body for the client, without hidden usage events.
    pub(crate) bytes: u64,
}

impl Metering {
    /// True if usage events may be removed from the response, so that its Content-Length would be
    /// wrong.
    pub(crate) fn may_shorten(&self) -> bool {
        self.tap.as_ref().is_some_and(UsageTap::may_shorten)
    }

    /// True if the whole response has arrived, as far as its format shows. A response without its
    /// end counts as cut.
    pub(super) fn is_complete(&self) -> bool {
        self.tap.as_ref().is_none_or(UsageTap::is_complete)
    }

    /// True if the response is a stream, or if the client requested one.
    pub(super) fn is_stream(&self) -> bool {
        self.is_stream || self.tap.as_ref().is_some_and(UsageTap::is_stream)
    }

    fn note_received(&mut self, length: usize) {
        self.received += length as u64;
        self.first_byte.get_or_insert_with(Instant::now);
    }

    /// Counts bytes of the response that the client gets unchanged.
    pub(super) fn count(&mut self, length: usize) {
        self.note_received(length);
        self.bytes += length as u64;
    }

    pub(super) fn start_session(&mut self) {
        self.session = Some(Box::default());
    }

    /// Reads bytes that the backend sent through a WebSocket. Returns true if the usage changed, so
    /// that the caller updates the list of requests in flight.
    pub(super) fn read_session(&mut self, data: &[u8]) -> bool {
        let session = self.session.as_mut();
        session.is_some_and(|session| session.read(data))
    }

    /// Reads a chunk of the response. Returns the bytes for the client, and true if the response
    /// has reached its end mark: the usage record must be persisted before the mark is sent.
    pub(super) fn pass(&mut self, data: Bytes) -> (Bytes, bool) {
        let Some(tap) = &mut self.tap else {
            self.count(data.len());
            return (data, false);
        };
        let length = data.len();
        let passed = tap.pass(data);
        let saw_end = tap.saw_end();
        self.bytes += passed.len() as u64;
        self.note_received(length);
        (passed, saw_end)
    }

    pub(super) fn pass_whole(&mut self, data: Bytes) -> Bytes {
        if data.is_empty() {
            let rest = self.finish();
            self.bytes += rest.len() as u64;
            return rest;
        }
        self.note_received(data.len());
        let passed = match &mut self.tap {
            Some(tap) => tap.pass_complete(data),
            None => data,
        };
        self.bytes += passed.len() as u64;
        passed
    }

    /// Ends the response. Returns the bytes for the client that were held back as a possible usage
    /// event.
    pub(super) fn finish(&mut self) -> Bytes {
        self.tap.as_mut().map(UsageTap::finish).unwrap_or_default()
    }

    /// Returns the reported or estimated usage of a request to this API. `is_delivered` is true if
    /// the request, or a part of it, was sent to a backend, which may have read the prompt.
    pub(super) fn measure(&self, api: Api, is_delivered: bool) -> TokenUsage {
        if let Some(session) = &self.session {
            return session.usage();
        }
        let prompt = self.prompt_tokens;
        match &self.tap {
            Some(tap) => tap.usage(self.received, || prompt),
            // The request ended without a response, but the backend may have read the prompt: count
            // the prompt only.
            None if is_delivered && api.reads_text() => TokenUsage::prompt_only(prompt),
            None => TokenUsage::default(),
        }
    }
}
