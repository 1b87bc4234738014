//! Requests that are tried elsewhere, and backends that say no.

use serde_json::{Value, json};

use crate::ask::{CHAT, ask, chat};
use crate::records;
use crate::stream::{DONE, STOP, USAGE, WORD, streaming};
use testkit::{
    FakeLlm, Sandbox,
    backends::{UNPROBED, backend, close, count, serve, served_by},
    until, wire,
};

fn hanging_up() -> FakeLlm {
    backend(|_, stream| close(stream))
}

fn saying(status: u16) -> FakeLlm {
    backend(move |_, stream| wire::json(stream, status, r#"{"error":{"message":"no"}}"#))
}

/// Asks until the bad one was tried: the record of that request.
fn failed_over(place: &Sandbox, bad: &FakeLlm, good: &FakeLlm) -> Value {
    let server = serve(place, &[bad, good], UNPROBED);
    let mut asked = 0;
    until("the bad one is tried", || {
        asked += 1;
        let answer = ask(&server, &format!("r-{asked}"), CHAT, &chat("Hello", true));
        assert_eq!(answer.text(), [WORD, STOP, DONE].concat());
        assert_eq!(served_by(&answer), good.address.to_string());
        count(bad) > 0
    });
    assert_eq!(records::all(place).len(), asked);
    records::one(place, &format!("r-{asked}"))
}

#[test]
fn a_request_that_is_tried_elsewhere_is_one_record_with_both() {
    for (bad, error) in [
        (hanging_up(), None),
        (saying(503), Some("503")),
        (saying(500), Some("500")),
    ] {
        let place = testkit::sandbox!();
        let good = streaming(&[WORD, STOP, USAGE, DONE]);
        let record = failed_over(&place, &bad, &good);
        assert_eq!(record["outcome"], "complete", "{record:#}");
        assert_eq!(record["status"], 200, "{record:#}");
        assert_eq!(record["tokens"], 12, "{record:#}");
        assert_eq!(record["backend"], good.address.to_string());
        let attempts = record["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 1, "{record:#}");
        assert_eq!(attempts[0]["backend"], bad.address.to_string());
        let told = attempts[0]["error"].as_str().unwrap();
        assert!(!told.is_empty(), "{record:#}");
        assert!(error.is_none_or(|error| told == error), "{record:#}");
    }
}

#[test]
fn a_request_that_nobody_answers_is_one_record_with_all_who_were_tried() {
    let place = testkit::sandbox!();
    let backends = [hanging_up(), hanging_up(), hanging_up()];
    let [a, b, c] = &backends;
    let server = serve(&place, &[a, b, c], UNPROBED);
    let answer = ask(&server, "a", CHAT, &chat("Hello", true));
    assert_eq!(answer.status(), 502, "{answer:?}");
    let record = records::one(&place, "a");
    assert_eq!(record["outcome"], "failed", "{record:#}");
    assert_eq!(record["status"], 502, "{record:#}");
    assert_eq!(record["backend"], Value::Null, "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    let attempts = record["attempts"].as_array().unwrap();
    let mut tried: Vec<_> = attempts
        .iter()
        .map(|one| one["backend"].as_str().unwrap())
        .collect();
    tried.sort_unstable();
    let mut all = backends.each_ref().map(|one| one.address.to_string());
    all.sort();
    assert_eq!(tried, all);
}

/// Whose answer the client has was not tried in vain.
#[test]
fn an_answer_that_nobody_betters_is_no_attempt() {
    for (status, others) in [(503, 0), (503, 1), (500, 0), (500, 1)] {
        let place = testkit::sandbox!();
        let backends: Vec<_> = (0..=others).map(|_| saying(status)).collect();
        let server = serve(&place, &backends.iter().collect::<Vec<_>>(), UNPROBED);
        let answer = ask(&server, "a", CHAT, &chat("Hello", false));
        assert_eq!(answer.status(), status, "{answer:?}");
        let record = records::one(&place, "a");
        assert_eq!(record["status"], status, "{record:#}");
        assert_eq!(record["backend"], served_by(&answer), "{record:#}");
        let attempts = record["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), others, "{record:#}");
        let is_other = |one: &Value| one["backend"] != record["backend"];
        assert!(attempts.iter().all(is_other), "{record:#}");
    }
}

#[test]
fn what_a_backend_refuses_is_recorded_with_its_status_and_no_tokens() {
    for status in [400, 401, 404, 422, 429, 500, 501] {
        for is_stream in [false, true] {
            let place = testkit::sandbox!();
            let mock = saying(status);
            let server = serve(&place, &[&mock], UNPROBED);
            let answer = ask(&server, "a", CHAT, &chat("Hello", is_stream));
            assert_eq!(answer.status(), status);
            assert_eq!(answer.json(), json!({ "error": { "message": "no" } }));
            assert_eq!(records::all(&place).len(), 1);
            let record = records::one(&place, "a");
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
    let place = testkit::sandbox!();
    let mock = saying(401);
    let file = format!(
        "[[backend]]\nname = \"cloud\"\nurl = \"{}\"\napi_key_env = \"CLOUD_KEY\"\n",
        mock.url()
    );
    std::fs::write(place.path("llmlb.toml"), file).unwrap();
    let mut command = place.command("serve -p 0");
    let server = place.serve_with(command.env("CLOUD_KEY", "sk-1"));
    let answer = ask(&server, "a", CHAT, &chat("Hello", false));
    assert_eq!(answer.status(), 502, "{answer:?}");
    let record = records::one(&place, "a");
    assert_eq!(record["status"], 502, "{record:#}");
    assert_eq!(record["outcome"], "failed", "{record:#}");
    assert_eq!(record["tokens"], 0, "{record:#}");
    let attempts = json!([{ "backend": "cloud", "error": "401" }]);
    assert_eq!(record["attempts"], attempts, "{record:#}");
}
