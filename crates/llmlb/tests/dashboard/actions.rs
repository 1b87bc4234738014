//! Actions of the dashboard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use testkit::backends::{ASK, CHAT, backend, code, count, ok, served_by};
use testkit::{Finished, LlmlbServer, Reply, Sandbox, UsageReceiver, until};

use crate::support::PageRequest;

/// Starts a server in front of two backends, `a` and `b`, with this further configuration.
#[track_caller]
fn serve_two(sandbox: &Sandbox, config: &str) -> ([testkit::FakeLlm; 2], LlmlbServer) {
    let backends = [backend(ok), backend(ok)];
    let [a, b] = backends.each_ref().map(|one| one.address);
    let file = format!(
        "{config}\n[[backend]]\nname = \"a\"\nurl = \"http://{a}\"\n[[backend]]\nname = \"b\"\nurl = \"http://{b}\"\n"
    );
    sandbox.file("llmlb.toml", file);
    let server = sandbox.serve("");
    (backends, server)
}

#[test]
fn drained_backend_gets_no_requests_until_it_is_undrained() {
    let sandbox = testkit::sandbox!();
    let ([a, _b], server) = serve_two(&sandbox, "");
    let request = PageRequest::new(&server);
    let act = |path: &str| request.act(&server, path, r#"{"backend":"a"}"#);
    let drained = act("/dashboard/drain");
    assert_eq!(drained.status(), 200);
    assert_eq!(drained.json()["drained"], true);
    let before = count(&a);
    for _ in 0..30 {
        assert_eq!(served_by(&server.post(CHAT, ASK)), "b");
    }
    assert_eq!(count(&a), before);
    let status = Finished::run(&mut sandbox.command("status"));
    assert!(status.stdout.contains("up, drained"), "{status:?}");
    let snapshot = server.get("/dashboard/snapshot").json();
    assert_eq!(snapshot["version"], 1);

    // A reload that keeps the backend keeps it drained.
    let file = std::fs::read_to_string(sandbox.path("llmlb.toml")).unwrap();
    sandbox.file("llmlb.toml", format!("{file}weight = 2\n"));
    until("the file is loaded", || {
        server.status()["config"]["reloads"] == 1
    });
    assert_eq!(server.backend_status("a").unwrap()["drained"], true);
    assert_eq!(served_by(&server.post(CHAT, ASK)), "b");

    assert_eq!(act("/dashboard/undrain").json()["drained"], false);
    until("the backend gets requests", || {
        served_by(&server.post(CHAT, ASK)) == "a"
    });
    for line in ["drained backend a", "undrained backend a"] {
        let line = format!("dashboard: a program on this machine {line}");
        until("the action is logged", || server.log().contains(&line));
    }
    let unknown = request.act(&server, "/dashboard/drain", r#"{"backend":"c"}"#);
    assert_eq!(code(&unknown), "unknown_backend");
}

#[test]
fn client_gets_503_while_all_backends_are_drained() {
    let sandbox = testkit::sandbox!();
    let (_backends, server) = serve_two(&sandbox, "");
    let request = PageRequest::new(&server);
    for name in ["a", "b"] {
        let body = format!(r#"{{"backend":"{name}"}}"#);
        request.act(&server, "/dashboard/drain", &body);
    }
    let answer = server.post(CHAT, ASK);
    assert_eq!(answer.status(), 503);
    assert_eq!(code(&answer), "all_backends_down");
    assert!(answer.text().contains("drained"), "{answer:?}");
    assert_eq!(server.get("/readyz").status(), 503);
}

#[test]
fn invalid_actions_are_rejected() {
    let sandbox = testkit::sandbox!();
    let (_backends, server) = serve_two(&sandbox, "");
    let request = PageRequest::new(&server);
    for (path, body) in [
        ("/dashboard/drain", ""),
        ("/dashboard/drain", "{}"),
        ("/dashboard/drain", r#"{"backend":1}"#),
        ("/dashboard/drain", r#"{"backend":"a","all":true}"#),
        ("/dashboard/keys/create", r#"{"name":"<b>"}"#),
        ("/dashboard/keys/revoke", r#"{"name":null}"#),
    ] {
        let answer = request.act(&server, path, body);
        assert_eq!(answer.status(), 400, "{path} {body}");
        assert_eq!(code(&answer), "invalid_action");
    }
    let long = format!(r#"{{"backend":"{}"}}"#, "x".repeat(20_000));
    let answer = request.act(&server, "/dashboard/drain", &long);
    assert_eq!(answer.status(), 413);
}

#[test]
fn key_is_created_with_its_limits_and_revoked() {
    let sandbox = testkit::sandbox!();
    let (_backends, server) = serve_two(&sandbox, "");
    let request = PageRequest::new(&server);
    let wanted =
        r#"{"name":"made","models":["m"],"requests_per_minute":7,"budget_tokens":9,"per":"day"}"#;
    let made = request.act(&server, "/dashboard/keys/create", wanted);
    assert_eq!(made.status(), 200, "{made:?}");
    let secret = made.json()["secret"].as_str().unwrap().to_owned();
    let stored = made.head.header("cache-control");
    assert_eq!(stored.as_deref(), Some("no-store"));
    let keys = || request.send(&server, "GET", "/dashboard/keys", "").json();
    assert_eq!(keys()["keys"][0]["name"], "made");
    assert_eq!(keys()["keys"][0]["state"], "active");
    assert!(!keys().to_string().contains(&secret));
    let listed = sandbox.run("key list --json").json();
    assert_eq!(listed["keys"][0]["rpm"], 7, "{listed}");
    let ask = |secret: &str| {
        let client = PageRequest {
            fields: format!("authorization: Bearer {secret}\r\n"),
            origin: None,
            token: None,
            ..request.clone()
        };
        client.act(&server, CHAT, ASK).status()
    };
    until("a key is needed", || ask("wrong") == 401);
    assert_eq!(ask(&secret), 200);
    let again = request.act(&server, "/dashboard/keys/create", wanted);
    assert_eq!(code(&again), "key_exists");
    let revoke = || request.act(&server, "/dashboard/keys/revoke", r#"{"name":"made"}"#);
    assert_eq!(revoke().status(), 200);
    until("the key is rejected", || ask(&secret) == 401);
    assert_eq!(code(&revoke()), "unknown_key");
    for line in ["created the API key `made`", "revoked the API key `made`"] {
        until("the action is logged", || server.log().contains(line));
    }
    assert!(!server.log().contains(&secret));
}

#[test]
fn failed_batches_are_resent() {
    let sandbox = testkit::sandbox!();
    let rejects = Arc::new(AtomicBool::new(false));
    let is_rejecting = Arc::clone(&rejects);
    let receiver = UsageReceiver::judging(move |_| {
        let is_rejecting = is_rejecting.load(Ordering::Relaxed);
        Reply::response(if is_rejecting { 422 } else { 200 }, &[], "")
    });
    let usage = format!(
        "[usage]\nurl = \"{}\"\nevery = \"1s\"\nallow_http = true\n",
        receiver.url
    );
    let (_backends, server) = serve_two(&sandbox, &usage);
    let request = PageRequest::new(&server);
    let resend = || request.act(&server, "/dashboard/resend", "{}").json();
    assert_eq!(resend()["resent"], 0);
    let until_usage = |condition: &str, field: &str, count: u64| {
        until(condition, || server.status()["usage"][field] == count);
    };
    // Records are rejected one by one only by a receiver that has accepted others.
    server.post(CHAT, ASK);
    until_usage("the first record is delivered", "delivered", 1);
    rejects.store(true, Ordering::Relaxed);
    server.post(CHAT, ASK);
    until_usage("the second record is rejected", "failed", 1);
    rejects.store(false, Ordering::Relaxed);
    let resent = resend();
    assert_eq!(resent["resent"], 1, "{resent}");
    assert_eq!(resent["problems"].as_array().unwrap().len(), 0);
    until_usage("the second record is delivered", "delivered", 2);
    assert_eq!(server.status()["usage"]["failed"], 0);
}
