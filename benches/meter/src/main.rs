//! What it costs to look at a request or an answer on its way, in nanoseconds.
//!
//! The product keeps these parts to itself, so they are compiled here from its sources.

#![allow(dead_code, unreachable_pub, reason = "only parts of it are measured")]

#[path = "."]
mod request {
    #[path = "../../../crates/llmlb/src/request/scan/mod.rs"]
    pub(crate) mod scan;
}

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

fn main() {
    requests();
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
    let ids: Vec<String> = (0..11_000)
        .map(|id| (id * 7919 % 100_000).to_string())
        .collect();
    for (name, body) in [
        ("1 KiB of prose", wrap(&prose.repeat(14))),
        ("64 KiB without escapes", wrap(&"a ".repeat(32 * 1024))),
        ("64 KiB of prose", wrap(&prose.repeat(900))),
        ("64 KiB of code", wrap(&code.repeat(1250))),
        (
            "64 KiB of token ids",
            format!(r#"{{"model":"llama3","prompt":[{}]}}"#, ids.join(",")),
        ),
    ] {
        let ours = measure(|| {
            let mut count = 0;
            let _ =
                request::scan::fields(black_box(body.as_bytes()), |_, value| count += value.len());
            black_box(count);
        });
        let parser = measure(|| {
            let _ = black_box(serde_json::from_slice::<IgnoredAny>(black_box(
                body.as_bytes(),
            )));
        });
        println!(
            "request, {name}: {ours:.0} ns; serde_json {parser:.0} ns ({:.1} x)",
            parser / ours
        );
    }
}

/// Nanoseconds for one call: the best of several rounds, since other work only adds to it.
fn measure(mut work: impl FnMut()) -> f64 {
    let begun = Instant::now();
    let mut calls = 0_u32;
    while begun.elapsed() < Duration::from_millis(30) {
        work();
        calls += 1;
    }
    (0..7)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..calls {
                work();
            }
            begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls)
        })
        .fold(f64::INFINITY, f64::min)
}
