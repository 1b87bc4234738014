//! Requests, tokens, times and attempts are counted once, under the labels that docs/metrics.md describes.

use std::fmt::Write as _;

use testkit::backends::{CHAT, address};
use testkit::{Connection, FakeLlm, Gate, Reply, Request, chat_completion, chat_events, until};

use crate::page::Page;

/// Starts a server in front of these backends, which are named `b0`, `b1` and so on.
fn config(addresses: &[std::net::SocketAddr], rest: &str) -> String {
    let mut config = format!("{rest}\n[upstream]\nprobe_interval = \"100ms\"\n");
    for (number, address) in addresses.iter().enumerate() {
        let _ = write!(
            config,
            "[[backend]]\nname = \"b{number}\"\nurl = \"http://{address}\"\n"
        );
    }
    config
}

#[test]
fn requests_and_tokens_are_counted_under_their_labels() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::start("m", |_| Reply::json(200, chat_completion("x", 7, 5)));
    let backend = backend.unwrap();
    sandbox.file(
        "llmlb.toml",
        config(&[backend.address], "[aliases]\nfast = \"m\""),
    );
    let server = sandbox.serve("");
    for model in ["m", "m", "fast", "secret-of-a-client"] {
        let _ = server.send(&Request::chat(model, "Hello")).unwrap();
    }
    for path in ["/metrics", "/healthz", "/status", "/v1/models"] {
        assert_eq!(server.get(path).status(), 200);
    }
    let page = Page::of(&server);
    let requests = |labels| page.sum("llmlb_requests_total", labels);
    assert_eq!(requests(&[]), Some(4.0), "own pages are not counted");
    let complete = [
        ("model", "m"),
        ("backend", "b0"),
        ("api", "chat"),
        ("outcome", "complete"),
        ("status_class", "2xx"),
    ];
    assert_eq!(requests(&complete), Some(2.0));
    assert_eq!(requests(&[("model", "fast"), ("backend", "b0")]), Some(1.0));
    let unknown = [
        ("model", "other"),
        ("backend", "none"),
        ("outcome", "refused"),
    ];
    assert_eq!(requests(&unknown), Some(1.0));
    assert!(!page.text.contains("secret-of-a-client"));
    let refused = page.sum(
        "llmlb_refused_requests_total",
        &[("code", "model_not_found")],
    );
    assert_eq!(refused, Some(1.0), "{}", page.text);
    let tokens = |kind| {
        let labels = [
            ("model", "m"),
            ("key", "none"),
            ("source", "reported"),
            ("type", kind),
        ];
        page.sum("llmlb_tokens_total", &labels)
    };
    assert_eq!(
        (tokens("prompt"), tokens("completion")),
        (Some(14.0), Some(10.0))
    );
    let duration = page.sum("llmlb_request_duration_seconds_count", &[("backend", "b0")]);
    assert_eq!(duration, Some(3.0));
    assert_eq!(page.sum("llmlb_queue_seconds_count", &[]), Some(3.0));
    assert_eq!(
        page.sum("llmlb_attempts_total", &[("result", "response")]),
        Some(3.0)
    );
    assert_eq!(page.sum("llmlb_choice_total", &[]), Some(3.0));
    assert_eq!(page.sum("llmlb_retries_total", &[]), Some(0.0));
    assert_eq!(page.sum("llmlb_records_staged_total", &[]), Some(4.0));
    let first = page.sum("llmlb_time_to_first_token_seconds_count", &[]);
    assert_eq!(first, Some(0.0), "no stream was requested");
}

#[test]
fn stream_has_a_time_to_its_first_token_and_per_output_token() {
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::start("m", |_| chat_events(&["a", "b", "c"])).unwrap();
    sandbox.file("llmlb.toml", config(&[backend.address], ""));
    let server = sandbox.serve("");
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"Hi"}]}"#;
    assert_eq!(server.post(CHAT, body).status(), 200);
    let page = Page::of(&server);
    let labels = [("model", "m"), ("backend", "b0")];
    for name in [
        "llmlb_time_to_first_token_seconds_count",
        "llmlb_time_per_output_token_seconds_count",
    ] {
        assert_eq!(page.sum(name, &labels), Some(1.0), "{name}\n{}", page.text);
    }
    let estimated = page.sum("llmlb_tokens_total", &[("source", "estimated")]);
    assert!(estimated > Some(0.0));
}

#[test]
fn failed_attempts_retries_and_ejections_are_counted() {
    let sandbox = testkit::sandbox!();
    let bad = FakeLlm::start("m", |_| Reply::json(503, "{}")).unwrap();
    let good = FakeLlm::start("m", |_| Reply::json(200, "{}")).unwrap();
    sandbox.file("llmlb.toml", config(&[bad.address, good.address], ""));
    let server = sandbox.serve("");
    until("the bad backend is ejected", || {
        assert_eq!(
            server.send(&Request::chat("m", "Hi")).unwrap().status(),
            200
        );
        Page::of(&server).sum("llmlb_ejections_total", &[("backend", "b0")]) > Some(0.0)
    });
    let page = Page::of(&server);
    let failed = page.sum(
        "llmlb_attempts_total",
        &[("backend", "b0"), ("result", "failed")],
    );
    assert!(failed >= Some(3.0), "{}", page.text);
    assert_eq!(page.sum("llmlb_retries_total", &[]), failed);
    assert_eq!(
        page.sum(
            "llmlb_attempts_total",
            &[("backend", "b1"), ("result", "failed")]
        ),
        Some(0.0)
    );
    let state = |state| {
        page.sum(
            "llmlb_backend_state",
            &[("backend", "b0"), ("state", state)],
        )
    };
    let states = [state("up"), state("ejected"), state("down")];
    assert_eq!(states, [Some(0.0), Some(1.0), Some(0.0)]);
    assert_eq!(
        page.sum("llmlb_backend_up", &[("backend", "b0")]),
        Some(1.0)
    );
}

#[test]
fn backend_that_dies_is_down() {
    let sandbox = testkit::sandbox!();
    let address = address();
    let start = || {
        let builder = FakeLlm::builder(&["m"]).at(address);
        builder.start(|_| Reply::json(200, "{}")).unwrap()
    };
    let backend = start();
    sandbox.file("llmlb.toml", config(&[address], ""));
    let server = sandbox.serve("");
    let up = || Page::of(&server).sum("llmlb_backend_up", &[("backend", "b0")]);
    assert_eq!(up(), Some(1.0));
    drop(backend);
    until("the backend is down", || up() == Some(0.0));
    let page = Page::of(&server);
    let down = [("backend", "b0"), ("state", "down")];
    assert_eq!(page.sum("llmlb_backend_state", &down), Some(1.0));
    assert_eq!(
        page.sum("llmlb_backend_models", &[("backend", "b0")]),
        Some(0.0)
    );
    let _backend = start();
    until("the backend is up again", || up() == Some(1.0));
}

#[test]
fn waiting_requests_are_counted_while_they_wait_and_by_their_time() {
    let sandbox = testkit::sandbox!();
    let gate = Gate::new();
    let held = gate.clone();
    let backend = FakeLlm::start("m", move |_| {
        held.wait();
        Reply::json(200, "{}")
    });
    let backend = backend.unwrap();
    let config = config(&[backend.address], "") + "max_concurrent = 1\n";
    sandbox.file("llmlb.toml", config);
    let server = sandbox.serve("");
    let body = r#"{"model":"m"}"#;
    let mut clients: Vec<Connection> = (0..2).map(|_| Connection::open(server.address)).collect();
    for client in &mut clients {
        client.send_post(CHAT, body);
    }
    let gauge = |name| Page::of(&server).sum(name, &[]);
    until("a request waits", || {
        gauge("llmlb_queue_length") == Some(1.0)
    });
    assert_eq!(gauge("llmlb_in_flight"), Some(2.0));
    assert_eq!(gauge("llmlb_backend_in_flight"), Some(1.0));
    assert_eq!(gauge("llmlb_backend_max_concurrent"), Some(1.0));
    gate.open();
    for client in &mut clients {
        assert_eq!(client.answer().status(), 200);
    }
    let page = Page::of(&server);
    assert_eq!(page.sum("llmlb_queue_length", &[]), Some(0.0));
    assert_eq!(
        page.sum("llmlb_queue_seconds_count", &[("model", "m")]),
        Some(2.0)
    );
    assert!(page.sum("llmlb_queue_seconds_sum", &[]) > Some(0.0));
    let alone = page.sum("llmlb_choice_total", &[("why", "only_candidate")]);
    assert_eq!(alone, Some(2.0));
}
