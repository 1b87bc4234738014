//! Items 2 and 11 of docs/attacks.md, beyond spellings: ways to be served without metering, or to disable the
//! metering of other clients.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use testkit::{FakeLlm, Reply, Request, chat_completion};

use crate::{Attack, Outcome, Target, rejected, verdict};

const CHAT: &str = "/v1/chat/completions";

pub(crate) fn attacks() -> Vec<Attack> {
    let mut attacks = vec![
        Attack::fast(
            "2-websocket-responses",
            "requests to models pass unmetered through a WebSocket on /v1/responses",
            websocket,
        ),
        Attack::fast(
            "2-client-secret",
            "a client gets a credential of the operator's account, and can bypass llmlb",
            client_secret,
        ),
        Attack::fast(
            "11-binary-embeddings",
            "a response that is not JSON counts as 0 tokens",
            binary_embeddings,
        ),
        Attack::fast(
            "11-echoed-stream-options",
            "an error that repeats the client's text disables usage reports for all clients",
            echoed_option,
        ),
        Attack::fast(
            "9-missing-response-id",
            "a 404 about a stored response marks its endpoint as missing",
            missing_id,
        ),
    ];
    for (name, options) in [
        ("in-capitals", r#"{"INCLUDE_USAGE":false}"#),
        ("twice", r#"{"include_usage":true,"include_usage":false}"#),
        (
            "twice-in-two-cases",
            r#"{"include_usage":true,"Include_Usage":false}"#,
        ),
    ] {
        attacks.push(Attack::fast(
            format!("11-include-usage-{name}"),
            "a client keeps a backend that ignores case from reporting usage",
            move |target| suppressed(target, options),
        ));
    }
    attacks
}

fn stream(reports_usage: bool) -> Reply {
    let word = r#"{"choices":[{"index":0,"delta":{"content":"ok"},"finish_reason":"stop"}]}"#;
    let mut reply = Reply::stream().event(word);
    if reports_usage {
        let usage = r#"{"choices":[],"usage":{"prompt_tokens":9000,"completion_tokens":5000}}"#;
        reply = reply.event(usage);
    }
    reply.event("[DONE]").end()
}

fn websocket(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let upgrade = Request::get("/v1/responses")
        .field("connection", "upgrade")
        .field("upgrade", "websocket")
        .field("sec-websocket-version", "13")
        .field("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let status = server.send(&upgrade)?.status();
    let reached = llm.requests().len();
    let evidence = format!("{reached} handshakes reached the backend, client got {status}");
    verdict(reached == 0 && status == 426, evidence)
}

fn client_secret(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |_| Reply::json(200, r#"{"value":"ek_secret"}"#))?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .variable("OPERATORS_KEY", "sk-operator")
        .backend_with(&llm.url(), "api_key_env = \"OPERATORS_KEY\"")
        .start()?;
    for path in ["/v1/realtime/client_secrets", "/v1/realtime/sessions"] {
        let response = server.send(&Request::post(path, "{}"))?;
        if response.text().contains("ek_secret") {
            return verdict(false, format!("{path} issued a credential"));
        }
    }
    verdict(true, "no credential was issued".to_owned())
}

fn binary_embeddings(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |_| {
        Reply::response(200, &[("content-type", "application/octet-stream")], "abcd")
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let body = format!(
        r#"{{"model":"m","encoding_format":"bytes","input":"{}"}}"#,
        "some words ".repeat(400)
    );
    let status = server
        .send(&Request::post("/v1/embeddings", body))?
        .status();
    let record = sandbox.records()?.pop().unwrap_or_default();
    let tokens = record["prompt_tokens"].as_u64().unwrap_or(0);
    verdict(
        status == 200 && tokens > 400,
        format!("{tokens} prompt tokens recorded for 800 words"),
    )
}

/// The backend's first response is an error that contains `stream_options` only because it repeats
/// a URL of the attacker's prompt. llmlb must not conclude that the backend rejects that option: it
/// would stop requesting usage, and the victim's record would lack the reported tokens.
fn echoed_option(target: &Target) -> Outcome {
    let count = AtomicUsize::new(0);
    let llm = FakeLlm::start("m", move |request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let is_first = count.fetch_add(1, Ordering::SeqCst) == 0;
        if is_first && body.contains("evil") {
            let error = r#"{"error":{"message":"Timeout while downloading https://evil/stream_options.png"}}"#;
            return Reply::json(400, error);
        }
        let includes_usage = serde_json::from_str::<Value>(&body)
            .is_ok_and(|body| body["stream_options"]["include_usage"] == true);
        stream(includes_usage)
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let evil = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://evil/stream_options.png"}}]}]}"#;
    server.send(&Request::post(CHAT, evil))?;
    let victim = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    let response = server.send(&Request::post(CHAT, victim).field("x-request-id", "victim"))?;
    let record = sandbox.record_of("victim")?.unwrap_or_default();
    let evidence = format!("{} tokens, {}", record["tokens"], record["tokens_from"]);
    verdict(
        response.status() == 200 && record["tokens"] == 14_000,
        evidence,
    )
}

/// The fake backend finds `include_usage` as Go's JSON parser does: it ignores the case of field
/// names and uses the last of several equal names. llmlb holds if the record has all tokens: a
/// client must not be able to disable usage reports by such names.
fn suppressed(target: &Target, options: &str) -> Outcome {
    let llm = FakeLlm::start("m", |request| {
        let body = String::from_utf8_lossy(&request.body).to_lowercase();
        let last = body.rsplit("\"include_usage\":").next().unwrap_or_default();
        stream(last.starts_with("true"))
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let body = format!(r#"{{"model":"m","stream":true,"messages":[],"stream_options":{options}}}"#);
    let status = server.send(&Request::post(CHAT, body))?.status();
    if status != 200 {
        return rejected(status);
    }
    let record = sandbox.records()?.pop().unwrap_or_default();
    let evidence = format!("{} of 14000 tokens recorded", record["tokens"]);
    verdict(record["tokens"] == 14_000, evidence)
}

fn missing_id(target: &Target) -> Outcome {
    let answer = |request: &testkit::Received| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        if body.contains("previous_response_id") {
            let error = r#"{"error":{"message":"Response with id resp_x not found."}}"#;
            Reply::json(404, error)
        } else {
            Reply::json(200, chat_completion("ok", 1, 1))
        }
    };
    let (one, two) = (FakeLlm::start("m", answer)?, FakeLlm::start("m", answer)?);
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&one.url())
        .backend(&two.url())
        .start()?;
    for number in 0..6 {
        let body = format!(r#"{{"model":"m","input":"{number}","previous_response_id":"resp_x"}}"#);
        server.send(&Request::post("/v1/responses", body))?;
    }
    let before = (one.requests().len(), two.requests().len());
    for number in 0..40 {
        let body = format!(r#"{{"model":"m","input":"number {number}"}}"#);
        server.send(&Request::post("/v1/responses", body))?;
    }
    let shares = (
        one.requests().len() - before.0,
        two.requests().len() - before.1,
    );
    let evidence = format!(
        "shares of the backends afterwards: {} and {}",
        shares.0, shares.1
    );
    verdict(shares.0 > 0 && shares.1 > 0, evidence)
}
