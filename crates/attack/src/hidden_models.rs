//! Item 15 of docs/attacks.md: a client whose key allows one model sends requests in which another,
//! forbidden model is hidden.

use testkit::{FakeLlm, Request};

use crate::{Attack, Outcome, Target, verdict};

const CHAT: &str = "/v1/chat/completions";

/// Names of attacks, and for each a path and a body. The client's key allows only the model
/// `cheap`, so llmlb must reject each request with 403.
const REQUESTS: [(&str, &str, &str); 8] = [
    (
        "batch",
        "/v1/batches",
        r#"{"model":"cheap","input_file_id":"f"}"#,
    ),
    (
        "message-batch",
        "/v1/messages/batches",
        r#"{"model":"cheap","requests":[{"params":{"model":"dear"}}]}"#,
    ),
    (
        "eval-run",
        "/v1/evals/e/runs",
        r#"{"model":"cheap","data_source":{"model":"dear"}}"#,
    ),
    (
        "realtime-call",
        "/v1/realtime/calls",
        r#"{"model":"cheap","session":{"model":"dear"}}"#,
    ),
    (
        "models",
        CHAT,
        r#"{"model":"cheap","models":["dear"],"messages":[]}"#,
    ),
    (
        "fallbacks",
        CHAT,
        r#"{"model":"cheap","fallbacks":["dear"],"messages":[]}"#,
    ),
    (
        "tool",
        "/v1/responses",
        r#"{"model":"cheap","input":"x","tools":[{"type":"image_generation","model":"dear"}]}"#,
    ),
    ("cancel-path", "/v1/responses/cancel", ""),
];

pub(crate) fn attacks() -> Vec<Attack> {
    let attack = |(name, path, body): (&'static str, &'static str, &'static str)| {
        Attack::fast(
            format!("15-hidden-model-{name}"),
            "a key for one model is used for another one",
            move |target| hidden(target, path, body),
        )
    };
    REQUESTS.into_iter().map(attack).collect()
}

fn hidden(target: &Target, path: &str, body: &str) -> Outcome {
    let llm = FakeLlm::answering("cheap")?;
    let sandbox = target.sandbox()?;
    let added = sandbox.try_run("key add one --models cheap")?;
    let key = format!("Bearer {}", added.stdout.trim());
    let server = sandbox.server().backend(&llm.url()).start()?;
    let request = if body.is_empty() {
        // The body is labelled as text: a server that reads only JSON bodies would not find the
        // model in it.
        Request::new("POST", path)
            .field("content-type", "text/plain")
            .body(r#"{"model":"dear","input":"x"}"#)
    } else {
        Request::post(path, body)
    };
    let status = server.send(&request.field("authorization", &key))?.status();
    let reached = llm.requests().len();
    let evidence = format!("client got {status}, {reached} requests reached the backend");
    verdict(reached == 0 && status == 403, evidence)
}
