//! Records of requests that are retried at another backend or rejected by their backend.

use serde_json::{Value, json};

use crate::records;
use crate::requests::{CHAT, chat, post};
use crate::stream::{DONE, STOP, USAGE, WORD, streaming};
use testkit::{
    FakeLlm, Sandbox,
    backends::{UNPROBED, backend, close, count, serve, served_by},
    until, wire,
};

fn closing_backend() -> FakeLlm {
    backend(|_, stream| close(stream))
}

fn rejecting_backend(status: u16) -> FakeLlm {
    backend(move |_, stream| wire::json(stream, status, r#"{"error":{"message":"no"}}"#))
}

/// Sends requests until one was tried at the bad backend and retried at the good one. Returns the
/// record of that request.
fn failed_over(sandbox: &Sandbox, bad: &FakeLlm, good: &FakeLlm) -> Value {
    let server = serve(sandbox, &[bad, good], UNPROBED);
    let mut requests = 0;
    until("the bad backend is tried", || {
        requests += 1;
        let answer = post(
            &server,
            &format!("r-{requests}"),
            CHAT,
            &chat("Hello", true),
        );
        assert_eq!(answer.text(), [WORD, STOP, DONE].concat());
        assert_eq!(served_by(&answer), good.address.to_string());
        count(bad) > 0
    });
    assert_eq!(records::all(sandbox).len(), requests);
    records::one(sandbox, &format!("r-{requests}"))
}

#[test]
fn retried_request_has_one_record_with_both_backends() {
    for (bad, error) in [
        (closing_backend(), None),
        (rejecting_backend(503), Some("503")),
        (rejecting_backend(500), Some("500")),
    ] {
        let sandbox = testkit::sandbox!();
        let good = streaming(&[WORD, STOP, USAGE, DONE]);
        let record = failed_over(&sandbox, &bad, &good);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["status"], 200, "{record:#}");
        assert_eq!(record["tokens"], 12, "{record:#}");
        assert_eq!(record["backend"], good.address.to_string());
        let attempts = record["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "{record:#}");
        assert_eq!(attempts[0]["backend"], bad.address.to_string());
        let recorded = attempts[0]["error"].as_str().unwrap();
        assert!(!recorded.is_empty(), "{record:#}");
        assert!(error.is_none_or(|error| recorded == error), "{record:#}");
    }
}

#[test]
fn request_that_fails_at_every_backend_has_one_record_with_all_attempts() {
    let sandbox = testkit::sandbox!();
    let backends = [closing_backend(), closing_backend(), closing_backend()];
    let [a, b, c] = &backends;
    let server = serve(&sandbox, &[a, b, c], UNPROBED);
    let answer = post(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.status(), 502, "{answer:?}");
    let record = records::one(&sandbox, "a");
    assert_eq!(record["outcome"], "failed", "{record:#}");
    assert_eq!(record["status"], 502, "{record:#}");
    assert_eq!(record["backend"], Value::Null, "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    let attempts = record["attempts"].as_array().unwrap();
    let mut tried: Vec<_> = attempts
        .iter()
        .map(|attempt| attempt["backend"].as_str().unwrap())
        .collect();
    tried.sort_unstable();
    let mut all = backends
        .each_ref()
        .map(|backend| backend.address.to_string());
    all.sort();
    assert_eq!(tried, all);
}

/// A backend whose error response reached the client is the record's backend. Listing it as a
/// failed attempt too would count it twice.
#[test]
fn forwarded_error_response_is_not_listed_as_a_failed_attempt() {
    for (status, others) in [(503, 0), (503, 1), (500, 0), (500, 1)] {
        let sandbox = testkit::sandbox!();
        let backends: Vec<_> = (0..=others).map(|_| rejecting_backend(status)).collect();
        let server = serve(&sandbox, &backends.iter().collect::<Vec<_>>(), UNPROBED);
        let answer = post(&server, "a", CHAT, &chat("Hello", false));
        assert_eq!(answer.status(), status, "{answer:?}");
        let record = records::one(&sandbox, "a");
        assert_eq!(record["status"], status, "{record:#}");
        assert_eq!(record["backend"], served_by(&answer), "{record:#}");
        let attempts = record["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), others, "{record:#}");
        let is_other = |attempt: &Value| attempt["backend"] != record["backend"];
        assert!(attempts.iter().all(is_other), "{record:#}");
    }
}

#[test]
fn request_rejected_by_the_backend_is_recorded_with_its_status_and_no_tokens() {
    for status in [400, 401, 404, 422, 429, 500, 501] {
        for is_stream in [false, true] {
            let sandbox = testkit::sandbox!();
            let mock = rejecting_backend(status);
            let server = serve(&sandbox, &[&mock], UNPROBED);
            let answer = post(&server, "a", CHAT, &chat("Hello", is_stream));
            assert_eq!(answer.status(), status);
            assert_eq!(answer.json(), json!({ "error": { "message": "no" } }));
            assert_eq!(records::all(&sandbox).len(), 1);
            let record = records::one(&sandbox, "a");
            assert_eq!(record["status"], status, "{record:#}");
            assert_eq!(record["outcome"], "complete", "{record:#}");
            assert_eq!(record["backend"], mock.address.to_string(), "{record:#}");
            assert_eq!(record["tokens"], 0, "{record:#}");
            assert_eq!(record["tokens_from"], "none", "{record:#}");
        }
    }
}

#[test]
fn rejection_of_our_own_key_is_recorded_as_a_failed_attempt() {
    let sandbox = testkit::sandbox!();
    let mock = rejecting_backend(401);
    let file = format!(
        "[[backend]]\nname = \"cloud\"\nurl = \"{}\"\napi_key_env = \"CLOUD_KEY\"\n",
        mock.url()
    );
    std::fs::write(sandbox.path("llmlb.toml"), file).unwrap();
    let mut command = sandbox.command("serve -p 0");
    let server = sandbox.serve_with(command.env("CLOUD_KEY", "sk-1"));
    let answer = post(&server, "a", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 502, "{answer:?}");
    let record = records::one(&sandbox, "a");
    assert_eq!(record["status"], 502, "{record:#}");
    assert_eq!(record["outcome"], "failed", "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    let attempts = record["attempts"].as_array().unwrap();
    assert_eq!(attempts.len(), 1, "{record:#}");
    assert_eq!(attempts[0]["backend"], "cloud", "{record:#}");
    assert_eq!(attempts[0]["error"], "401", "{record:#}");
}
