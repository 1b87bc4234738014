//! Items 14a, 14b and 14o of docs/attacks.md: text from clients and backends in reports and in the
//! log.

use std::thread;
use std::time::Duration;

use serde_json::json;
use testkit::{FakeLlm, Http1, Reply, Request};

use crate::{Attack, Outcome, Target, verdict};

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "14a-control-characters-csv",
            "usage --csv prints control and bidirectional characters",
            |target| control_characters(target, "--csv"),
        ),
        Attack::fast(
            "14a-control-characters-json",
            "usage --json prints control and bidirectional characters",
            |target| control_characters(target, "--json"),
        ),
        Attack::fast(
            "14b-long-method-in-log",
            "a method of 60 kB reaches the log",
            long_method,
        ),
        Attack::fast(
            "14o-created-changes",
            "a changing `created` in a model list is logged as a change at every probe",
            created_changes,
        ),
    ]
}

/// Characters that a report must not print, because they control the operator's terminal or reorder
/// its text: ESC, BEL, DEL, CSI, and overrides of direction.
const DANGEROUS: &[char] = &[
    '\u{1b}', '\u{7}', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200f}',
];

/// A client sends a model name with dangerous characters, and the operator prints a usage report.
/// llmlb holds if the report shows the name without these characters.
fn control_characters(target: &Target, format: &str) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let model: String = DANGEROUS.iter().collect();
    let model = format!("evil-{model}-end");
    let body = json!({ "model": model, "messages": [] }).to_string();
    server.send(&Request::post("/v1/chat/completions", body))?;
    server.try_stop()?;
    let report = sandbox.try_run(&format!("usage {format}"))?;
    let text = report.stdout;
    let printed: Vec<_> = DANGEROUS
        .iter()
        .filter(|char| text.contains(**char))
        .map(|char| format!("U+{:04X}", u32::from(*char)))
        .collect();
    let is_there = text.contains("evil-");
    let evidence = if printed.is_empty() {
        format!("none printed; model in the report: {is_there}")
    } else {
        format!("printed: {}", printed.join(", "))
    };
    verdict(printed.is_empty() && is_there, evidence)
}

fn long_method(target: &Target) -> Outcome {
    const LONGEST: usize = 2000;
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let method = "A".repeat(60_000);
    let mut client = Http1::connect(server.address)?;
    // Ignore a write error: the server may respond and close the connection before it has read the
    // whole head.
    let _ = client.send(format!(
        "{method} /v1/x HTTP/1.1\r\nhost: localhost\r\n\r\n"
    ));
    let status = client.response().map_or(0, |response| response.status());
    // The attack reads the log after the server has stopped, since log lines may be written later
    // than the response.
    server.try_stop()?;
    let longest = server.log().lines().map(str::len).max().unwrap_or(0);
    let evidence = format!("client got {status}, longest line of the log {longest} bytes");
    verdict(longest <= LONGEST, evidence)
}

/// The backend changes `created` in every model list, as llama.cpp does, which reports the time of
/// the response. llmlb holds if it does not log each probe as a change of the models.
fn created_changes(target: &Target) -> Outcome {
    const PROBES: usize = 6;
    let llm = FakeLlm::builder(&[])
        .models_reply({
            let count = std::sync::atomic::AtomicUsize::new(0);
            move |_| {
                let created = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                let list = json!({ "data": [{ "id": "m", "created": created }] });
                Reply::json(200, list.to_string())
            }
        })
        .start(|_| Reply::json(200, "{}"))?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("upstream.probe_interval", "\"100ms\"")
        .start()?;
    testkit::try_eventually("the backend was probed", || {
        (llm.probes().len() > PROBES).then_some(())
    })?;
    thread::sleep(Duration::from_millis(100));
    let changes = server.log().matches("now serves").count();
    let probes = llm.probes().len();
    let evidence = format!("{changes} changes logged after {probes} probes of one model");
    verdict(changes == 0, evidence)
}
