//! Fuzz targets for the parsers that find usage in responses, and for the token estimates.

#![expect(
    clippy::missing_panics_doc,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::Value;
use serde_json::value::RawValue;

pub use super::in_flight_list::fuzz::in_flight_list;
use super::json::Finder;
use super::ndjson::Ndjson;
use super::sse::{Sse, StreamSummary, UsageEvents};
use super::usage::{TokenCounts, TokenUsage, UsageReport, UsageSource};
use super::websocket::SessionTap;
use crate::dice::split;
use crate::endpoint::Api;

const APIS: [Api; 8] = [
    Api::Chat,
    Api::Completions,
    Api::Responses,
    Api::Messages,
    Api::OllamaChat,
    Api::OllamaGenerate,
    Api::Embeddings,
    Api::Unknown,
];

/// Fuzz target: the token estimate of any text equals that of a slow reference implementation, and
/// is bounded by the length of the text.
pub fn estimate(data: &[u8]) {
    let _ = super::estimate::images(data, 0);
    let _ = super::estimate::embedded(data, 0);
    let strings = memchr::memchr_iter(b'"', data).count() as u64;
    let max = 2 * data.len() as u64 + 501 * strings + 1;
    let tokens = super::estimate::prompt(data, 0);
    assert!(
        tokens.is_ok_and(|(tokens, end)| tokens <= max && end <= data.len()) || tokens.is_err()
    );
    let parts = super::estimate::parts(data);
    assert!(parts <= 24 * data.len() as u64);
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let characters = |text: &str| -> u64 {
        text.chars()
            .map(|letter| [3, 6, 12, 24][letter.len_utf8() - 1])
            .sum()
    };
    let plain = Value::from(text).to_string();
    let units = text.encode_utf16();
    let ascii: Vec<_> = units.map(|unit| format!("\\u{unit:04x}")).collect();
    let ascii = ascii.concat();
    let has_run = text.contains("\\\\") || text.contains("\\\"") || text.contains("\\\n");
    for written in [&plain[1..plain.len() - 1], &ascii] {
        let counted = super::estimate::parts(written.as_bytes());
        assert!(counted >= characters(text), "{written}");
        let is_exact =
            !has_run && !text.contains(|letter: char| letter == '\\' || letter.is_control());
        assert!(!is_exact || counted == characters(text), "{written}");
        let json = format!("\"{written}\"");
        let read = super::estimate::prompt(json.as_bytes(), 0);
        assert_eq!(read, Ok((super::estimate::tokens(counted), json.len())));
    }
}

/// Fuzz target: the finder reports the same usage as a JSON parser, however the response is split
/// into chunks.
pub fn usage_report(data: &[u8]) {
    let read = |pieces: &[&[u8]]| {
        let mut finder = Finder::default();
        for piece in pieces {
            finder.read(piece);
        }
        finder
    };
    let whole = read(&[data]);
    for pieces in split(data) {
        let finder = read(&pieces);
        assert_eq!(finder.facts(), whole.facts(), "{pieces:?}");
        assert_eq!(
            (finder.is_over(), finder.is_invalid(), finder.has_choices()),
            (whole.is_over(), whole.is_invalid(), whole.has_choices())
        );
    }
    for api in APIS {
        bounded(whole.facts().counts.report(api));
    }
    let Some(value) = unique(data).filter(Value::is_object) else {
        return;
    };
    assert!(whole.is_over());
    let mut expected = TokenCounts::default();
    let usage = |object: Option<&[u8]>| {
        let usage = object.and_then(|object| field(object, "usage"));
        TokenCounts::read(usage.unwrap_or_default())
    };
    expected.merge(&usage(Some(data)));
    expected.merge(&usage(field(data, "response")));
    // Anthropic's first event has its usage in `message`. Its output tokens are preliminary and
    // must not count as the final number.
    expected.merge(&usage(field(data, "message")).as_first_event());
    let report = |counts: &TokenCounts| counts.report(Api::Embeddings).map(|report| report.prompt);
    if data.len() < 4 << 10
        && value
            .get("eval_count")
            .or(value.get("prompt_eval_count"))
            .is_none()
    {
        assert_eq!(report(&whole.facts().counts), report(&expected));
    }
    let mut finder = Finder::default();
    finder.read_response(data);
    assert!(finder.is_over());
}

fn field<'a>(object: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let fields: HashMap<String, &RawValue> = serde_json::from_slice(object).ok()?;
    fields.get(name).map(|value| value.get().as_bytes())
}

fn bounded(report: Option<UsageReport>) {
    if let Some(report) = report {
        let max = 3_000_000_000;
        assert!(report.prompt.unwrap_or(0) <= max && report.completion.unwrap_or(0) <= max);
    }
}

/// Parses a JSON value; `None` if an object in it has duplicate fields, for which the JSON parser
/// and the finder may differ.
fn unique(data: &[u8]) -> Option<Value> {
    let value: Value = serde_json::from_slice(data).ok()?;
    let colons = |text: &[u8]| memchr::memchr_iter(b':', text).count();
    (colons(value.to_string().as_bytes()) == colons(data)).then_some(value)
}

type StreamFacts = (Option<UsageReport>, bool, bool, bool, u64);

fn facts(summary: &StreamSummary, api: Api) -> StreamFacts {
    (
        summary.counts.report(api),
        summary.saw_end,
        summary.saw_error(),
        summary.saw_finish(),
        summary.estimate.tokens(),
    )
}

/// Fuzz target: an event stream is forwarded unchanged except for hidden usage events, however it
/// is split into chunks. The first byte of the input selects the API and whether usage is hidden.
pub fn sse(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    let api = APIS[usize::from(*first >> 1) % APIS.len()];
    let usage_events = match first & 1 {
        0 => UsageEvents::Forward,
        _ => UsageEvents::Hide,
    };
    let pass = |pieces: &[&[u8]]| {
        let mut sse = Sse::new(api, usage_events);
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&sse.pass(Bytes::copy_from_slice(piece)));
        }
        out.extend_from_slice(&sse.finish());
        (out, facts(sse.summary(), api))
    };
    let whole = pass(&[stream]);
    bounded(whole.1.0);
    if usage_events == UsageEvents::Forward || memchr::memmem::find(stream, b"usage").is_none() {
        assert_eq!(whole.0, stream);
    }
    for pieces in split(stream) {
        assert_eq!(pass(&pieces), whole, "{pieces:?}");
    }
}

/// Fuzz target: a stream of JSON lines yields the same usage, errors and end however it is split
/// into chunks. The first byte of the input selects the API.
pub fn ndjson(data: &[u8]) {
    let Some((first, stream)) = data.split_first() else {
        return;
    };
    let api = APIS[usize::from(*first) % APIS.len()];
    let read = |pieces: &[&[u8]]| {
        let mut lines = Ndjson::new(api);
        for piece in pieces {
            lines.read(piece);
        }
        lines.finish();
        facts(lines.summary(), api)
    };
    let whole = read(&[stream]);
    bounded(whole.0);
    for pieces in split(stream) {
        assert_eq!(read(&pieces), whole, "{pieces:?}");
    }
}

/// Fuzz target: the usage of a WebSocket session is the same however its bytes are split into
/// chunks, and equals the usage of its text messages, each in one frame.
pub fn websocket(data: &[u8]) {
    let read = |pieces: &[&[u8]]| {
        let mut session = SessionTap::default();
        for piece in pieces {
            session.read(piece);
        }
        session.usage()
    };
    let whole = read(&[data]);
    for pieces in split(data) {
        assert_eq!(read(&pieces), whole, "{pieces:?}");
    }
    let messages = text_messages(data);
    let plain = read(&[&messages
        .iter()
        .flat_map(|text| text_frame(text))
        .collect::<Vec<_>>()]);
    // Input that ends with a violation of the WebSocket protocol is marked as estimated, unlike the
    // messages in front of it.
    let numbers = |usage: TokenUsage| TokenUsage {
        source: UsageSource::None,
        ..usage
    };
    assert_eq!(numbers(whole), numbers(plain));
    assert!((whole.source == UsageSource::None) == (plain.source == UsageSource::None));
    assert!(whole.source != UsageSource::Reported || plain.source == UsageSource::Reported);
}

/// Returns the text messages of a WebSocket up to the first violation of the protocol, by a simple
/// reading of RFC 6455. The fuzz target compares the product's reader with it.
fn text_messages(mut data: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    let mut begun: Option<(bool, Vec<u8>)> = None;
    while let [first, second, rest @ ..] = data {
        let read = match second {
            0..=125 => Some((u64::from(*second), rest)),
            126 => rest
                .split_first_chunk()
                .map(|(length, rest)| (u64::from(u16::from_be_bytes(*length)), rest)),
            127 => rest
                .split_first_chunk()
                .map(|(length, rest)| (u64::from_be_bytes(*length), rest)),
            _ => None,
        };
        let Some((length, rest)) = read else { break };
        let is_control = matches!(first, 0x88..=0x8A) && length <= 125;
        match (first, &begun) {
            (0x00 | 0x80, Some(_)) => {}
            (0x01 | 0x81, None) => begun = Some((true, Vec::new())),
            (0x02 | 0x82, None) => begun = Some((false, Vec::new())),
            (0x89 | 0x8A, _) if is_control => {}
            _ => break,
        }
        let Some((payload, rest)) = usize::try_from(length)
            .ok()
            .and_then(|length| rest.split_at_checked(length))
        else {
            break;
        };
        data = rest;
        if let Some((_, message)) = begun.as_mut().filter(|_| !is_control) {
            message.extend_from_slice(payload);
        }
        if first & 0x80 != 0
            && !is_control
            && let Some((true, message)) = begun.take()
        {
            messages.push(message);
        }
    }
    messages
}

fn text_frame(text: &[u8]) -> Vec<u8> {
    let length = (text.len() as u64).to_be_bytes();
    [&[0x81, 127], &length[..], text].concat()
}
