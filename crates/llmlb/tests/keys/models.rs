//! API keys that may be used for some models only: requests for other models are rejected, and lists do not
//! name them. (promise L11)

use testkit::backends::{CHAT, asked, backend_of, code, ok};

use crate::support::{add, bearer, send, serve_with};

const CONFIG: &str = "[aliases]\nfast = \"llama3:8b\"\nsmart = \"gpt\"\n";

#[test]
fn key_may_use_only_its_models_and_sees_no_others() {
    let sandbox = testkit::sandbox!();
    let some = bearer(&add(&sandbox, "some --models llama3*,fast"));
    let all = bearer(&add(&sandbox, "all"));
    let backend = backend_of(&["llama3:8b", "gpt"], ok);
    let server = serve_with(&sandbox, CONFIG, &backend, |command| command);
    let ask = |model: &str| format!(r#"{{"model":"{model}","messages":[]}}"#);
    for model in ["llama3:8b", "fast"] {
        let answer = send(&server, "POST", CHAT, &some, &ask(model));
        assert_eq!(answer.status(), 200, "{model}: {answer:?}");
    }
    for model in ["gpt", "smart", "absent"] {
        let answer = send(&server, "POST", CHAT, &some, &ask(model));
        assert_eq!(answer.status(), 403, "{model}: {answer:?}");
        assert_eq!(code(&answer), "model_not_allowed");
        assert_eq!(answer.json()["error"]["param"], "model");
    }
    let answer = send(&server, "POST", "/v1/messages", &some, &ask("gpt"));
    assert_eq!(answer.json()["error"]["type"], "permission_error");
    for (path, body) in [
        (CHAT, r#"{"messages":[]}"#),
        ("/v1/batches", r#"{"input_file_id":"file-1"}"#),
        ("/v1/infill", r#"{"prompt":"x"}"#),
    ] {
        let answer = send(&server, "POST", path, &some, body);
        assert_eq!(answer.status(), 403, "{path}: {answer:?}");
    }
    // llmlb does not read the body of this endpoint. The query names an allowed model, but the
    // backend may use the model in the body, so the request must be rejected.
    let mut client = testkit::Connection::open(server.address);
    client.send(format!(
        "POST /v1/infill?model=fast HTTP/1.1\r\nhost: localhost\r\n{some}content-length: 15\r\n\r\n{{\"model\":\"gpt\"}}"
    ));
    assert_eq!(client.head().status(), 403);
    assert_eq!(asked(&backend).len(), 2);

    let names = |fields: &str| -> Vec<String> {
        let list = send(&server, "GET", "/v1/models", fields, "").json();
        let models = list["data"].as_array().unwrap().iter();
        let mut names: Vec<String> = models
            .map(|model| model["id"].as_str().unwrap().to_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&some), ["fast", "llama3:8b"]);
    assert_eq!(names(&all), ["fast", "gpt", "llama3:8b", "smart"]);
    let describe =
        |fields: &str, name: &str| send(&server, "GET", &format!("/v1/models/{name}"), fields, "");
    assert_eq!(describe(&some, "fast").status(), 200);
    assert_eq!(describe(&all, "gpt").status(), 200);
    for name in ["gpt", "smart", "absent"] {
        let answer = describe(&some, name);
        assert_eq!(answer.status(), 404);
        let message = format!("The model `{name}` does not exist. Available: fast, llama3:8b.");
        assert_eq!(answer.json()["error"]["message"], message);
    }
    let answer = send(&server, "POST", CHAT, &some, &ask("llama3-absent"));
    let message = answer.json()["error"]["message"].to_string();
    assert!(message.contains("Available: fast, llama3:8b."), "{message}");
    // Requests for models that a key does not permit must only be counted: a record for each would
    // let clients fill the disk.
    let refused = server.status()["refused"]["model_not_allowed"].clone();
    assert_eq!(refused, 8);
    assert_eq!(server.stop(), Some(0));
    let records = sandbox.records().unwrap();
    let statuses: Vec<_> = records.iter().map(|record| &record["status"]).collect();
    assert_eq!(statuses, [200, 200, 404]);
}

/// Hides a forbidden model: a request names an allowed model where llmlb reads it, and a forbidden
/// one where a backend might read it.
#[test]
fn allowed_model_does_not_hide_another_one() {
    let sandbox = testkit::sandbox!();
    let some = bearer(&add(&sandbox, "some --models fast"));
    let all = bearer(&add(&sandbox, "all"));
    let backend = backend_of(&["fast", "gpt"], ok);
    let server = serve_with(&sandbox, "", &backend, |command| command);
    for (path, body) in [
        ("/v1/batches", r#"{"model":"fast","input_file_id":"f"}"#),
        (
            "/v1/messages/batches",
            r#"{"model":"fast","requests":[{"params":{"model":"gpt"}}]}"#,
        ),
        (
            "/v1/evals/e/runs",
            r#"{"model":"fast","data_source":{"model":"gpt"}}"#,
        ),
        (
            "/v1/realtime/calls",
            r#"{"model":"fast","session":{"model":"gpt"}}"#,
        ),
        (CHAT, r#"{"model":"fast","models":["gpt"],"messages":[]}"#),
        (
            CHAT,
            r#"{"model":"fast","fallbacks":["gpt"],"messages":[]}"#,
        ),
        (
            "/v1/responses",
            r#"{"model":"fast","input":"x","tools":[{"type":"image_generation","model":"gpt"}]}"#,
        ),
    ] {
        let answer = send(&server, "POST", path, &some, body);
        assert_eq!(answer.status(), 403, "{path}: {answer:?}");
        let code = answer.head.header("x-llmlb-error");
        assert_eq!(code.as_deref(), Some("model_not_allowed"), "{path}");
        let answer = send(&server, "POST", path, &all, body);
        assert_eq!(answer.status(), 200, "{path}: {answer:?}");
    }
    for path in ["/v1/responses/cancel", "/v1/x/cancel", "/v1/uploads/u/run"] {
        let mut client = testkit::Connection::open(server.address);
        client.send(format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\n{some}content-length: 15\r\n\r\n{{\"model\":\"gpt\"}}"
        ));
        assert_eq!(client.head().status(), 403, "{path}");
    }
    let delete = |name: &str| send(&server, "DELETE", &format!("/v1/models/{name}"), &some, "");
    assert_eq!(delete("gpt").status(), 403);
    assert_eq!(delete("fast").status(), 200);
}
