//! Which backend gets a request. (L6, L7, L8 as far as it goes)

use std::net::TcpStream;
use testkit::{Connection, FakeLlm, Received, free_port, until, wire};

const CHAT: &str = "/v1/chat/completions";

fn ok(_: &Received, stream: &mut TcpStream) {
    wire::json(stream, 200, "{}");
}

fn ask(model: &str) -> String {
    format!(r#"{{"model":"{model}"}}"#)
}

#[test]
fn models_are_the_union_and_requests_go_to_who_serves_them() {
    let place = testkit::sandbox!();
    let a = FakeLlm::handling(&["both", "only-a", "org/name"], ok);
    let b = FakeLlm::handling(&["both", "only-b"], ok);
    let server = place.serve(&format!("--backend {} --backend {}", a.url(), b.url()));

    let list = server.get("/v1/models").json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["id"])
        .collect();
    assert_eq!(ids, ["both", "only-a", "org/name", "only-b"]);
    assert_eq!(
        list["data"][0]["owned_by"], "testkit",
        "as the backend describes it"
    );

    for name in ["only-a", "org/name", "org%2Fname"] {
        let one = server.get(&format!("/v1/models/{name}")).json();
        assert_eq!(one["id"], name.replace("%2F", "/"));
    }
    for _ in 0..3 {
        assert_eq!(server.post(CHAT, &ask("only-a")).status(), 200);
        assert_eq!(server.post("/v1/embeddings", &ask("only-b")).status(), 200);
    }
    assert_eq!((a.count(), b.count()), (3, 3));
}

#[test]
fn an_unknown_model_is_answered_with_what_there_is() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["b", "a"], ok);
    let server = place.serve(&format!("--backend {}", mock.url()));
    for answer in [
        server.post(CHAT, &ask("gpt-5")),
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
fn backends_that_serve_the_same_model_share_the_work() {
    let place = testkit::sandbox!();
    let mocks = [0, 1, 2].map(|_| FakeLlm::handling(&["m"], ok));
    let urls: Vec<_> = mocks
        .iter()
        .map(|one| format!("--backend {}", one.url()))
        .collect();
    let server = place.serve(&urls.join(" "));
    for _ in 0..60 {
        assert_eq!(server.post(CHAT, &ask("m")).status(), 200);
    }
    for mock in &mocks {
        // How much each gets is a matter of chance and of how quick it was; that one gets
        // nothing at all would happen once in ten billion times.
        assert!(mock.count() > 0);
    }
}

#[test]
fn a_busy_backend_gets_no_more_while_another_is_idle() {
    let place = testkit::sandbox!();
    let slow = FakeLlm::handling(&["m"], |_, stream| {
        // Begins, and never ends.
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    let quick = FakeLlm::handling(&["m"], ok);
    let server = place.serve(&format!(
        "--backend {} --backend {}",
        slow.url(),
        quick.url()
    ));
    let mut stuck = Connection::open(server.address);
    let busy = || server.status()["backends"][0]["in_flight"] == 1;
    until("the slow one has a request", || {
        if !busy() {
            stuck = Connection::open(server.address);
            stuck.send_post(CHAT, &ask("m"));
            assert_eq!(stuck.head().status(), 200);
        }
        busy()
    });
    let before = quick.count();
    for _ in 0..10 {
        assert_eq!(server.post(CHAT, &ask("m")).status(), 200);
    }
    assert_eq!(quick.count(), before + 10);
}

#[test]
fn a_request_that_names_no_model_goes_to_the_first_backend() {
    let place = testkit::sandbox!();
    let (a, b) = (FakeLlm::handling(&["a"], ok), FakeLlm::handling(&["b"], ok));
    let server = place.serve(&format!("--backend {} --backend {}", a.url(), b.url()));
    for path in ["/v1/files", "/v1/batches/batch_1"] {
        assert_eq!(server.get(path).status(), 200);
    }
    assert_eq!(server.post("/v1/whatever", "{}").status(), 200);
    assert_eq!((a.count(), b.count()), (3, 0));
}

#[test]
fn a_backend_that_cannot_be_reached_costs_no_request() {
    let place = testkit::sandbox!();
    let (a, b) = (FakeLlm::handling(&["m"], ok), FakeLlm::handling(&["m"], ok));
    let mut command = place.command(&format!(
        "serve -p 0 --backend {} --backend {}",
        a.url(),
        b.url()
    ));
    // Only the requests themselves can find out.
    let server = place.serve_with(command.env("LLMLB_PROBE_INTERVAL", "1h"));
    a.stop();
    for _ in 0..10 {
        assert_eq!(server.post(CHAT, &ask("m")).status(), 200);
    }
    assert_eq!(b.count(), 10);
    let status = server.status();
    assert_eq!(status["backends"][0]["up"], false);
    assert_eq!(status["backends"][0]["error"], "connection refused");
}

#[test]
fn when_every_backend_is_down_it_says_so_and_recovers_by_itself() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], ok);
    let address = mock.address;
    let server = place.serve(&format!("--backend {}", mock.url()));
    assert_eq!(server.get("/readyz").status(), 200);
    mock.stop();
    until("it is seen to be down", || {
        server.get("/readyz").status() == 503
    });
    let answer = server.post(CHAT, &ask("m"));
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("1"));
    assert_eq!(answer.json()["error"]["code"], "all_backends_down");
    assert_eq!(server.post(CHAT, &ask("unknown")).status(), 404);
    assert_eq!(
        server.get("/healthz").status(),
        200,
        "the server itself is well"
    );

    let again = FakeLlm::builder(&["m", "new"]).at(address).handle(ok);
    until("it is back", || {
        server.post(CHAT, &ask("m")).status() == 200
    });
    until("its new model is known", || {
        server.post(CHAT, &ask("new")).status() == 200
    });
    assert!(again.count() >= 2);
}

#[test]
fn a_backend_that_is_not_there_yet_is_no_reason_not_to_start() {
    let place = testkit::sandbox!();
    let port = free_port();
    let server = place.serve(&format!("--backend http://127.0.0.1:{port}"));
    assert!(
        server
            .process
            .stderr()
            .contains("is down: connection refused")
    );
    assert_eq!(server.get("/readyz").status(), 503);
    // It may serve any model, for all we know: clients should try again.
    let answer = server.post(CHAT, &ask("m"));
    assert_eq!(answer.status(), 503);
    assert_eq!(answer.head.header("retry-after").as_deref(), Some("1"));
    let _mock = FakeLlm::builder(&["m"])
        .at(([127, 0, 0, 1], port).into())
        .handle(ok);
    until("it is found", || {
        server.post(CHAT, &ask("m")).status() == 200
    });
}

#[test]
fn models_that_the_configuration_names_are_not_asked_for() {
    let place = testkit::sandbox!();
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
    std::fs::write(place.path("llmlb.toml"), config).unwrap();
    let server = place.serve("");
    assert_eq!(server.get("/v1/models").json()["data"][0]["id"], "claude");
    assert_eq!(server.post("/v1/messages", &ask("claude")).status(), 200);
}

#[test]
fn what_is_not_under_v1_is_not_passed_on() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], ok);
    let server = place.serve(&format!("--backend {}", mock.url()));
    for path in ["/v1", "/v2/models", "/metrics", "//v2/models"] {
        let answer = server.get(path);
        assert_eq!(answer.status(), 404, "{path}");
        assert_eq!(answer.json()["error"]["code"], "not_found");
    }
    // Nobody here is Ollama; but who asks so expects its form of an error.
    for answer in [server.get("/api/tags"), server.post("/api/chat", &ask("m"))] {
        assert_eq!(answer.status(), 404);
        assert!(answer.json()["error"].is_string(), "{answer:?}");
    }
    assert_eq!(server.post("/healthz", "").status(), 405);
    assert!(server.get("/").text().starts_with("llmlb "));
    assert_eq!(mock.count(), 0);
}

#[test]
fn a_request_that_comes_back_is_not_sent_on_again() {
    let place = testkit::sandbox!();
    let ports = [free_port(), free_port()];
    // Each names the other as its only backend.
    let serve = |own: usize| {
        let config = format!(
            "[[backend]]\nurl = \"http://127.0.0.1:{}\"\nmodels = [\"m\"]\n",
            ports[1 - own]
        );
        let file = place.path(&format!("{own}.toml"));
        std::fs::write(&file, config).unwrap();
        let words = format!("serve -p {} --config {own}.toml", ports[own]);
        place.serve_with(&mut place.command(&words))
    };
    let (first, second) = (serve(0), serve(1));
    until("they know each other", || {
        first.get("/readyz").status() == 200 && second.get("/readyz").status() == 200
    });
    let answer = first.post(CHAT, &ask("m"));
    assert_eq!(answer.status(), 508);
    assert_eq!(answer.json()["error"]["code"], "loop_detected");
    assert!(first.status()["requests"].as_u64() < Some(10));
}

#[test]
fn a_server_that_is_its_own_backend_does_not_start() {
    let place = testkit::sandbox!();
    let port = free_port();
    for (host, url) in [
        ("127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", "localhost"),
        ("::1", "[::1]"),
    ] {
        let outcome = place.run(&format!(
            "serve -p {port} -H {host} --backend http://{url}:{port}"
        ));
        assert_eq!(outcome.code, Some(1));
        assert!(
            outcome.stderr.contains("is this server itself"),
            "{}",
            outcome.stderr
        );
        assert_eq!(place.lock_files(), [""; 0]);
    }
}

#[test]
fn a_connection_that_the_backend_closed_costs_no_request() {
    let place = testkit::sandbox!();
    // It says that it keeps its connections, and closes them: the next request may meet one that
    // is just being closed.
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        wire::json(stream, 200, "{}");
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = place.serve(&format!("--backend {}", mock.url()));
    let mut client = Connection::open(server.address);
    for _ in 0..300 {
        client.send_post(CHAT, &ask("m"));
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn a_request_that_may_not_be_made_twice_is_not() {
    let place = testkit::sandbox!();
    let mock = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let server = place.serve(&format!("--backend {}", mock.url()));
    assert_eq!(server.post("/v1/batches", &ask("m")).status(), 502);
    assert_eq!(mock.count(), 1);
}

#[test]
fn a_body_that_passes_through_is_sent_once() {
    let place = testkit::sandbox!();
    let cut = FakeLlm::handling(&["m"], |_, stream| {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    let (a, b) = (FakeLlm::handling(&["m"], ok), FakeLlm::handling(&["m"], ok));
    let words = [&a, &cut, &b].map(|mock| format!("--backend {}", mock.url()));
    let words = format!("serve -p 0 {}", words.join(" "));
    let server = place.serve_with(place.command(&words).env("LLMLB_PROBE_INTERVAL", "1h"));
    // Nothing was sent to the one that is gone.
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
fn one_bad_answer_does_not_make_a_backend_count_as_down_but_several_do() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let place = testkit::sandbox!();
    let bad = Arc::new(AtomicUsize::new(0));
    let left = Arc::clone(&bad);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    let mock = FakeLlm::handling_all(move |_, stream| {
        count.fetch_add(1, Ordering::SeqCst);
        let take = |left: usize| left.checked_sub(1);
        let is_bad = left
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, take)
            .is_ok();
        let list = r#"{"data":[{"id":"m"}]}"#;
        wire::json(stream, if is_bad { 500 } else { 200 }, list);
    });
    let words = format!("serve -p 0 --backend {}", mock.url());
    let server = place.serve_with(place.command(&words).env("LLMLB_PROBE_INTERVAL", "100ms"));
    bad.store(1, Ordering::SeqCst);
    let before = asked.load(Ordering::SeqCst);
    until("it was asked again", || {
        asked.load(Ordering::SeqCst) > before + 2
    });
    assert!(
        !server.process.stderr().contains("is down"),
        "{}",
        server.process.stderr()
    );
    bad.store(1000, Ordering::SeqCst);
    until("it counts as down", || {
        server
            .process
            .stderr()
            .contains("is down: it responded 500 Internal Server Error to /v1/models")
    });
}
