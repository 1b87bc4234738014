//! Choice of the backend for a request. (promises L6, L7, L8)

use testkit::backends::{CHAT, ok};
use testkit::{Connection, FakeLlm, free_port, until, wire};

fn body_for(model: &str) -> String {
    format!(r#"{{"model":"{model}"}}"#)
}

#[test]
fn model_list_is_the_union_and_requests_go_to_a_backend_with_the_model() {
    let sandbox = testkit::sandbox!();
    let a = FakeLlm::handling(&["both", "only-a", "org/name"], ok);
    let b = FakeLlm::handling(&["both", "only-b"], ok);
    let server = sandbox.serve(&format!("--backend {} --backend {}", a.url(), b.url()));

    let list = server.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["both", "only-a", "org/name", "only-b"]);
    assert_eq!(
        list["data"][0]["owned_by"], "testkit",
        "the owner that the backend reports"
    );

    for name in ["only-a", "org/name", "org%2Fname"] {
        let model = server.get(&format!("/v1/models/{name}")).json();
        assert_eq!(model["id"], name.replace("%2F", "/"));
    }
    for _ in 0..3 {
        assert_eq!(server.post(CHAT, &body_for("only-a")).status(), 200);
        assert_eq!(
            server.post("/v1/embeddings", &body_for("only-b")).status(),
            200
        );
    }
    assert_eq!((a.count(), b.count()), (3, 3));
}

#[test]
fn unknown_model_gets_a_404_that_lists_the_models() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["b", "a"], ok);
    let server = sandbox.serve(&format!("--backend {}", mock.url()));
    for answer in [
        server.post(CHAT, &body_for("gpt-5")),
        server.get("/v1/models/gpt-5"),
    ] {
        assert_eq!(answer.status(), 404);
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "model_not_found");
        assert_eq!(error["param"], "model");
        let message = "The model `gpt-5` does not exist. Available: a, b.";
        assert_eq!(error["message"], message);
    }
    assert_eq!(mock.count(), 0);
}

#[test]
fn backends_with_the_same_model_share_its_requests() {
    let sandbox = testkit::sandbox!();
    let mocks = [0, 1, 2].map(|_| FakeLlm::handling(&["m"], ok));
    let urls: Vec<_> = mocks
        .iter()
        .map(|mock| format!("--backend {}", mock.url()))
        .collect();
    let server = sandbox.serve(&urls.join(" "));
    for _ in 0..60 {
        assert_eq!(server.post(CHAT, &body_for("m")).status(), 200);
    }
    for mock in &mocks {
        // Shares depend on chance and latency. With this number of requests, a backend that works
        // gets none with a chance of one in ten billion.
        assert!(mock.count() > 0);
    }
}

#[test]
fn busy_backend_gets_no_request_while_another_is_idle() {
    let sandbox = testkit::sandbox!();
    let slow = FakeLlm::handling(&["m"], |_, stream| {
        // This response never ends, so the backend stays busy for the whole test.
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    let quick = FakeLlm::handling(&["m"], ok);
    let server = sandbox.serve(&format!(
        "--backend {} --backend {}",
        slow.url(),
        quick.url()
    ));
    let mut stuck = Connection::open(server.address);
    let is_busy = || server.status()["backends"][0]["in_flight"] == 1;
    until("the slow backend has a request", || {
        if !is_busy() {
            stuck = Connection::open(server.address);
            stuck.send_post(CHAT, &body_for("m"));
            assert_eq!(stuck.head().status(), 200);
        }
        is_busy()
    });
    let before = quick.count();
    for _ in 0..10 {
        assert_eq!(server.post(CHAT, &body_for("m")).status(), 200);
    }
    assert_eq!(quick.count(), before + 10);
}

#[test]
fn request_without_a_model_goes_to_the_first_backend() {
    let sandbox = testkit::sandbox!();
    let (a, b) = (FakeLlm::handling(&["a"], ok), FakeLlm::handling(&["b"], ok));
    let server = sandbox.serve(&format!("--backend {} --backend {}", a.url(), b.url()));
    for path in ["/v1/files", "/v1/batches/batch_1"] {
        assert_eq!(server.get(path).status(), 200);
    }
    assert_eq!(server.post("/v1/whatever", "{}").status(), 200);
    assert_eq!((a.count(), b.count()), (3, 0));
}

#[test]
fn unreachable_backend_fails_no_request() {
    let sandbox = testkit::sandbox!();
    let (a, b) = (FakeLlm::handling(&["m"], ok), FakeLlm::handling(&["m"], ok));
    let mut command = sandbox.command(&format!(
        "serve -p 0 --backend {} --backend {}",
        a.url(),
        b.url()
    ));
    // No probe runs during the test, so only the failed requests can show that the backend is down.
    let server = sandbox.serve_with(command.env("LLMLB_PROBE_INTERVAL", "1h"));
    a.stop();
    for _ in 0..10 {
        assert_eq!(server.post(CHAT, &body_for("m")).status(), 200);
    }
    assert_eq!(b.count(), 10);
    let status = server.status();
    assert_eq!(status["backends"][0]["up"], false);
    assert_eq!(status["backends"][0]["error"], "connection refused");
}

#[test]
fn server_responds_503_while_every_backend_is_down_and_recovers() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], ok);
    let address = mock.address;
    let server = sandbox.serve(&format!("--backend {}", mock.url()));
    assert_eq!(server.get("/readyz").status(), 200);
    mock.stop();
    until("the backend is down", || {
        server.get("/readyz").status() == 503
    });
    let answer = server.post(CHAT, &body_for("m"));
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("1"));
    assert_eq!(answer.json()["error"]["code"], "all_backends_down");
    assert_eq!(server.post(CHAT, &body_for("unknown")).status(), 404);
    assert_eq!(
        server.get("/healthz").status(),
        200,
        "the server itself is healthy"
    );

    let again = FakeLlm::builder(&["m", "new"]).at(address).handle(ok);
    until("the backend is up again", || {
        server.post(CHAT, &body_for("m")).status() == 200
    });
    until("the new model is known", || {
        server.post(CHAT, &body_for("new")).status() == 200
    });
    assert!(again.count() >= 2);
}

#[test]
fn server_starts_while_its_backend_is_down() {
    let sandbox = testkit::sandbox!();
    let port = free_port();
    let server = sandbox.serve(&format!("--backend http://127.0.0.1:{port}"));
    assert!(
        server
            .process
            .stderr()
            .contains("is down: connection refused")
    );
    assert_eq!(server.get("/readyz").status(), 503);
    // llmlb does not know the models of a backend that was never up. It must ask the client to
    // retry instead of reporting an unknown model.
    let answer = server.post(CHAT, &body_for("m"));
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("1"));
    let _mock = FakeLlm::builder(&["m"])
        .at(([127, 0, 0, 1], port).into())
        .handle(ok);
    until("the backend is up", || {
        server.post(CHAT, &body_for("m")).status() == 200
    });
}

#[test]
fn configured_models_are_served_without_a_model_list() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling_all(|request, stream| {
        let status = if request.target() == "/v1/models" {
            404
        } else {
            200
        };
        wire::json(stream, status, "{}");
    });
    let config = format!(
        "[[backend]]\nurl = \"{}\"\nmodels = [\"claude\"]\n",
        mock.url()
    );
    std::fs::write(sandbox.path("llmlb.toml"), config).unwrap();
    let server = sandbox.serve("");
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], "claude");
    assert_eq!(
        server.post("/v1/messages", &body_for("claude")).status(),
        200
    );
}

#[test]
fn paths_outside_of_v1_are_not_forwarded() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], ok);
    let server = sandbox.serve(&format!("--backend {}", mock.url()));
    for path in ["/v1", "/v2/models", "/metric", "//v2/models"] {
        let answer = server.get(path);
        assert_eq!(answer.status(), 404, "{path}");
        assert_eq!(answer.json()["error"]["code"], "not_found");
    }
    // Clients of Ollama's API can only parse errors in its format, so llmlb must use it even if no
    // backend is Ollama.
    for answer in [
        server.get("/api/tags"),
        server.post("/api/chat", &body_for("m")),
    ] {
        assert_eq!(answer.status(), 404);
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
    assert_eq!(server.post("/healthz", "").status(), 405);
    assert!(server.get("/").text().starts_with("llmlb "));
    assert_eq!(mock.count(), 0);
}

#[test]
fn request_in_a_loop_of_servers_is_rejected() {
    let sandbox = testkit::sandbox!();
    let ports = [free_port(), free_port()];
    // Each of two servers has the other one as its only backend. Without a check, a request would
    // go back and forth forever.
    let serve = |own: usize| {
        let config = format!(
            "[[backend]]\nurl = \"http://127.0.0.1:{}\"\nmodels = [\"m\"]\n",
            ports[1 - own]
        );
        let file = sandbox.path(&format!("{own}.toml"));
        std::fs::write(&file, config).unwrap();
        let words = format!("serve -p {} --config {own}.toml", ports[own]);
        sandbox.serve_with(&mut sandbox.command(&words))
    };
    let (first, second) = (serve(0), serve(1));
    until("both servers are ready", || {
        first.get("/readyz").status() == 200 && second.get("/readyz").status() == 200
    });
    let answer = first.post(CHAT, &body_for("m"));
    assert_eq!(answer.status(), 508);
    assert_eq!(answer.json()["error"]["code"], "loop_detected");
    assert!(first.status()["requests"].as_u64() < Some(10));
}

#[test]
fn server_that_is_its_own_backend_does_not_start() {
    let sandbox = testkit::sandbox!();
    let port = free_port();
    for (host, url) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("::1", "[::1]"),
    ] {
        let outcome = sandbox.run(&format!(
            "serve -p {port} -H {host} --backend http://{url}:{port}"
        ));
        assert_eq!(outcome.code, Some(1));
        assert!(
            outcome.stderr.contains("is this server itself"),
            "{}",
            outcome.stderr
        );
        assert_eq!(sandbox.lock_files(), [""; 0]);
    }
}

#[test]
fn connection_closed_by_the_backend_fails_no_request() {
    let sandbox = testkit::sandbox!();
    // The backend closes each connection after a response that allows reuse. A request that is sent
    // on such a connection at this moment must be sent again and not fail.
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        wire::json(stream, 200, "{}");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = sandbox.serve(&format!("--backend {}", mock.url()));
    let mut client = Connection::open(server.address);
    for _ in 0..300 {
        client.send_post(CHAT, &body_for("m"));
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn non_idempotent_request_is_sent_once() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = sandbox.serve(&format!("--backend {}", mock.url()));
    assert_eq!(server.post("/v1/batches", &body_for("m")).status(), 502);
    assert_eq!(mock.count(), 1);
}

#[test]
fn streamed_body_is_sent_to_one_backend_only() {
    let sandbox = testkit::sandbox!();
    let cut = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let (a, b) = (FakeLlm::handling(&["m"], ok), FakeLlm::handling(&["m"], ok));
    let words = [&a, &cut, &b].map(|mock| format!("--backend {}", mock.url()));
    let words = format!("serve -p 0 {}", words.join(" "));
    let server = sandbox.serve_with(sandbox.command(&words).env("LLMLB_PROBE_INTERVAL", "1h"));
    // A request may be retried after a failed connect: its body was not sent.
    a.stop();
    let mut client = Connection::open(server.address);
    client.send(
        "PUT /v1/files HTTP/1.1\r\nhost: localhost\r\ncontent-type: audio/wav\r\n\
         content-length: 4\r\n\r\nbody",
    );
    assert_eq!(client.answer().status(), 502);
    assert_eq!((cut.count(), b.count()), (1, 0));
}

#[test]
fn backend_is_down_after_several_bad_probes_but_not_after_one() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let sandbox = testkit::sandbox!();
    let bad = Arc::new(AtomicUsize::new(0));
    let bad_left = Arc::clone(&bad);
    let probes = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&probes);
    let mock = FakeLlm::handling_all(move |_, stream| {
        count.fetch_add(1, Ordering::SeqCst);
        let take = |left: usize| left.checked_sub(1);
        let is_bad = bad_left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_ok();
        let list = r#"{"data":[{"id":"m"}]}"#;
        wire::json(stream, if is_bad { 500 } else { 200 }, list);
    });
    let words = format!("serve -p 0 --backend {}", mock.url());
    let server = sandbox.serve_with(sandbox.command(&words).env("LLMLB_PROBE_INTERVAL", "100ms"));
    bad.store(1, Ordering::SeqCst);
    let before = probes.load(Ordering::SeqCst);
    until("the backend is probed again", || {
        probes.load(Ordering::SeqCst) > before + 2
    });
    assert!(
        !server.process.stderr().contains("is down"),
        "{}",
        server.process.stderr()
    );
    bad.store(1000, Ordering::SeqCst);
    until("the backend is down", || {
        server
            .process
            .stderr()
            .contains("is down: it responded 500 Internal Server Error to /v1/models")
    });
}

#[test]
fn every_error_has_its_code_in_a_header_and_where_the_api_has_a_field_for_it() {
    let sandbox = testkit::sandbox!();
    let of_backend =
        "HTTP/1.1 400 Bad Request\r\nx-llmlb-error: forged\r\ncontent-length: 2\r\n\r\n{}";
    let raw = testkit::raw::heads(move |_, reader| {
        use std::io::Write;
        reader.get_mut().write_all(of_backend.as_bytes()).unwrap();
    });
    let file = format!("[[backend]]\nurl = \"{}\"\nkind = \"ollama\"\n", raw.url());
    let server = testkit::backends::serve_file(&sandbox, &file);
    for (path, pointer) in [
        (CHAT, Some("/error/code")),
        ("/v1/messages", Some("/error/details/error_code")),
        ("/api/chat", None),
    ] {
        let answer = server.post(path, &body_for("unknown"));
        assert_eq!(answer.status(), 404, "{path}");
        let code = answer.head.header("x-llmlb-error");
        assert_eq!(code.as_deref(), Some("model_not_found"), "{path}");
        if let Some(pointer) = pointer {
            assert_eq!(answer.json().pointer(pointer).unwrap(), "model_not_found");
        }
    }
    let answer = server.get("/v1/files/file-1");
    assert_eq!(answer.status(), 400);
    assert_eq!(answer.head.header("x-llmlb-error"), None, "{answer:?}");
}

#[test]
fn model_that_a_silent_backend_may_serve_is_described_by_a_503() {
    let sandbox = testkit::sandbox!();
    let mock = FakeLlm::handling(&["a"], ok);
    let silent = format!("http://127.0.0.1:{}", free_port());
    let server = sandbox.serve(&format!("--backend {} --backend {silent}", mock.url()));
    for answer in [
        server.post(CHAT, &body_for("b")),
        server.get("/v1/models/b"),
    ] {
        assert_eq!(answer.status(), 503, "{answer:?}");
        assert_eq!(answer.json()["error"]["code"], "all_backends_down");
        assert_eq!(answer.head.header("retry-after").as_deref(), Some("1"));
    }
    assert_eq!(server.get("/v1/models/a").status(), 200);
}
