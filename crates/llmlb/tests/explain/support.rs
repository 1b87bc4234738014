//! Requests with ids, and explanations of them.

use serde_json::Value;
use testkit::{
    Answer, Connection, FakeLlm, LlmlbServer, Sandbox,
    backends::{CHAT, backend},
    wire,
};

/// Response with usage, of which a request has 7 prompt and 5 completion tokens.
const RESPONSE: &str = r#"{"choices":[{"message":{"role":"assistant","content":"hi"},"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":5,"total_tokens":12}}"#;

/// Starts a backend that responds with usage.
pub(crate) fn good() -> FakeLlm {
    backend(|_, stream| wire::json(stream, 200, RESPONSE))
}

/// Starts a backend that responds with this status.
pub(crate) fn failing(status: u16) -> FakeLlm {
    backend(move |_, stream| wire::json(stream, status, r#"{"error":{"message":"no"}}"#))
}

/// Sends a chat request with this id and these further fields, each with its line end.
pub(crate) fn ask_with(server: &LlmlbServer, id: &str, fields: &str) -> Answer {
    let mut client = Connection::open(server.address);
    send(&mut client, id, fields, "hello");
    client.answer()
}

/// Sends a chat request with this id.
pub(crate) fn ask(server: &LlmlbServer, id: &str) -> Answer {
    ask_with(server, id, "")
}

/// Sends requests until one of them fails over from `bad` to another backend, and returns the id of
/// that request. All requests are served.
pub(crate) fn fail_over(server: &LlmlbServer, bad: &FakeLlm) -> String {
    let mut sent = 0;
    testkit::until("the failing backend is tried", || {
        sent += 1;
        assert_eq!(ask(server, &format!("r-{sent}-")).status(), 200);
        testkit::backends::count(bad) > 0
    });
    format!("r-{sent}-")
}

/// Sends a chat request and does not wait for the response.
pub(crate) fn send(client: &mut Connection, id: &str, fields: &str, prompt: &str) {
    let body = serde_json::json!({
        "model": "m",
        "messages": [{ "role": "user", "content": prompt }],
    })
    .to_string();
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {id}\r\n{fields}\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
}

/// Returns the explanations of the requests with this id, as JSON.
pub(crate) fn explain(sandbox: &Sandbox, id: &str) -> Vec<Value> {
    let done = sandbox.run(&format!("explain {id} --json"));
    done.assert_code(0);
    let document = done.json();
    assert_eq!(document["version"], 1, "{document:#}");
    document["requests"].as_array().unwrap().clone()
}

/// Waits until the server knows the request, and returns its explanation.
pub(crate) fn explained(sandbox: &Sandbox, server: &LlmlbServer, id: &str) -> Value {
    testkit::until("the server knows the finished request", || {
        let page = server.get(&format!("/explain/{id}")).json();
        !page["requests"].as_array().unwrap().is_empty()
    });
    let mut found = explain(sandbox, id);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}
