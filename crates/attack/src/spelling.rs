//! Item 2 of docs/attacks.md: inference that is not metered, because the path is spelled so that only the
//! backend recognizes the endpoint.

use std::io;

use testkit::{FakeLlm, Http2, Reply, Request, chat_completion, is_reached};

use crate::{Attack, Outcome, Target, rejected, verdict};

/// Number of prompt tokens that the backend reports for every request.
const PROMPT: u64 = 100;
/// Number of completion tokens that the backend reports for every request.
const COMPLETION: u64 = 50;

/// Names and targets of requests that some backend serves as a chat completion. Flask, nginx, uvicorn, gin
/// and Express decode escapes, merge slashes, ignore case or remove parameters.
const SPELLINGS: &[(&str, &str)] = &[
    ("percent-2f", "/v1/chat%2Fcompletions"),
    ("percent-2f-lower-case", "/v1/chat%2fcompletions"),
    ("double-slash-in-front", "/v1//chat/completions"),
    ("double-slash-between", "/v1/chat//completions"),
    ("double-slash-before-v1", "//v1/chat/completions"),
    ("double-slash-behind", "/v1/chat/completions//"),
    ("trailing-slash", "/v1/chat/completions/"),
    ("upper-case", "/v1/Chat/Completions"),
    ("upper-case-v1", "/V1/chat/completions"),
    ("parameter", "/v1/chat/completions;x=1"),
    ("parameter-between", "/v1/chat;x=1/completions"),
    ("parameter-escaped", "/v1/chat/completions%3Bx=1"),
    ("trailing-percent-2f", "/v1/chat/completions%2F"),
    ("trailing-percent-2f-lower-case", "/v1/chat/completions%2f"),
    ("escaped-letter", "/v1/chat/completion%73"),
    ("escaped-letter-of-v1", "/%761/chat/completions"),
    ("double-escaped-slash", "/v1/chat%252Fcompletions"),
    ("double-escaped-letter", "/v1/chat/completion%2573"),
    ("double-escaped-dots", "/v1/x/%252e%252e/chat/completions"),
    ("dots-with-parameter", "/v1/x/..;/chat/completions"),
    ("dots", "/v1/x/../chat/completions"),
    ("escaped-dots", "/v1/x/%2e%2e/chat/completions"),
    ("one-dot", "/v1/./chat/completions"),
    ("escaped-question-mark", "/v1/chat/completions%3Fx=1"),
    ("escaped-space", "/v1/chat/completions%20"),
    ("escaped-null", "/v1/chat/completions%00"),
    ("backslash", "/v1/chat\\completions"),
    ("escaped-backslash", "/v1/chat%5Ccompletions"),
    ("absolute-form", "http://localhost/v1/chat%2Fcompletions"),
    // Paths below that of an endpoint. Servers that match paths by prefix serve such a request as
    // one to the endpoint itself.
    ("member", "/v1/chat/completions/x"),
    ("member-of-member", "/v1/chat/completions/x/y"),
    ("response-member", "/v1/responses/x"),
    ("response-cancel", "/v1/responses/x/cancel"),
    ("realtime-member", "/v1/realtime/x"),
    ("model-member", "/v1/models/m:generateContent"),
];

/// Names and targets of requests whose path begins with `/v1/`, but leads out of it on backends
/// that decode escapes or remove parameters. llmlb must reject them, so that clients cannot reach
/// other paths.
const ESCAPES: &[(&str, &str)] = &[
    ("dots-with-parameter-leave-v1", "/v1/..;/x"),
    ("double-escaped-dots-leave-v1", "/v1/%252e%252e/x"),
    ("double-escaped-slash-leaves-v1", "/v1/..%252fx"),
    ("escaped-dots-leave-v1", "/v1/%2e%2e/x"),
];

pub(crate) fn attacks() -> Vec<Attack> {
    let mut attacks = Vec::new();
    for (name, spelling) in SPELLINGS {
        attacks.push(Attack::fast(
            format!("2-spelling-{name}"),
            "a chat completion is served and not metered",
            |target| unmetered(target, spelling, false),
        ));
    }
    for (name, spelling) in [
        ("percent-2f-http2", "/v1/chat%2Fcompletions"),
        ("upper-case-http2", "/v1/Chat/Completions"),
    ] {
        attacks.push(Attack::fast(
            format!("2-spelling-{name}"),
            "a chat completion over HTTP/2 is served and not metered",
            |target| unmetered(target, spelling, true),
        ));
    }
    for (name, spelling) in ESCAPES {
        attacks.push(Attack::fast(
            format!("2-spelling-{name}"),
            "a path that leaves /v1/ is forwarded",
            |target| forwarded(target, spelling),
        ));
    }
    for path in ["/v1/reranking", "/v1/completions%2F", "/v1/Embeddings"] {
        let name = path.trim_start_matches("/v1/").to_lowercase();
        let name = name.replace('%', "-percent-");
        attacks.push(Attack::fast(
            format!("2-endpoint-{name}"),
            "an inference endpoint of a backend is served and not metered",
            |target| unmetered(target, path, false),
        ));
    }
    attacks
}

/// The backend serves every path and reports tokens. llmlb holds if the usage record contains these
/// tokens, or if it rejects the request.
fn unmetered(target: &Target, spelling: &str, is_http2: bool) -> Outcome {
    let llm = backend()?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let body = r#"{"model":"m","messages":[{"role":"user","content":"hi"}],"input":"hi"}"#;
    let status = if is_http2 {
        let mut client = Http2::connect(server.address)?;
        let stream = client.post(spelling, body.as_bytes())?;
        is_reached(testkit::DEADLINE, || client.end(stream).is_some());
        client.status(stream).unwrap_or(0)
    } else {
        server.send(&Request::post(spelling, body))?.status()
    };
    let Some(served) = llm.requests().pop() else {
        return rejected(status);
    };
    let tokens: u64 = sandbox
        .records()?
        .iter()
        .filter_map(|record| record["tokens"].as_u64())
        .sum();
    let evidence = format!(
        "forwarded as {}, {tokens} of {} tokens recorded",
        served.head.target(),
        PROMPT + COMPLETION
    );
    verdict(tokens == PROMPT + COMPLETION, evidence)
}

fn forwarded(target: &Target, spelling: &str) -> Outcome {
    let llm = backend()?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let status = server.send(&Request::post(spelling, "{}"))?.status();
    match llm.requests().pop() {
        None => rejected(status),
        Some(served) => verdict(false, format!("forwarded as {}", served.head.target())),
    }
}

fn backend() -> io::Result<FakeLlm> {
    FakeLlm::start("m", |_| {
        Reply::json(200, chat_completion("ok", PROMPT, COMPLETION))
    })
}
