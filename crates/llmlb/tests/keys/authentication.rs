//! Clients with and without API keys, and the errors in the format of each API. (promise L11)

use serde_json::{Value, json};
use testkit::backends::{ASK, CHAT, asked};
use testkit::until;

use crate::support::{add, bearer, chat, key, secret, send, serve, serve_with};

#[test]
fn client_without_a_valid_key_gets_the_error_of_its_api() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice");
    let (backend, server) = serve(&sandbox, "");
    assert_eq!(chat(&server, &good), 200);
    for (path, fields) in [
        (CHAT, String::new()),
        (CHAT, bearer("llmlb-wrong")),
        (CHAT, bearer(&good[..good.len() - 1])),
        (CHAT, format!("authorization: {good}\r\n")),
        ("/v1/messages", "x-api-key: sk-ant-wrong\r\n".to_owned()),
        ("/api/chat", String::new()),
        ("/v1/responses", bearer(&format!("{good} {good}"))),
        ("/unknown", String::new()),
    ] {
        let answer = send(&server, "POST", path, &fields, ASK);
        assert_eq!(answer.status(), 401, "{path} {fields}: {answer:?}");
        let header = answer.head.header("www-authenticate");
        assert_eq!(header.as_deref(), Some("Bearer"), "{path}");
        let body = answer.json();
        match path {
            "/v1/messages" => {
                assert_eq!(body["type"], "error");
                assert_eq!(body["error"]["type"], "authentication_error");
                assert!(body["error"]["message"].is_string());
            }
            "/api/chat" => assert!(body["error"].is_string()),
            _ => {
                assert_eq!(body["error"]["code"], "invalid_api_key");
                assert_eq!(body["error"]["type"], "invalid_request_error");
                assert_eq!(body["error"]["param"], Value::Null);
                assert!(body["error"]["message"].is_string());
            }
        }
    }
    assert_eq!(asked(&backend).len(), 1, "only the request with the key");
    // Refused requests must only be counted: a record for each would let clients without a key fill
    // the disk.
    let status = server.status();
    assert_eq!(status["refused"], json!({ "invalid_api_key": 8 }));
    assert_eq!(status["keys"]["required"], true);
    assert_eq!(status["keys"]["count"], 1);
    assert_eq!(server.stop(), Some(0));
    assert_eq!(sandbox.records().unwrap().len(), 1);
}

#[test]
fn key_is_accepted_in_the_fields_of_all_clients_and_is_in_record_and_log() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice --team search");
    let (backend, server) = serve(&sandbox, "");
    for (number, fields) in [
        bearer(&good),
        format!("authorization: bearer  {good}\r\n"),
        format!("x-api-key: {good}\r\n"),
        format!("api-key: {good}\r\n"),
        format!("authorization: Bearer foreign-token\r\nx-api-key: {good}\r\n"),
    ]
    .iter()
    .enumerate()
    {
        let fields = format!("{fields}x-request-id: r{number}\r\n");
        let answer = send(&server, "POST", CHAT, &fields, ASK);
        assert_eq!(answer.status(), 200, "{fields}: {answer:?}");
        let record = sandbox.record_of(&format!("r{number}")).unwrap().unwrap();
        assert_eq!(record["key"], "alice");
        assert_eq!(record["team"], "search");
    }
    server.process.until_output("200 key=alice model=m");
    for request in asked(&backend) {
        let head = format!("{:?}", request.head);
        assert!(
            !head.contains(&good) && !head.contains("foreign-token"),
            "{head}"
        );
    }
}

#[test]
fn pages_for_probes_need_no_key_and_lists_of_models_do() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice");
    let (_backend, server) = serve(&sandbox, "");
    for path in ["/", "/healthz", "/readyz", "/status", "/metrics"] {
        assert_eq!(send(&server, "GET", path, "", "").status(), 200, "{path}");
        let wrong = bearer("wrong");
        assert_eq!(
            send(&server, "GET", path, &wrong, "").status(),
            200,
            "{path}"
        );
    }
    for path in ["/v1/models", "/v1/models/m"] {
        assert_eq!(send(&server, "GET", path, "", "").status(), 401, "{path}");
        let fields = bearer(&good);
        assert_eq!(
            send(&server, "GET", path, &fields, "").status(),
            200,
            "{path}"
        );
    }
    for path in ["/favicon.ico", "/v1/files", "/api/tags"] {
        assert_eq!(send(&server, "GET", path, "", "").status(), 401, "{path}");
    }
}

#[test]
fn status_page_is_served_to_admin_keys_also_through_a_proxy() {
    let sandbox = testkit::sandbox!();
    let admin = add(&sandbox, "root --admin");
    let other = add(&sandbox, "alice");
    let (_backend, server) = serve(&sandbox, "");
    let get = |fields: &str| {
        let fields = format!("x-forwarded-for: 192.0.2.1\r\n{fields}");
        send(&server, "GET", "/status", &fields, "").status()
    };
    assert_eq!(get(""), 403);
    assert_eq!(get(&bearer(&other)), 403);
    assert_eq!(get(&bearer(&admin)), 200);
}

#[test]
fn changes_apply_to_a_running_server_and_its_last_key_does_not_open_it() {
    let sandbox = testkit::sandbox!();
    let (_backend, server) = serve(&sandbox, "");
    // Without any key the server serves every client. The first key must then close it to clients
    // without a key.
    assert_eq!(server.post(CHAT, ASK).status(), 200);
    let first = add(&sandbox, "alice");
    until("the first key closes the server", || {
        server.post(CHAT, ASK).status() == 401
    });
    assert_eq!(chat(&server, &first), 200);

    let second = secret(&key(&sandbox, "rotate alice --grace 1h"));
    until("the new secret works", || chat(&server, &second) == 200);
    assert_eq!(chat(&server, &first), 200, "within the grace period");
    let third = secret(&key(&sandbox, "rotate alice"));
    until("the old secret is rejected", || {
        chat(&server, &second) == 401
    });
    assert_eq!(chat(&server, &first), 401);
    assert_eq!(chat(&server, &third), 200);

    key(&sandbox, "revoke alice").assert_code(0);
    until("the revoked key is rejected", || {
        chat(&server, &third) == 401
    });
    assert_eq!(server.post(CHAT, ASK).status(), 401);
    // If the key file is deleted, the server must keep its keys, otherwise it would serve every
    // client.
    std::fs::remove_file(sandbox.data_dir().join("keys.json")).unwrap();
    server.process.until_output("keys.json was deleted");
    assert_eq!(server.post(CHAT, ASK).status(), 401);
    assert_eq!(server.status()["keys"]["required"], true);
}

#[test]
fn expired_key_is_rejected_with_a_code_of_its_own() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice --expires 1s");
    let (_backend, server) = serve(&sandbox, "");
    until("the key expires", || chat(&server, &good) == 401);
    let answer = send(&server, "POST", CHAT, &bearer(&good), ASK);
    assert_eq!(answer.json()["error"]["code"], "expired_api_key");
    let message = "The API key `alice` has expired.";
    assert_eq!(answer.json()["error"]["message"], message);
}

#[test]
fn keys_of_the_configuration_file_count_like_others() {
    let sandbox = testkit::sandbox!();
    let stored = add(&sandbox, "stored");
    let config = "[[key]]\nname = \"ci\"\nkey_env = \"CI_KEY\"\nteam = \"build\"\n\
                  [[key]]\nname = \"hashed\"\n\
                  sha256 = \"2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\"\n\
                  expires = 2999-12-31\n";
    let backend = testkit::backends::backend(testkit::backends::ok);
    let server = serve_with(&sandbox, config, &backend, |command| {
        command.env("CI_KEY", "sk-ci-0123456789")
    });
    for secret in [&*stored, "sk-ci-0123456789", "secret"] {
        assert_eq!(chat(&server, secret), 200, "{secret}");
    }
    assert_eq!(server.post(CHAT, ASK).status(), 401);
    assert_eq!(server.status()["keys"]["count"], 3);
}

#[test]
fn demo_honours_the_keys_of_the_data_directory() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice");
    let server = sandbox.serve("--demo");
    let ask = r#"{"model":"demo","messages":[{"role":"user","content":"Hello"}]}"#;
    assert_eq!(server.post(CHAT, ask).status(), 401);
    assert_eq!(
        send(&server, "POST", CHAT, &bearer(&good), ask).status(),
        200
    );
}

#[test]
fn server_does_not_start_with_a_key_file_that_it_cannot_trust() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let sandbox = testkit::sandbox!();
    add(&sandbox, "alice");
    let file = sandbox.data_dir().join("keys.json");
    let good = std::fs::read(&file).unwrap();
    let assert_refused = |why: &str| {
        for verb in ["serve -p 0 --demo", "check", "key list", "key add bob"] {
            let done = testkit::Finished::run(&mut sandbox.command(verb));
            done.assert_code(1);
            assert!(done.stderr.contains(why), "{verb}: {done:?}");
            assert!(done.stderr.contains("keys.json"), "{verb}: {done:?}");
        }
    };
    for (text, why) in [
        (&b"{}"[..], "missing field"),
        (b"", "not a valid key file"),
        (b"\0\0\0", "not a valid key file"),
        (&good[..good.len() - 9], "not a valid key file"),
    ] {
        std::fs::write(&file, text).unwrap();
        assert_refused(why);
    }
    std::fs::write(&file, &good).unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o622)).unwrap();
    assert_refused("other users may write the file");
    std::fs::remove_file(&file).unwrap();
    let elsewhere = sandbox.file("elsewhere", &good);
    symlink(elsewhere, &file).unwrap();
    assert_refused("keys.json");
    std::fs::remove_file(&file).unwrap();
    let huge = std::fs::File::create(&file).unwrap();
    huge.set_len(1 << 40).unwrap();
    assert_refused("larger than");
}
