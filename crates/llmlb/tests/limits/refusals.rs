//! Refusals and the fields of responses, in the formats that official clients expect.

use serde_json::json;
use testkit::{FakeLlm, Reply, Request, chat_completion};

use crate::world::{SECRET, World, authorized, chat, limits, send};

#[test]
fn refusal_has_the_format_and_the_fields_of_openai() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let server = World::new(&sandbox, &[&backend], "rpm = 1\ntpm = 5000").start();
    let first = send(&server, &chat(r#","max_tokens":50"#));
    assert_eq!(first.status(), 200);
    let field = |name: &str| first.head.header(name).unwrap_or_default();
    assert_eq!(field("x-ratelimit-limit-requests"), "1");
    assert_eq!(field("x-ratelimit-remaining-requests"), "0");
    assert!(field("x-ratelimit-reset-requests").ends_with('s'));
    assert_eq!(field("x-ratelimit-limit-tokens"), "5000");
    let remaining: u64 = field("x-ratelimit-remaining-tokens").parse().unwrap();
    assert!((4800..4950).contains(&remaining), "{remaining}");
    let second = send(&server, &chat(r#","max_tokens":50"#));
    assert_eq!(second.status(), 429);
    let error = &second.json()["error"];
    assert_eq!(error["type"], "requests");
    assert_eq!(error["code"], "rate_limit_exceeded");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("Limit 1, Used 1, Requested 1"),
        "{message}"
    );
    let field = |name: &str| second.head.header(name).unwrap_or_default();
    let seconds: u64 = field("retry-after").parse().unwrap();
    let millis: u64 = field("retry-after-ms").parse().unwrap();
    assert_eq!(seconds, millis.div_ceil(1000), "seconds are rounded up");
    assert!((1..=61).contains(&seconds), "{seconds}");
    assert_eq!(field("x-ratelimit-remaining-requests"), "0");
    assert_eq!(field("x-should-retry"), "");
    // Responses to other requests with this key must have the rate limit fields too, so that
    // clients can slow down in time.
    let models = send(&server, &authorized(Request::get("/v1/models")));
    assert_eq!(
        models.head.header("x-ratelimit-limit-requests").as_deref(),
        Some("1")
    );
}

#[test]
fn messages_have_the_format_and_the_fields_of_anthropic() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::start("m", |_| Reply::json(200, chat_completion("ok", 1, 1))).unwrap();
    let server = World::new(&sandbox, &[&backend], "rpm = 1").start();
    let body = r#"{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}"#;
    let request = Request::post("/v1/messages", body).field("x-api-key", SECRET);
    let first = send(&server, &request);
    assert_eq!(first.status(), 200);
    let field = |name: &str| first.head.header(name);
    assert_eq!(
        field("anthropic-ratelimit-requests-limit").as_deref(),
        Some("1")
    );
    assert_eq!(
        field("anthropic-ratelimit-requests-remaining").as_deref(),
        Some("0")
    );
    let reset = field("anthropic-ratelimit-requests-reset").unwrap();
    assert!(reset.starts_with("20") && reset.ends_with('Z'), "{reset}");
    let second = send(&server, &request);
    assert_eq!(second.status(), 429);
    assert_eq!(second.json()["type"], "error");
    assert_eq!(second.json()["error"]["type"], "rate_limit_error");
    assert!(second.head.header("retry-after").is_some());
}

#[test]
fn request_that_could_exceed_the_tokens_per_minute_is_refused() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let server = World::new(&sandbox, &[&backend], "tpm = 1000").start();
    // The maximum output is reserved for each of the `n` choices. Both requests could therefore
    // exceed 1000 tokens and must be refused.
    for fields in [r#","max_tokens":1000"#, r#","max_tokens":300,"n":4"#] {
        let refused = send(&server, &chat(fields));
        assert_eq!(refused.status(), 429);
        let error = &refused.json()["error"];
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("tokens"), &json!("rate_limit_exceeded"))
        );
        assert_eq!(
            refused.head.header("x-should-retry").as_deref(),
            Some("false")
        );
        assert_eq!(
            refused.head.header("retry-after"),
            None,
            "no wait would help"
        );
    }
    assert_eq!(send(&server, &chat(r#","max_tokens":300"#)).status(), 200);
    // Metering replaced the reserved tokens by the 150 that were used. A reservation that stays
    // would refuse later requests without reason.
    assert_eq!(limits(&server)["tokens_per_minute"]["used"], 150);
    let refused = send(&server, &chat(r#","max_tokens":900"#));
    assert_eq!(refused.status(), 429);
    assert!(refused.head.header("retry-after").is_some());
}

#[test]
fn key_without_limits_has_no_fields() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let server = World::new(&sandbox, &[&backend], "").start();
    let answer = send(&server, &chat(""));
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.head.header("x-ratelimit-limit-requests"), None);
    // Spend is counted without a budget as well, so that a budget that is added later starts with
    // the right sum.
    assert_eq!(limits(&server)["spent"]["day"], 150);
}
