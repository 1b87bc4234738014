//! Traces that a scripted receiver gets. (feature `otlp`)

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::{
    FakeLlm,
    backends::{UNPROBED, asked, count, serve},
    until, wire,
};

use crate::support::{ask, ask_with, failing, good};

/// A field of a protobuf message.
#[derive(Clone, Debug)]
enum Field {
    Number(u64),
    Bytes(Vec<u8>),
}

/// Decodes a protobuf message without its schema.
fn decode(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (first, rest) = bytes.split_first().expect("a varint");
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            shift += 7;
            if first & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let field = match tag & 7 {
            0 => Field::Number(varint(&mut bytes)),
            1 => {
                let (number, rest) = bytes.split_first_chunk::<8>().expect("8 bytes");
                bytes = rest;
                Field::Number(u64::from_le_bytes(*number))
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(content.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

fn messages(bytes: &[u8], number: u64) -> Vec<Vec<u8>> {
    let fields = decode(bytes).into_iter();
    let wanted = fields.filter(|(field, _)| *field == number);
    wanted
        .map(|(_, field)| match field {
            Field::Bytes(bytes) => bytes,
            Field::Number(_) => panic!("field {number} is a number"),
        })
        .collect()
}

fn text(bytes: &[u8], number: u64) -> String {
    let found = messages(bytes, number).pop().unwrap_or_default();
    String::from_utf8(found).unwrap()
}

fn number(bytes: &[u8], wanted: u64) -> u64 {
    let mut fields = decode(bytes).into_iter();
    let found = fields.find(|(field, _)| *field == wanted);
    match found {
        Some((_, Field::Number(number))) => number,
        _ => 0,
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

#[derive(Clone, Debug)]
struct Span {
    trace: String,
    id: String,
    parent: String,
    name: String,
    kind: u64,
    start: u64,
    end: u64,
    is_error: bool,
    attributes: HashMap<String, String>,
}

fn attributes(message: &[u8], field: u64) -> HashMap<String, String> {
    let pairs = messages(message, field).into_iter();
    let value = |any: &[u8]| match decode(any).remove(0) {
        (_, Field::Bytes(bytes)) => String::from_utf8(bytes).unwrap(),
        (_, Field::Number(number)) => number.to_string(),
    };
    pairs
        .map(|pair| (text(&pair, 1), value(&messages(&pair, 2)[0])))
        .collect()
}

/// Returns the spans that a receiver got, and checks what surrounds them.
fn spans(receiver: &FakeLlm) -> Vec<Span> {
    let mut found = Vec::new();
    for request in asked(receiver) {
        assert_eq!(request.path(), "/v1/traces");
        assert_eq!(
            request.head.header("content-type").as_deref(),
            Some("application/x-protobuf")
        );
        for resource_spans in messages(&request.body, 1) {
            let resource = attributes(&messages(&resource_spans, 1)[0], 1);
            assert_eq!(resource["service.name"], "llm-test");
            assert!(text(&resource_spans, 3).starts_with("https://opentelemetry.io/schemas/"));
            for scope_spans in messages(&resource_spans, 2) {
                found.extend(messages(&scope_spans, 2).iter().map(|span| {
                    Span {
                        trace: hex(&messages(span, 1)[0]),
                        id: hex(&messages(span, 2)[0]),
                        parent: messages(span, 4)
                            .first()
                            .map(|id| hex(id))
                            .unwrap_or_default(),
                        name: text(span, 5),
                        kind: number(span, 6),
                        start: number(span, 7),
                        end: number(span, 8),
                        is_error: messages(span, 15)
                            .iter()
                            .any(|status| number(status, 3) == 2),
                        attributes: attributes(span, 9),
                    }
                }));
            }
        }
    }
    found
}

fn receiver() -> FakeLlm {
    testkit::backends::backend(|_, stream| wire::json(stream, 200, "{}"))
}

#[test]
fn request_is_one_server_span_with_a_client_span_for_each_attempt() {
    let sandbox = testkit::sandbox!();
    let (bad, fine, receiver) = (failing(503), good(), receiver());
    let url = receiver.url();
    let mut settings = UNPROBED.to_vec();
    settings.extend([
        ("LLMLB_OTLP_ENDPOINT", &*url),
        ("OTEL_SERVICE_NAME", "llm-test"),
    ]);
    let server = serve(&sandbox, &[&bad, &fine], &settings);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut sent = 0;
    until("the failing backend is tried", || {
        sent += 1;
        let fields = format!("traceparent: {parent}\r\n");
        assert_eq!(
            ask_with(&server, &format!("r-{sent}"), &fields).status(),
            200
        );
        count(&bad) > 0
    });
    let id = format!("r-{sent}");
    // Draining flushes the spans.
    assert_eq!(server.stop(), Some(0));
    let all = spans(&receiver);
    let mut servers = all.iter().filter(|span| span.kind == 2);
    let server_span = servers
        .find(|span| span.attributes["llmlb.request_id"] == id)
        .expect("the span of the request");
    assert_eq!(server_span.trace, "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(server_span.parent, "b7ad6b7169203331");
    assert_eq!(server_span.name, "chat m");
    assert!(!server_span.is_error);
    for (name, value) in [
        ("gen_ai.operation.name", "chat"),
        ("gen_ai.request.model", "m"),
        ("gen_ai.usage.input_tokens", "7"),
        ("gen_ai.usage.output_tokens", "5"),
        ("http.request.method", "POST"),
        ("http.response.status_code", "200"),
        ("url.path", "/v1/chat/completions"),
        ("llmlb.outcome", "complete"),
    ] {
        assert_eq!(server_span.attributes[name], value, "{name}");
    }
    let attempts: Vec<_> = all
        .iter()
        .filter(|span| span.parent == server_span.id)
        .collect();
    assert_eq!(attempts.len(), 2, "{attempts:#?}");
    for (attempt, backend, is_error, why) in [
        (attempts[0], &bad, true, "load"),
        (attempts[1], &fine, false, "fail_over"),
    ] {
        assert_eq!(attempt.kind, 3);
        assert_eq!(attempt.trace, server_span.trace);
        assert_eq!(attempt.is_error, is_error);
        assert_eq!(
            attempt.attributes["llmlb.backend"],
            backend.address.to_string()
        );
        assert_eq!(attempt.attributes["llmlb.why"], why);
        assert_eq!(
            attempt.attributes["server.port"],
            backend.address.port().to_string()
        );
        assert!(attempt.start >= server_span.start && attempt.end >= attempt.start);
        // The backend's own spans belong to the attempt.
        let received = asked(backend);
        let last = received.last().unwrap();
        let expected = format!("00-{}-{}-01", attempt.trace, attempt.id);
        assert_eq!(last.head.header("traceparent"), Some(expected));
    }
}

#[test]
fn trace_that_is_not_sampled_is_forwarded_and_not_sent() {
    let sandbox = testkit::sandbox!();
    let (fine, receiver) = (good(), receiver());
    let url = receiver.url();
    let mut settings = UNPROBED.to_vec();
    settings.extend([
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*url),
        ("LLMLB_SERVICE_NAME", "llm-test"),
    ]);
    let server = serve(&sandbox, &[&fine], &settings);
    let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
    let fields = format!("traceparent: {parent}\r\n");
    assert_eq!(ask_with(&server, "a", &fields).status(), 200);
    assert_eq!(
        asked(&fine)[0].head.header("traceparent").as_deref(),
        Some(parent)
    );
    // A malformed trace begins a new one.
    assert_eq!(ask_with(&server, "b", "traceparent: x\r\n").status(), 200);
    assert_eq!(server.stop(), Some(0));
    let all = spans(&receiver);
    assert_eq!(all.len(), 2, "{all:#?}");
    assert_eq!(all[0].attributes["llmlb.request_id"], "b");
    assert_eq!(all[0].parent, "");
    assert_eq!(all[1].trace, all[0].trace);
}

#[test]
fn stalled_receiver_delays_no_request_and_no_drain() {
    let sandbox = testkit::sandbox!();
    let fine = good();
    let is_over = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&is_over);
    let receiver = testkit::backends::backend(move |_, _| {
        while !flag.load(Ordering::SeqCst) {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    });
    let url = receiver.url();
    let mut settings = UNPROBED.to_vec();
    settings.push(("LLMLB_OTLP_ENDPOINT", &*url));
    let server = serve(&sandbox, &[&fine], &settings);
    for _ in 0..3000 {
        assert_eq!(ask(&server, "a").status(), 200);
    }
    let status = server.status();
    assert!(
        status["traces"]["dropped"].as_u64().unwrap() > 0,
        "{status:#}"
    );
    assert_eq!(server.stop(), Some(0));
    is_over.store(true, Ordering::SeqCst);
}
