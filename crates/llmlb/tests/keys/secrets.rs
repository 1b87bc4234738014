//! Secrets of API keys are in no log, record, error, file or request to a backend. (promise L11)

use std::fs;
use std::path::Path;

use testkit::backends::{ASK, CHAT, asked};

use crate::support::{add, bearer, chat, send, serve_with};

/// Collects the names and contents of all files below a directory.
fn files(dir: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for file in fs::read_dir(dir).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

#[test]
fn secret_is_in_no_log_record_error_or_request_to_a_backend() {
    const CONFIGURED: &str = "sk-configured-secret";
    const WRONG: &str = "sk-wrong-secret-of-a-client";
    let sandbox = testkit::sandbox!();
    // The command's output contains the secret, so it is not written to a file of the sandbox.
    let stored = add(&sandbox, "alice --models m");
    let backend = testkit::backends::backend(testkit::backends::ok);
    let config = "[[key]]\nname = \"ci\"\nkey_env = \"CI_KEY\"\n";
    let server = serve_with(&sandbox, config, &backend, |command| {
        command.arg("-v").env("CI_KEY", CONFIGURED)
    });
    let mut responses = Vec::new();
    for secret in [&*stored, CONFIGURED, WRONG] {
        chat(&server, secret);
        let query = format!("{CHAT}?key={secret}&api_key={secret}&token={secret}");
        let fields = [
            bearer(secret),
            format!("x-api-key: {secret}\r\n"),
            format!("api-key: {secret}\r\n"),
            format!(
                "cookie: {secret}\r\nx-goog-api-key: {secret}\r\n{}",
                bearer(&stored)
            ),
            format!("{}{}", bearer(secret), bearer(secret)),
        ];
        for fields in fields {
            for body in [ASK, r#"{"model":"other"}"#, "{"] {
                let answer = send(&server, "POST", &query, &fields, body);
                responses.push(format!("{:?} {}", answer.head, answer.text()));
            }
        }
    }
    responses.push(server.status().to_string());
    for request in asked(&backend) {
        responses.push(format!("{request:?}"));
    }
    assert!(asked(&backend).len() > 6);
    assert_eq!(server.stop(), Some(0));
    let mut found = Vec::new();
    files(sandbox.root(), &mut found);
    assert!(found.iter().any(|(name, _)| name.contains(".err")));
    assert!(found.iter().any(|(name, _)| name.ends_with("keys.json")));
    found.push(("responses".to_owned(), responses.join("\n").into_bytes()));
    for (name, bytes) in found {
        let text = String::from_utf8_lossy(&bytes);
        for secret in [&*stored, CONFIGURED, WRONG] {
            assert!(!text.contains(secret), "{secret} is in {name}:\n{text}");
        }
    }
}
