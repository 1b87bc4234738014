//! What it costs to look at a request or an answer on its way, in nanoseconds.
//!
//! The product keeps these parts to itself, so they are compiled here from its sources.

#![expect(dead_code, unused_imports, reason = "only parts of it are measured")]

#[path = "../../../crates/llmlb/src/meter/mod.rs"]
mod meter;
#[path = "../../../crates/llmlb/src/body_edit.rs"]
mod body_edit;
#[path = "../../../crates/llmlb/src/endpoint/mod.rs"]
mod endpoint;
#[path = "../../../crates/llmlb/src/json/mod.rs"]
mod json;

use std::hint::black_box;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, StatusCode, header};
use endpoint::Api;
use meter::record::{Attempt, Outcome, Record};
use meter::usage_option::{Asking, Places};
use meter::usage::{Source, Usage};
use meter::watch::Watch;
use serde::de::IgnoredAny;

/// `meter-bench [PART]`: all parts, or this one.
fn main() {
    let wanted = std::env::args().nth(1);
    for (name, part) in [
        ("requests", requests as fn()),
        ("prompts", prompts),
        ("options", options),
        ("streams", streams),
        ("answers", answers),
        ("records", records),
    ] {
        if wanted.as_deref().is_none_or(|wanted| wanted == name) {
            part();
        }
    }
}

/// Finding the fields of a request, against a parser that skips all values.
fn requests() {
    let wrap = |content: &str| {
        format!(
            r#"{{"model":"llama3","messages":[{{"role":"system","content":"Be brief."}},{{"role":"user","content":"{content}"}}],"stream":true,"max_tokens":100}}"#
        )
    };
    let prose = "The quick brown fox jumps over the lazy dog, and then it rests a while.\\n";
    let code = "fn main() {\\n    println!(\\\"{}\\\", \\\"hello\\\");\\n}\\n";
    let ids: Vec<_> = (0..11_000)
        .map(|id| (id * 7919 % 100_000).to_string())
        .collect();
    let ids = format!(r#"{{"model":"llama3","prompt":[{}]}}"#, ids.join(","));
    for (name, body) in [
        ("1 KiB of prose", wrap(&prose.repeat(14))),
        ("64 KiB without escapes", wrap(&"a ".repeat(32 * 1024))),
        ("64 KiB of prose", wrap(&prose.repeat(900))),
        ("64 KiB of code", wrap(&code.repeat(1250))),
        ("64 KiB of token ids", ids),
    ] {
        let body = body.as_bytes();
        let ours = measure(|| {
            let mut count = 0;
            let _ = json::fields(black_box(body), |_, value| count += value.len());
            black_box(count);
        });
        let parser = measure(|| {
            let _ = black_box(serde_json::from_slice::<IgnoredAny>(black_box(body)));
        });
        println!(
            "request, {name}: {ours:.0} ns; serde_json {parser:.0} ns ({:.1} x)",
            parser / ours
        );
    }
}

/// Estimating the tokens of a prompt.
fn prompts() {
    let wrap = |content: &str| format!(r#"[{{"role":"user","content":"{content}"}}]"#);
    let prose = "The quick brown fox jumps over the lazy dog, and then it rests a while.\\n";
    let code = "fn main() {\\n    println!(\\\"{}\\\", \\\"hello\\\");\\n}\\n";
    let turns = (0..30).map(|_| format!(r#"{{"role":"user","content":"{}"}}"#, prose.repeat(3)));
    for (name, messages) in [
        ("100 bytes", wrap(&"word ".repeat(14))),
        ("1 KiB of prose", wrap(&prose.repeat(14))),
        ("30 messages of 200 bytes", format!("[{}]", turns.collect::<Vec<_>>().join(","))),
        ("8 KiB of prose", wrap(&prose.repeat(112))),
        ("64 KiB without escapes", wrap(&"a ".repeat(32 * 1024))),
        ("64 KiB of prose", wrap(&prose.repeat(900))),
        ("64 KiB of code", wrap(&code.repeat(1250))),
        ("64 KiB of Chinese", wrap(&"中文文本，没有空格\\n".repeat(2260))),
        ("64 KiB of Chinese in escapes", wrap(&r"\u4e2d\u6587".repeat(5461))),
        ("64 KiB of token ids", format!("[{}]", vec!["12345"; 11_000].join(","))),
        ("1 MiB of prose", wrap(&prose.repeat(14_360))),
    ] {
        let took = measure(|| {
            black_box(meter::estimate::prompt(black_box(messages.as_bytes())));
        });
        let bytes = messages.len();
        println!("prompt, {name} ({bytes} bytes): {took:.0} ns");
    }
}

/// Asking for usage where the client did not.
fn options() {
    let body = format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}],"stream":true}}"#,
        "a ".repeat(512)
    );
    let took = measure(|| {
        let mut places = Places::default();
        let body = black_box(body.as_bytes());
        let _ = json::fields(body, |name, place| match name {
            b"stream" => places.stream = Some(place),
            b"stream_options" => places.stream_options = Some(place),
            _ => {}
        });
        if let Asking::Us(edit) = Asking::of(Api::Chat, body, &places) {
            black_box(meter::usage_option::apply(body, &mut [edit]));
        }
    });
    println!("request, 1 KiB, find its fields and add the option: {took:.0} ns");
}

/// Frames of a stream.
fn streams() {
    let word = r#"data: {"id":"chatcmpl-0123456789abcdef0123456789","object":"chat.completion.chunk","created":1794830400,"model":"llama3","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}"#;
    let words = |count: usize, more: &str| {
        let word = format!("{}{more}}}\n\n", &word[..word.len() - 1]);
        Bytes::from(word.repeat(count))
    };
    let burst = words(50, "");
    let cut = burst.len() - 100;
    let usage = r#","usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}"#;
    for is_hiding in [false, true] {
        let mut watch = watch(Api::Chat, "text/event-stream", is_hiding);
        for (name, frames) in [
            ("one event", vec![words(1, "")]),
            ("50 events", vec![burst.clone()]),
            (
                "50 events in two frames, cut within one",
                vec![burst.slice(..cut), burst.slice(cut..)],
            ),
            (
                "50 events with usage null",
                vec![words(50, ",\"usage\":null")],
            ),
            ("50 events with usage", vec![words(50, usage)]),
        ] {
            let took = measure(|| {
                for frame in &frames {
                    black_box(watch.pass(black_box(frame.clone())));
                }
            });
            let bytes: usize = frames.iter().map(Bytes::len).sum();
            println!("stream, {name} ({bytes} bytes), hiding {is_hiding}: {took:.0} ns");
        }
    }
}

/// Whole answers.
fn answers() {
    let answer = |text: &str| {
        Bytes::from(format!(
            r#"{{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1794830400,"model":"llama3","choices":[{{"index":0,"message":{{"role":"assistant","content":"{text}"}},"logprobs":null,"finish_reason":"stop"}}],"usage":{{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13,"prompt_tokens_details":{{"cached_tokens":0}}}}}}"#
        ))
    };
    let numbers: Vec<_> = (0..100_000).map(|n| format!("-0.0{n:07}")).collect();
    let vectors = Bytes::from(format!(
        r#"{{"object":"list","data":[{{"object":"embedding","embedding":[{}]}}],"model":"m","usage":{{"prompt_tokens":8,"total_tokens":8}}}}"#,
        numbers.join(",")
    ));
    for (name, api, answer) in [
        ("chat", Api::Chat, answer(&"word ".repeat(50))),
        ("chat", Api::Chat, answer(&"word ".repeat(13_000))),
        ("embeddings", Api::Embeddings, vectors),
    ] {
        let took = measure(|| {
            let mut watch = watch(api, "application/json", false);
            black_box(watch.pass(answer.clone()));
            watch.finish();
            assert_eq!(watch.usage(0, || 0).source, Source::Reported);
        });
        let parser = measure(|| {
            let _ = black_box(serde_json::from_slice::<IgnoredAny>(&answer));
        });
        println!(
            "answer, {name} ({} bytes): {took:.0} ns; serde_json, ignoring all, {parser:.0} ns",
            answer.len()
        );
    }
}

fn watch(api: Api, media: &'static str, is_hiding: bool) -> Watch {
    let mut headers = HeaderMap::new();
    let media = header::HeaderValue::from_static(media);
    headers.insert(header::CONTENT_TYPE, media);
    Watch::new(api, StatusCode::OK, &headers, is_hiding)
}

/// Writing a record.
fn records() {
    let record = Record {
        id: uuid::Uuid::now_v7(),
        time_ms: 1_794_830_400_250,
        request_id: "0123456789abcdef0123456789abcdef",
        key: Some("team-a"),
        model: Some("fast"),
        served_model: Some("llama3:8b"),
        backend: Some("gpu-1"),
        api: Api::Chat,
        path: "/v1/chat/completions",
        is_stream: true,
        status: Some(200),
        outcome: Outcome::Complete,
        attempts: &[Attempt {
            backend: "gpu-2",
            error: "connection refused",
        }],
        usage: Usage {
            prompt: 1234,
            completion: 456,
            cached: 1024,
            reasoning: 0,
            total: 1690,
            source: Source::Reported,
        },
        ms: 8400,
        first_byte_ms: Some(120),
        bytes: 51200,
    };
    let mut line = Vec::new();
    let took = measure(|| {
        black_box(&record).write(&mut line);
        black_box(&line);
    });
    println!("record of {} bytes: {took:.0} ns", line.len());
    let text = String::from_utf8(line).expect("it is text");
    let took = measure(|| {
        let _ = black_box(spool::Record::parse(black_box(&text)));
    });
    println!("the spool's check of it: {took:.0} ns");
}

/// Nanoseconds for one call: the best of many short rounds, since other work only adds to it.
fn measure(mut work: impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut calls = 0_u32;
    while begun.elapsed() < Duration::from_millis(2) {
        work();
        calls += 1;
    }
    (0..200)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..calls {
                work();
            }
            begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
        })
        .fold(f64::INFINITY, f64::min)
}
