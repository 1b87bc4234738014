//! The header `x-llmlb-why`.

use testkit::{
    backends::{UNPROBED, asked, serve},
    until,
};

use crate::support::{ask, ask_with, failing, good};

#[test]
fn request_that_asks_gets_the_reason_and_the_backend_does_not_see_the_header() {
    let sandbox = testkit::sandbox!();
    let only = good();
    let server = serve(&sandbox, &[&only], UNPROBED);
    let why = |answer: testkit::Answer| answer.head.header("x-llmlb-why");
    let asked_for = ask_with(&server, "a", "x-llmlb-why: 1\r\n");
    let expected = "only_candidate; candidates=1; queue=0ms; attempts=1";
    assert_eq!(why(asked_for).as_deref(), Some(expected));
    assert_eq!(why(ask(&server, "b")), None);
    assert_eq!(why(ask_with(&server, "c", "x-llmlb-why: 0\r\n")), None);
    for request in asked(&only) {
        assert_eq!(request.head.header("x-llmlb-why"), None);
    }
    // The header is for llmlb, so its name is not among those that were dropped.
    assert_eq!(
        server.status()["dropped_headers"]["x-llmlb-why"],
        serde_json::Value::Null
    );
}

#[test]
fn setting_adds_the_reason_to_every_response() {
    let sandbox = testkit::sandbox!();
    let (bad, fine) = (failing(503), good());
    let mut settings = UNPROBED.to_vec();
    settings.push(("LLMLB_WHY_HEADER", "true"));
    let server = serve(&sandbox, &[&bad, &fine], &settings);
    let expected = "fail_over; candidates=2; queue=0ms; attempts=2";
    until("a request fails over", || {
        let answer = ask(&server, "a");
        let why = answer.head.header("x-llmlb-why").expect("the header");
        why == expected
    });
}

#[test]
fn refusal_has_the_reason_for_a_request_that_asks() {
    let sandbox = testkit::sandbox!();
    let backends = [failing(503), failing(503)];
    let [one, other] = &backends;
    let server = serve(&sandbox, &[one, other], UNPROBED);
    let answer = ask_with(&server, "a", "x-llmlb-why: 1\r\n");
    assert_eq!(answer.status(), 503);
    let why = answer.head.header("x-llmlb-why").expect("the header");
    assert!(why.ends_with("attempts=2"), "{why}");
    let unknown = server.post("/v1/chat/completions", r#"{"model":"absent"}"#);
    assert_eq!(unknown.head.header("x-llmlb-why"), None);
}
