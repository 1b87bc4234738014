//! Reads the messages that a backend sends through a WebSocket, to find the usage of its responses.
//!
//! A WebSocket session has many responses, each of which ends with one event that reports its
//! usage. The usage record of the session has the sum.
//!
//! | event | usage in | sent by |
//! |---|---|---|
//! | `response.done` | `response.usage` | Realtime API |
//! | `response.completed`, `response.incomplete`, `response.failed` | `response.usage` | Responses API over WebSocket |
//! | `conversation.item.input_audio_transcription.completed` | `usage` | Realtime API; tokens, or a duration that is not counted |
//! | `transcription.done` | `usage` | vLLM's Realtime API |
//!
//! Messages are read in the pieces in which they arrive and are not buffered. A message of a kind
//! that reports no usage, such as a piece of audio, is skipped to save CPU.

mod frames;
#[cfg(test)]
mod tests;

use super::json::{Facts, Finder, SessionEvent};
use super::usage::{TokenUsage, UsageReport, UsageSource};
use crate::endpoint::Api;
use frames::{FrameReader, MessagePart};

#[derive(Debug, Default)]
pub(crate) struct SessionTap {
    frames: FrameReader,
    message: Finder,
    /// True if the rest of the current message is skipped, because its kind reports no usage.
    is_skipped: bool,
    totals: SessionTotals,
}

#[derive(Debug, Default)]
struct SessionTotals {
    sum: TokenUsage,
    has_report: bool,
    /// True if a response reported no valid usage, so that the sum is too low and counts as
    /// estimated.
    is_partial: bool,
    /// Number of responses that have begun and not ended. Their usage is missing in the sum.
    unfinished: u64,
}

impl SessionTap {
    /// Reads the next chunk that the backend sent. Returns true if the usage of the session
    /// changed, so that the caller updates the in-flight list.
    pub(crate) fn read(&mut self, data: &[u8]) -> bool {
        let Self {
            frames,
            message,
            is_skipped,
            totals,
        } = self;
        let mut is_changed = false;
        frames.read(data, |part| match part {
            MessagePart::Text(text) if !*is_skipped => {
                message.read(text);
                *is_skipped = message.facts().session_event == Some(SessionEvent::Other);
            }
            MessagePart::Text(_) => {}
            MessagePart::End => {
                let message = std::mem::take(message);
                // A message that ends within its JSON object is no event, so it reports no usage.
                if !std::mem::take(is_skipped) && message.is_over() {
                    is_changed |= totals.note(message.facts());
                }
            }
        });
        is_changed
    }

    /// Returns the usage of the session so far. It counts as estimated if it is known to be too low: a response
    /// has not ended or did not report its usage, or the backend violated the WebSocket protocol.
    pub(crate) fn usage(&self) -> TokenUsage {
        let totals = &self.totals;
        let is_low = totals.is_partial || totals.unfinished > 0 || self.frames.is_broken();
        let source = match (totals.has_report, is_low) {
            (false, _) => UsageSource::None,
            (true, true) => UsageSource::Estimated,
            (true, false) => UsageSource::Reported,
        };
        TokenUsage {
            source,
            ..totals.sum
        }
    }
}

impl SessionTotals {
    /// Counts an event of the backend in the totals of the session. Returns true if the usage
    /// changed.
    fn note(&mut self, facts: &Facts) -> bool {
        let report = facts.counts.report(Api::Responses);
        match facts.session_event {
            Some(SessionEvent::ResponseCreated) => {
                self.unfinished += 1;
                return true;
            }
            Some(SessionEvent::ResponseDone) => {
                self.unfinished = self.unfinished.saturating_sub(1);
                self.is_partial |= report.is_none();
            }
            Some(SessionEvent::Transcribed) => {}
            Some(SessionEvent::Other) | None => return false,
        }
        if let Some(report) = report {
            self.add(&report);
        }
        true
    }

    fn add(&mut self, report: &UsageReport) {
        self.has_report = true;
        self.is_partial |= !report.is_valid();
        let of_total = |part: Option<u64>| part.and_then(|part| report.rest(part));
        let prompt = report.prompt.or_else(|| of_total(report.completion));
        let prompt = prompt.unwrap_or_default();
        let completion = report.completion.or_else(|| report.rest(prompt));
        let one = report.usage(prompt, completion.unwrap_or_default(), UsageSource::None);
        let sum = &mut self.sum;
        for (total, part) in [
            (&mut sum.prompt, one.prompt),
            (&mut sum.completion, one.completion),
            (&mut sum.cached, one.cached),
            (&mut sum.reasoning, one.reasoning),
            (&mut sum.total, one.total),
        ] {
            *total = total.saturating_add(part);
        }
    }
}
