//! Aliases of models, and `only_models`. (promise L6)

use testkit::{
    FakeLlm, LlmlbServer,
    backends::{CHAT, asked, backend_of, code, count, ok, serve_file, served_by},
    until,
};

/// Returns the text of `llmlb.toml` with these backends (name, server, further settings) and
/// aliases.
fn file(backends: &[(&str, &FakeLlm, &str)], aliases: &str) -> String {
    let backends: Vec<_> = backends
        .iter()
        .map(|(name, mock, settings)| {
            let url = mock.url();
            format!("[[backend]]\nname = \"{name}\"\nurl = \"{url}\"\n{settings}\n")
        })
        .collect();
    format!("{}\n[aliases]\n{aliases}\n", backends.concat())
}

fn models(server: &LlmlbServer) -> Vec<String> {
    let list = server.get("/v1/models").json();
    let data = list["data"].as_array().unwrap();
    data.iter()
        .map(|model| model["id"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn alias_in_a_body_is_replaced_and_the_rest_is_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["llama-3.3-70b", "other"], ok);
    let server = serve_file(
        &sandbox,
        &file(&[("a", &mock, "")], "fast = \"llama-3.3-70b\""),
    );
    let cases = [
        (r#"{"model":"fast"}"#, r#"{"model":"llama-3.3-70b"}"#),
        (
            "{ \"x\":\"fast\",\n\"model\" :\t\"fast\" , \"n\":1.0e5, \"é\":\"\\u00e9\",\"model2\":\"fast\" }\n",
            "{ \"x\":\"fast\",\n\"model\" :\t\"llama-3.3-70b\" , \"n\":1.0e5, \"é\":\"\\u00e9\",\"model2\":\"fast\" }\n",
        ),
        (
            r#"{"messages":[{"model":"fast","content":"\"model\":\"fast\""}],"model":"fast","tools":[{"model":"fast"}]}"#,
            r#"{"messages":[{"model":"fast","content":"\"model\":\"fast\""}],"model":"llama-3.3-70b","tools":[{"model":"fast"}]}"#,
        ),
        // The JSON parser decodes the escape, so this name is the alias `fast` and must be replaced
        // as well.
        (r#"{"model":"f\u0061st"}"#, r#"{"model":"llama-3.3-70b"}"#),
        (
            r#"{"model":"llama-3.3-70b"}"#,
            r#"{"model":"llama-3.3-70b"}"#,
        ),
        (
            r#"{"model":"other","x":"fast"}"#,
            r#"{"model":"other","x":"fast"}"#,
        ),
    ];
    for (sent, forwarded) in cases {
        let answer = server.post(CHAT, sent);
        assert_eq!(answer.status(), 200, "{sent}: {answer:?}");
        let asked = asked(&mock);
        let last = asked.last().unwrap();
        assert_eq!(last.text(), forwarded);
        let length = last.head.header("content-length");
        assert_eq!(length, Some(forwarded.len().to_string()));
    }
}

#[test]
fn alias_is_replaced_by_the_name_on_the_chosen_backend() {
    let sandbox = testkit::sandbox!();
    let (a, b) = (backend_of(&["qwen-a"], ok), backend_of(&["qwen-b"], ok));
    let server = serve_file(
        &sandbox,
        &file(
            &[("a", &a, ""), ("b", &b, "")],
            "qwen = [\"qwen-a\", \"qwen-b\"]",
        ),
    );
    until("both backends get a request", || {
        let answer = server.post(CHAT, r#"{"model":"qwen","x":1}"#);
        assert_eq!(answer.status(), 200, "{answer:?}");
        count(&a) > 0 && count(&b) > 0
    });
    for (mock, name) in [(&a, "qwen-a"), (&b, "qwen-b")] {
        for request in asked(mock) {
            assert_eq!(request.text(), format!(r#"{{"model":"{name}","x":1}}"#));
        }
    }
    // Each backend has its own name for the aliased model. A request that uses the name of one
    // backend must go to that backend.
    let before = count(&a);
    for _ in 0..10 {
        assert_eq!(server.post(CHAT, r#"{"model":"qwen-b"}"#).status(), 200);
    }
    assert_eq!(count(&a), before);
}

#[test]
fn alias_is_replaced_by_the_name_on_the_next_backend_when_retried() {
    let sandbox = testkit::sandbox!();
    let bad = backend_of(&["qwen-a"], |_, stream| {
        testkit::wire::json(stream, 503, "{}");
    });
    let good = backend_of(&["qwen-b"], ok);
    let server = serve_file(
        &sandbox,
        &file(
            &[("a", &bad, ""), ("b", &good, "")],
            "qwen = [\"qwen-a\", \"qwen-b\"]",
        ),
    );
    until("the bad backend gets a request", || {
        let answer = server.post(CHAT, r#"{"model":"qwen"}"#);
        assert_eq!((answer.status(), served_by(&answer).as_str()), (200, "b"));
        count(&bad) > 0
    });
    assert!(
        asked(&bad)
            .iter()
            .all(|request| request.text().contains("qwen-a"))
    );
    assert!(
        asked(&good)
            .iter()
            .all(|request| request.text().contains("qwen-b"))
    );
}

#[test]
fn alias_of_a_model_that_no_backend_serves_is_unknown() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["m"], ok);
    let server = serve_file(&sandbox, &file(&[("a", &mock, "")], "fast = \"gone\""));
    let answer = server.post(CHAT, r#"{"model":"fast"}"#);
    assert_eq!(answer.status(), 404);
    assert_eq!(code(&answer), "model_not_found");
    let text = answer.text();
    let message = "`fast` is an alias for `gone`, which no backend serves. Available: m.";
    assert!(text.contains(message), "{text}");
    assert_eq!(server.get("/v1/models/fast").text(), text);
    assert_eq!(count(&mock), 0);
}

#[test]
fn alias_is_replaced_on_every_inference_endpoint() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["claude"], ok);
    let server = serve_file(&sandbox, &file(&[("a", &mock, "")], "smart = \"claude\""));
    for path in ["/v1/messages", "/v1/responses", "/v1/embeddings"] {
        assert_eq!(
            server.post(path, r#"{"model":"smart"}"#).status(),
            200,
            "{path}"
        );
        let asked = asked(&mock);
        assert_eq!(asked.last().unwrap().text(), r#"{"model":"claude"}"#);
    }
}

#[test]
fn ollama_model_is_served_with_and_without_the_latest_tag() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["llama3:latest", "qwen:7b"], ok);
    let server = serve_file(&sandbox, &file(&[("a", &mock, "kind = \"ollama\"")], ""));
    for name in ["llama3", "llama3:latest", "qwen:7b"] {
        let answer = server.post(CHAT, &format!(r#"{{"model":"{name}"}}"#));
        assert_eq!(answer.status(), 200, "{name}: {answer:?}");
    }
    assert_eq!(server.post(CHAT, r#"{"model":"qwen"}"#).status(), 404);
    let text = asked(&mock)[0].text();
    assert!(text.contains(r#""llama3"#), "{text}");
}

#[test]
fn models_outside_only_models_are_not_served() {
    let sandbox = testkit::sandbox!();
    let a = backend_of(&["llama-8b", "llama-70b", "secret", "gpt"], ok);
    let b = backend_of(&["gpt", "other"], ok);
    let server = serve_file(
        &sandbox,
        &file(
            &[
                ("a", &a, "only_models = [\"llama-*\", \"gpt\"]"),
                ("b", &b, "only_models = [\"other\"]"),
            ],
            "",
        ),
    );
    assert_eq!(models(&server), ["llama-8b", "llama-70b", "gpt", "other"]);
    let answer = server.post(CHAT, r#"{"model":"secret"}"#);
    assert_eq!(answer.status(), 404);
    assert_eq!(code(&answer), "model_not_found");
    for _ in 0..10 {
        let answer = server.post(CHAT, r#"{"model":"gpt"}"#);
        assert_eq!((answer.status(), served_by(&answer).as_str()), (200, "a"));
    }
    assert_eq!(server.post(CHAT, r#"{"model":"llama-70b"}"#).status(), 200);
    assert_eq!(count(&b), 0);
}

#[test]
fn alias_in_a_large_body_is_replaced_and_the_rest_is_unchanged() {
    let sandbox = testkit::sandbox!();
    let mock = backend_of(&["real"], ok);
    let server = serve_file(&sandbox, &file(&[("a", &mock, "")], "fast = \"real\""));
    let (before, after) = ("0123456789".repeat(70_000), "9876543210".repeat(70_000));
    let body = |model: &str, option: &str| {
        format!(r#"{{{option}"x":"{before}","model":"{model}","stream":true,"y":"{after}"}}"#)
    };
    assert_eq!(server.post(CHAT, &body("fast", "")).status(), 200);
    let option = r#""stream_options":{"include_usage":true},"#;
    assert!(asked(&mock)[0].text() == body("real", option));
}
