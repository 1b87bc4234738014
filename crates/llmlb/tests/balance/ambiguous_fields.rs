//! Requests that two parsers could read differently: JSON fields that are repeated, or that differ only
//! in case. Go's decoder uses the last of them. (promises L6, L11)

use testkit::{
    Connection, FakeLlm, LlmlbServer,
    backends::{CHAT, backend_of, code, count, ok, serve, serve_file},
};

/// Returns two backends. Requests without a model go to the first one.
fn backends() -> (FakeLlm, FakeLlm) {
    (backend_of(&["open"], ok), backend_of(&["secret"], ok))
}

const AMBIGUOUS: &[&str] = &[
    r#"{"model":"open","Model":"secret"}"#,
    r#"{"Model":"secret","model":"open"}"#,
    r#"{"MODEL":"secret"}"#,
    r#"{"model":"open","mod\u0045l":"secret"}"#,
    r#"{"model":"open","model":"secret"}"#,
    r#"{"model":"open","messages":[],"mod\u0065l":"open"}"#,
    r#"{"model":"open","stream":false,"Stream":true}"#,
    r#"{"model":"open","stream":true,"stream":false}"#,
    // Go's JSON decoder ignores case in field names and treats the long s (`ſ`) as an `s`, so a Go
    // backend would read this field as `stream`.
    r#"{"model":"open","ſtream":true}"#,
    r#"{"model":"open","stream":true,"Stream_Options":{}}"#,
    r#"{"model":"open","stream_options":{},"stream":true,"stream_options":null}"#,
];

fn post(server: &LlmlbServer, path: &str, kind: &str, body: &str) -> testkit::Answer {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: {kind}\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    ));
    client.answer()
}

#[test]
fn repeated_or_similar_field_names_are_rejected_for_every_content_type() {
    let sandbox = testkit::sandbox!();
    let (open, secret) = backends();
    let server = serve(&sandbox, &[&open, &secret], &[]);
    for body in AMBIGUOUS {
        for (path, kind) in [
            (CHAT, "application/json"),
            (CHAT, "text/plain"),
            (CHAT, "application/x-www-form-urlencoded"),
            ("/v1/whatever", "application/json"),
        ] {
            let answer = post(&server, path, kind, body);
            assert_eq!(answer.status(), 400, "{path} {kind} {body}: {answer:?}");
            assert_eq!(code(&answer), "ambiguous_field", "{body}");
        }
    }
    assert_eq!((count(&open), count(&secret)), (0, 0));
}

#[test]
fn inference_request_that_is_not_json_is_rejected_for_every_content_type() {
    let sandbox = testkit::sandbox!();
    let (open, secret) = backends();
    let server = serve(&sandbox, &[&open, &secret], &[]);
    for kind in ["application/json", "text/plain", "application/octet-stream"] {
        for path in [CHAT, "/v1/chat/completions/", "/v1/responses/compact"] {
            // A backend that stops parsing at the closing brace would ignore the invalid rest and serve the
            // request.
            let answer = post(&server, path, kind, r#"{"model":"secret"} x"#);
            assert_eq!(answer.status(), 400, "{path} {kind}: {answer:?}");
            assert_eq!(code(&answer), "invalid_json", "{path} {kind}");
        }
    }
    assert_eq!((count(&open), count(&secret)), (0, 0));
}

#[test]
fn field_names_that_are_distinct_to_every_parser_are_accepted() {
    let sandbox = testkit::sandbox!();
    let (open, secret) = backends();
    let server = serve(&sandbox, &[&open, &secret], &[]);
    for body in [
        r#"{"model":"open","models":["secret"],"model_":"secret","modèl":"secret"}"#,
        r#"{"model":"open","x":{"Model":"secret","model":"a","Stream":true}}"#,
        r#"{"model":"open","user":"a","user":"b","User":"c"}"#,
    ] {
        assert_eq!(server.post(CHAT, body).status(), 200, "{body}");
    }
    assert_eq!((count(&open), count(&secret)), (3, 0));
}

#[test]
fn form_with_two_models_is_rejected() {
    let sandbox = testkit::sandbox!();
    let (open, secret) = backends();
    let file = format!(
        "[[backend]]\nurl = \"{}\"\n[[backend]]\nurl = \"{}\"\n",
        open.url(),
        secret.url()
    );
    let server = serve_file(&sandbox, &file);
    let part = |name: &str, value: &str| {
        format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
    };
    let kind = "multipart/form-data; boundary=x";
    for second in ["model", "Model"] {
        let body = [
            part("model", "open"),
            part("file", "…"),
            part(second, "secret"),
        ]
        .concat();
        let answer = post(
            &server,
            "/v1/audio/transcriptions",
            kind,
            &(body + "--x--\r\n"),
        );
        assert_eq!(answer.status(), 400, "{second}: {answer:?}");
        assert_eq!(code(&answer), "invalid_form");
    }
    let body = [part("model", "open"), part("models", "secret")].concat() + "--x--\r\n";
    let answer = post(&server, "/v1/audio/transcriptions", kind, &body);
    assert_eq!(answer.status(), 200);
    assert_eq!((count(&open), count(&secret)), (1, 0));
}
