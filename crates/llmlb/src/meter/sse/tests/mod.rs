//! Streams in every pair and heap of pieces: the same is heard, the same bytes go on.

mod hearing;
mod hiding;

use super::super::usage::Usage;
use super::*;
use crate::dice::Dice;

/// A stream that passed: what went on, and what was heard.
struct Passed {
    out: Vec<u8>,
    sse: Sse,
}

fn pass(api: Api, is_hiding: bool, pieces: &[&[u8]]) -> Passed {
    let mut sse = Sse::new(api, is_hiding);
    let mut out = Vec::new();
    for piece in pieces {
        let data = Bytes::copy_from_slice(piece);
        let place = data.as_ptr();
        let passed = sse.pass(data);
        if !is_hiding {
            assert_eq!(passed.as_ptr(), place, "it is the same memory");
            assert_eq!(&passed[..], *piece);
        }
        out.extend_from_slice(&passed);
    }
    out.extend_from_slice(&sse.finish());
    Passed { out, sse }
}

fn told(summary: &StreamSummary, api: Api) -> (Option<Usage>, bool, bool, bool, u64) {
    (
        summary.counts.usage(api),
        summary.saw_end,
        summary.saw_error(),
        summary.saw_finish(),
        summary.streamed.tokens(),
    )
}

/// Passes it whole, cut in two everywhere, byte by byte and in chance pieces, with every end of
/// a line.
fn every_way(api: Api, is_hiding: bool, stream: &str, expected: &str) -> StreamSummary {
    let as_it_is = pass(api, is_hiding, &[stream.as_bytes()]);
    let summary = told(as_it_is.sse.summary(), api);
    for end in ["\n", "\r\n", "\r"] {
        let stream = stream.replace('\n', end);
        let expected = expected.replace('\n', end);
        let check = |pieces: &[&[u8]]| {
            let passed = pass(api, is_hiding, pieces);
            let out = String::from_utf8_lossy(&passed.out);
            assert_eq!(out, expected, "{pieces:?}");
            assert_eq!(told(passed.sse.summary(), api), summary, "{pieces:?}");
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
const ALONE: &str = "data: {\"id\":\"x\",\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1,\"total_tokens\":10}}\n\n";
const DONE: &str = "data: [DONE]\n\n";
