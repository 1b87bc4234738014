//! Tests that a stream yields the same usage and the same forwarded bytes however it is split into
//! chunks.

mod facts;
mod hiding;

use super::super::usage::TokenUsage;
use super::UsageEvents::{Forward, Hide};
use super::*;
use crate::dice::Dice;

struct Passed {
    out: Vec<u8>,
    sse: Sse,
}

fn pass(api: Api, usage_events: UsageEvents, pieces: &[&[u8]]) -> Passed {
    let mut sse = Sse::new(api, usage_events);
    let mut out = Vec::new();
    for piece in pieces {
        let data = Bytes::copy_from_slice(piece);
        let place = data.as_ptr();
        let passed = sse.pass(data);
        if usage_events == Forward {
            assert_eq!(passed.as_ptr(), place, "the chunk was copied");
            assert_eq!(&passed[..], *piece);
        }
        out.extend_from_slice(&passed);
    }
    out.extend_from_slice(&sse.finish());
    Passed { out, sse }
}

fn facts(summary: &StreamSummary, api: Api) -> (Option<TokenUsage>, bool, bool, bool, u64) {
    (
        summary.counts.usage(api),
        summary.saw_end,
        summary.saw_error(),
        summary.saw_finish(),
        summary.estimate.tokens(),
    )
}

/// Passes a stream through the reader in one chunk, split in two at every offset, byte by byte and
/// in random chunks, with every kind of line break. Every way must forward the same bytes and find
/// the same facts.
fn every_way(api: Api, usage_events: UsageEvents, stream: &str, expected: &str) -> StreamSummary {
    let as_it_is = pass(api, usage_events, &[stream.as_bytes()]);
    let summary = facts(as_it_is.sse.summary(), api);
    for end in ["\n", "\r\n", "\r"] {
        let stream = stream.replace('\n', end);
        let expected = expected.replace('\n', end);
        let check = |pieces: &[&[u8]]| {
            let passed = pass(api, usage_events, pieces);
            let out = String::from_utf8_lossy(&passed.out);
            assert_eq!(out, expected, "{pieces:?}");
            assert_eq!(facts(passed.sse.summary(), api), summary, "{pieces:?}");
        };
        let bytes = stream.as_bytes();
        check(&[bytes]);
        for at in 0..=bytes.len() {
            check(&[&bytes[..at], &bytes[at..]]);
        }
        check(&bytes.chunks(1).collect::<Vec<_>>());
        let mut dice = Dice::new(5);
        for longest in [3, 30, 300] {
            check(&dice.pieces(bytes, longest));
        }
    }
    as_it_is.sse.summary
}

fn tokens(summary: &StreamSummary, api: Api) -> Option<(u64, u64)> {
    let usage = summary.counts.usage(api)?;
    Some((usage.prompt, usage.completion))
}

const WORD: &str = "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":null}]}\n\n";
const STOP: &str =
    "data: {\"id\":\"x\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
const USAGE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
