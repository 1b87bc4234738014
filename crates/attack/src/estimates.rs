//! Item 11 of docs/attacks.md: estimates that a client can lower, and usage reports that count as 0 tokens.

use std::error::Error;

use serde_json::{Value, json};
use testkit::{FakeLlm, Reply, Request};

use crate::{Attack, Outcome, Target, rejected, verdict};

const CHAT: &str = "/v1/chat/completions";
/// Length of the prompt in characters: about 27,000 tokens.
const LONG: usize = 108_000;

pub(crate) fn attacks() -> Vec<Attack> {
    let mut attacks = Vec::new();
    let chat = || json!({ "messages": [{ "role": "user", "content": prose() }] });
    let responses = || json!({ "input": prose() });
    let completions = || json!({ "prompt": prose() });
    let messages = || {
        json!({
            "system": prose(),
            "messages": [{ "role": "user", "content": "hi" }],
            "max_tokens": 9,
        })
    };
    let mut add = |name: &str, path: &'static str, body: fn() -> Value, ignored: &'static str| {
        attacks.push(Attack::fast(
            format!("11-estimate-{name}"),
            "a field that the endpoint ignores replaces the estimate of the prompt",
            move |target| chosen(target, path, &body(), ignored),
        ));
    };
    add("chat-prompt", CHAT, chat, r#""prompt":"x""#);
    add("chat-input", CHAT, chat, r#""input":"""#);
    add(
        "responses-messages",
        "/v1/responses",
        responses,
        r#""messages":[]"#,
    );
    add(
        "responses-prompt",
        "/v1/responses",
        responses,
        r#""prompt":"x""#,
    );
    add(
        "completions-messages",
        "/v1/completions",
        completions,
        r#""messages":[]"#,
    );
    add(
        "embeddings-prompt",
        "/v1/embeddings",
        responses,
        r#""prompt":"x""#,
    );
    add(
        "messages-instructions",
        "/v1/messages",
        messages,
        r#""instructions":"""#,
    );
    for (name, usage) in [
        ("prompt-alone", r#"{"prompt_tokens":100}"#),
        ("completion-alone", r#"{"completion_tokens":50}"#),
        (
            "completion-float",
            r#"{"prompt_tokens":100,"completion_tokens":12.5}"#,
        ),
        (
            "prompt-float",
            r#"{"prompt_tokens":99.5,"completion_tokens":50}"#,
        ),
        (
            "completion-null",
            r#"{"prompt_tokens":100,"completion_tokens":null}"#,
        ),
        (
            "prompt-null",
            r#"{"prompt_tokens":null,"completion_tokens":50}"#,
        ),
        (
            "completion-negative",
            r#"{"prompt_tokens":100,"completion_tokens":-1}"#,
        ),
        (
            "completion-text",
            r#"{"prompt_tokens":100,"completion_tokens":"50"}"#,
        ),
    ] {
        attacks.push(Attack::fast(
            format!("11-usage-{name}"),
            "a partial or invalid usage report counts as 0 reported tokens",
            move |target| partial(target, usage),
        ));
    }
    attacks
}

/// Returns a prompt of [`LONG`] characters that consists of ordinary words.
fn prose() -> String {
    "some words ".repeat(LONG / 11)
}

/// Sends a request for which the backend reports no usage. Returns the status, and the recorded prompt
/// tokens.
fn recorded_prompt(target: &Target, path: &str, body: &str) -> Result<(u16, u64), Box<dyn Error>> {
    let llm = FakeLlm::start("m", |_| {
        Reply::json(200, r#"{"choices":[{"message":{"content":"ok"}}]}"#)
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let status = server.send(&Request::post(path, body))?.status();
    let record = sandbox.records()?.pop().unwrap_or_default();
    Ok((status, record["prompt_tokens"].as_u64().unwrap_or(0)))
}

/// Sends the same prompt without and with a field that the endpoint ignores. llmlb holds if the
/// field does not lower the estimate, since clients could otherwise reduce what they are billed
/// for.
fn chosen(target: &Target, path: &str, body: &Value, ignored: &str) -> Outcome {
    let mut body = body.clone();
    body["model"] = "m".into();
    let honest = body.to_string();
    let (status, honest_tokens) = recorded_prompt(target, path, &honest)?;
    if status != 200 {
        return Err(format!("{path} responded {status}").into());
    }
    let open = honest.strip_suffix('}').unwrap_or(&honest);
    let forged = format!("{open},{ignored}}}");
    match recorded_prompt(target, path, &forged)? {
        (200, tokens) => {
            let evidence = format!("{honest_tokens} prompt tokens, {tokens} with {ignored}");
            verdict(tokens > 0 && tokens >= honest_tokens, evidence)
        }
        (status, _) => rejected(status),
    }
}

fn partial(target: &Target, usage: &str) -> Outcome {
    let body = format!(
        r#"{{"choices":[{{"index":0,"message":{{"role":"assistant","content":"one two three four"}},"finish_reason":"stop"}}],"usage":{usage}}}"#
    );
    let llm = FakeLlm::start("m", move |_| Reply::json(200, &body))?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    server.send(&Request::chat("m", "five six seven eight"))?;
    let record = sandbox.records()?.pop().unwrap_or_default();
    let number = |name: &str| record[name].as_u64().unwrap_or(0);
    let (prompt, completion) = (number("prompt_tokens"), number("completion_tokens"));
    let source = record["tokens_from"].as_str().unwrap_or("nothing");
    let evidence = format!("{usage} recorded as {prompt} + {completion} {source}");
    let holds = source == "estimated" && prompt > 0 && completion > 0;
    verdict(holds, evidence)
}
