//! A backend that does not serve an endpoint gets no further requests to that endpoint while
//! another backend may serve it. (promise L6)

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use testkit::{
    Connection, DEADLINE, FakeLlm, LlmlbServer, Received,
    backends::{
        ASK, CHAT, UNPROBED, address, asked, backend, backend_at, backend_of, count, ok, serve,
        serve_file,
    },
    until, wire,
};

const MESSAGES: &str = "/v1/messages";

fn without(path: &'static str, status: u16, error: &'static str) -> FakeLlm {
    backend(move |request: &Received, stream: &mut TcpStream| {
        if request.target() == path {
            wire::json(stream, status, error);
        } else {
            ok(request, stream);
        }
    })
}

fn count_of(mock: &FakeLlm, path: &str) -> usize {
    asked(mock)
        .iter()
        .filter(|request| request.target() == path)
        .count()
}

/// Sends requests to an endpoint until the backend `first` has received one, and then 30 more.
/// After these, a test can check if llmlb avoids that backend.
fn send(server: &LlmlbServer, path: &str, first: &FakeLlm) {
    let before = count_of(first, path);
    until("the first backend gets a request", || {
        server.post(path, ASK);
        count_of(first, path) > before
    });
    for _ in 0..30 {
        server.post(path, ASK);
    }
}

#[test]
fn backend_without_an_endpoint_gets_one_request_for_it() {
    for (path, status) in [
        (MESSAGES, 404),
        ("/v1/responses", 405),
        ("/v1/embeddings", 501),
        ("/v1/audio/speech", 404),
        ("/v1/pooling", 404),
    ] {
        let sandbox = testkit::sandbox!();
        let (lacking, other) = (without(path, status, r#"{"detail":"X"}"#), backend(ok));
        let server = serve(&sandbox, &[&lacking, &other], UNPROBED);
        send(&server, path, &lacking);
        assert_eq!(count_of(&lacking, path), 1, "{path}");
        // Only the endpoint is avoided: the backend must still get chat requests, otherwise this
        // call waits forever.
        send(&server, CHAT, &lacking);
    }
}

#[test]
fn error_about_a_model_does_not_count_against_the_endpoint() {
    let sandbox = testkit::sandbox!();
    let error = r#"{"error":{"message":"The model `m` does not exist."}}"#;
    let (lacking, other) = (without(CHAT, 404, error), backend(ok));
    let server = serve(&sandbox, &[&lacking, &other], UNPROBED);
    for _ in 0..3 {
        send(&server, CHAT, &lacking);
    }
    let answer = server.post(CHAT, ASK);
    if answer.status() == 404 {
        assert_eq!(answer.text(), error);
    }
}

#[test]
fn endpoint_that_was_served_once_still_gets_requests() {
    let sandbox = testkit::sandbox!();
    let missing = Arc::new(AtomicBool::new(false));
    let is_missing = Arc::clone(&missing);
    let first = backend(move |_, stream| {
        let status = if is_missing.load(Ordering::SeqCst) {
            404
        } else {
            200
        };
        wire::json(stream, status, "{}");
    });
    let other = backend(ok);
    let server = serve(&sandbox, &[&first, &other], UNPROBED);
    send(&server, CHAT, &first);
    missing.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        send(&server, CHAT, &first);
    }
}

#[test]
fn endpoint_that_no_backend_serves_still_gets_requests() {
    let sandbox = testkit::sandbox!();
    let error = r#"{"detail":"Not Found"}"#;
    let all = [without(MESSAGES, 404, error), without(MESSAGES, 404, error)];
    let server = serve(&sandbox, &[&all[0], &all[1]], UNPROBED);
    for _ in 0..10 {
        let answer = server.post(MESSAGES, ASK);
        assert_eq!((answer.status(), answer.text().as_str()), (404, error));
    }
    let requests: usize = all.iter().map(|backend| count_of(backend, MESSAGES)).sum();
    assert_eq!(requests, 10);
}

#[test]
fn request_waits_for_a_backend_that_serves_the_endpoint() {
    let sandbox = testkit::sandbox!();
    let lacking = without(MESSAGES, 404, r#"{"detail":"Not Found"}"#);
    let (release, wait) = channel::<()>();
    let wait = Mutex::new(wait);
    let narrow = backend(move |request: &Received, stream: &mut TcpStream| {
        if request.text().contains("hold") {
            let _ = wait.lock().unwrap().recv_timeout(DEADLINE);
        }
        ok(request, stream);
    });
    let file = format!(
        "[upstream]\nprobe_interval = \"1h\"\n[[backend]]\nurl = \"{}\"\n\
         [[backend]]\nurl = \"{}\"\nmax_concurrent = 1\n",
        lacking.url(),
        narrow.url()
    );
    let server = serve_file(&sandbox, &file);
    send(&server, MESSAGES, &lacking);
    let before = count(&narrow);
    let mut holding = Connection::open(server.address);
    holding.send_post(MESSAGES, r#"{"model":"m","x":"hold"}"#);
    until("the only slot is taken", || count(&narrow) > before);
    let mut waiting = Connection::open(server.address);
    waiting.send_post(MESSAGES, ASK);
    until("a request waits", || server.status()["waiting"] == 1);
    release.send(()).unwrap();
    assert_eq!(holding.answer().status(), 200);
    assert_eq!(waiting.answer().status(), 200);
    assert_eq!(count_of(&lacking, MESSAGES), 1);
}

#[test]
fn restarted_backend_gets_requests_to_the_endpoint_again() {
    let sandbox = testkit::sandbox!();
    let at = address();
    let lacking = backend_at(at, &["m"], |_, stream| wire::json(stream, 404, "{}"));
    let other = backend_of(&["m"], ok);
    let settings = [("LLMLB_PROBE_INTERVAL", "100ms")];
    let server = serve(&sandbox, &[&lacking, &other], &settings);
    send(&server, MESSAGES, &lacking);
    assert_eq!(count_of(&lacking, MESSAGES), 1);
    lacking.stop();
    until("the backend is marked down", || {
        server.status()["backends"][0]["up"] == false
    });
    let restarted = backend_at(at, &["m"], ok);
    until("the restarted backend gets a request", || {
        assert_eq!(server.post(MESSAGES, ASK).status(), 200);
        count_of(&restarted, MESSAGES) > 0
    });
}
