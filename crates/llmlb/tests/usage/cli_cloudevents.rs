//! `deliver --format cloudevents`, the format of OpenMeter's `/api/v1/events`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::UsageSandbox;
use testkit::{Finished, Received, Reply, UsageReceiver};

/// Checks a batch by the rules of OpenMeter's API: no field is empty, `time` is RFC 3339, `data` is an
/// object.
fn validate(request: &Received) -> Result<(), String> {
    if request.head.field("content-type") != Some("application/cloudevents-batch+json") {
        return Err(format!("invalid content type: {:?}", request.head));
    }
    let body = request.json();
    let events = body.as_array().ok_or("no list of events")?;
    for event in events {
        let text = |name: &str| match event[name].as_str() {
            Some(text) if !text.is_empty() => Ok(text),
            _ => Err(format!("no {name}: {event}")),
        };
        if text("specversion")? != "1.0" || text("datacontenttype")? != "application/json" {
            return Err(format!("unknown version: {event}"));
        }
        for name in ["id", "source", "type", "subject"] {
            text(name)?;
        }
        let time = text("time")?;
        if time.len() < 20 || &time[10..11] != "T" || !time.ends_with('Z') {
            return Err(format!("no time: {event}"));
        }
        if !event["data"].is_object() {
            return Err(format!("no data: {event}"));
        }
    }
    Ok(())
}

fn openmeter() -> UsageReceiver {
    UsageReceiver::judging(|request| match validate(request) {
        Ok(()) => Reply::response(204, &[], ""),
        Err(problem) => Reply::response(400, &[], problem),
    })
}

fn deliver(sandbox: &UsageSandbox, url: &str) -> Finished {
    sandbox.usage(&["deliver", "--to", url, "--format", "cloudevents"])
}

fn events(requests: &[Arc<Received>]) -> Vec<Value> {
    let lists = requests.iter().map(|request| request.json());
    lists
        .flat_map(|list| list.as_array().unwrap().clone())
        .collect()
}

#[test]
fn every_record_is_delivered_as_an_event() {
    let (sandbox, receiver) = (UsageSandbox::new(), openmeter());
    let id = "01890a5d-ac96-774b-bcce-b302099a8057";
    let record = json!({
        "id": id, "time": "2026-11-16T05:00:00.5Z", "key": "acme", "model": "llama3",
        "prompt_tokens": 7, "completion_tokens": 35, "tokens": 42,
    });
    let lines = format!("{record}\n{{\"tokens\":1}}\n");
    assert_eq!(sandbox.usage_with(&["stage"], lines).code, Some(0));
    let ran = deliver(&sandbox, &receiver.url);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let requests = receiver.batches();
    assert_eq!(requests.len(), 1);
    assert_eq!(
        requests[0].head.field("idempotency-key").map(str::len),
        Some(64)
    );
    let events = events(&requests);
    assert_eq!(
        events[0],
        json!({
            "specversion": "1.0", "id": id, "source": "llmlb", "type": "llm.request",
            "subject": "acme", "time": "2026-11-16T05:00:00.5Z",
            "datacontenttype": "application/json", "data": record,
        })
    );
    assert_eq!(events[1]["subject"], "anonymous");
    assert_eq!(events[1]["id"], events[1]["data"]["id"]);
    assert_eq!(sandbox.books()["delivered"], 2);
}

#[test]
fn retry_has_the_same_bytes_and_key() {
    let sandbox = UsageSandbox::new();
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let receiver = UsageReceiver::judging(move |request| {
        validate(request).unwrap();
        if is_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            return Reply::response(500, &[], "");
        }
        Reply::response(204, &[], "")
    });
    sandbox.stage(3);
    let words = ["--max-wait", "1ms", "--format", "cloudevents"];
    let words = [&["deliver", "--to", &receiver.url], &words[..]].concat();
    assert_eq!(sandbox.usage(&words).code, Some(0));
    let requests = receiver.batches();
    assert_eq!(requests.len(), 2);
    assert_eq!(requests[0].body, requests[1].body);
    let key = |request: &Received| request.head.field("idempotency-key").map(str::to_owned);
    assert_eq!(key(&requests[0]), key(&requests[1]));
}

#[test]
fn unknown_format_is_a_usage_error_and_hints_repeat_the_format() {
    let sandbox = UsageSandbox::new();
    let ran = sandbox.usage(&["deliver", "--to", "https://a.example/", "--format", "xml"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.stderr.contains("allowed: json or cloudevents"),
        "{ran:?}"
    );
    let receiver = UsageReceiver::always(401);
    sandbox.stage(1);
    let ran = deliver(&sandbox, &receiver.url);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("--format cloudevents --now`"),
        "{ran:?}"
    );
}
