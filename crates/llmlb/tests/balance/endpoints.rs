//! A backend that does not serve an endpoint is not asked for it while others can be. (L6)

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

/// A backend that knows all endpoints but this one.
fn without(path: &'static str, status: u16, error: &'static str) -> FakeLlm {
    backend(move |request: &Received, stream: &mut TcpStream| {
        if request.target() == path {
            wire::json(stream, status, error);
        } else {
            ok(request, stream);
        }
    })
}

/// How often this endpoint was asked for.
fn asked_for(mock: &FakeLlm, path: &str) -> usize {
    asked(mock)
        .iter()
        .filter(|one| one.target() == path)
        .count()
}

/// Sends requests to an endpoint until the first backend has received one, then more.
fn send(server: &LlmlbServer, path: &str, first: &FakeLlm) {
    let before = asked_for(first, path);
    until("it was asked", || {
        server.post(path, ASK);
        asked_for(first, path) > before
    });
    for _ in 0..30 {
        server.post(path, ASK);
    }
}

#[test]
fn backend_without_an_endpoint_is_asked_for_it_once() {
    for (path, status) in [
        (MESSAGES, 404),
        ("/v1/responses", 405),
        ("/v1/embeddings", 501),
        ("/v1/audio/speech", 404),
        ("/v1/pooling", 404),
    ] {
        let place = testkit::sandbox!();
        let (lacking, other) = (without(path, status, r#"{"detail":"X"}"#), backend(ok));
        let server = serve(&place, &[&lacking, &other], UNPROBED);
        send(&server, path, &lacking);
        assert_eq!(asked_for(&lacking, path), 1, "{path}");
        // It serves other endpoints as before.
        send(&server, CHAT, &lacking);
    }
}

#[test]
fn error_about_a_model_says_nothing_about_the_endpoint() {
    let place = testkit::sandbox!();
    let error = r#"{"error":{"message":"The model `m` does not exist."}}"#;
    let (lacking, other) = (without(CHAT, 404, error), backend(ok));
    let server = serve(&place, &[&lacking, &other], UNPROBED);
    for _ in 0..3 {
        send(&server, CHAT, &lacking);
    }
    let answer = server.post(CHAT, ASK);
    if answer.status() == 404 {
        assert_eq!(answer.text(), error);
    }
}

#[test]
fn endpoint_that_was_served_once_is_not_given_up() {
    let place = testkit::sandbox!();
    let lost = Arc::new(AtomicBool::new(false));
    let is_lost = Arc::clone(&lost);
    let first = backend(move |_, stream| {
        let status = if is_lost.load(Ordering::SeqCst) {
            404
        } else {
            200
        };
        wire::json(stream, status, "{}");
    });
    let other = backend(ok);
    let server = serve(&place, &[&first, &other], UNPROBED);
    send(&server, CHAT, &first);
    lost.store(true, Ordering::SeqCst);
    for _ in 0..3 {
        send(&server, CHAT, &first);
    }
}

#[test]
fn endpoint_that_no_backend_serves_is_asked_for_all_the_same() {
    let place = testkit::sandbox!();
    let error = r#"{"detail":"Not Found"}"#;
    let all = [without(MESSAGES, 404, error), without(MESSAGES, 404, error)];
    let server = serve(&place, &[&all[0], &all[1]], UNPROBED);
    for _ in 0..10 {
        let answer = server.post(MESSAGES, ASK);
        assert_eq!((answer.status(), answer.text().as_str()), (404, error));
    }
    let asked: usize = all.iter().map(|one| asked_for(one, MESSAGES)).sum();
    assert_eq!(asked, 10);
}

#[test]
fn request_waits_for_a_backend_that_serves_the_endpoint() {
    let place = testkit::sandbox!();
    let lacking = without(MESSAGES, 404, r#"{"detail":"Not Found"}"#);
    let (go_on, wait) = channel::<()>();
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
    let server = serve_file(&place, &file);
    send(&server, MESSAGES, &lacking);
    let before = count(&narrow);
    let mut holding = Connection::open(server.address);
    holding.send_post(MESSAGES, r#"{"model":"m","x":"hold"}"#);
    until("its slot is taken", || count(&narrow) > before);
    let mut waiting = Connection::open(server.address);
    waiting.send_post(MESSAGES, ASK);
    until("a request waits", || server.status()["waiting"] == 1);
    go_on.send(()).unwrap();
    assert_eq!(holding.answer().status(), 200);
    assert_eq!(waiting.answer().status(), 200);
    assert_eq!(asked_for(&lacking, MESSAGES), 1);
}

#[test]
fn restarted_backend_is_asked_for_the_endpoint_again() {
    let place = testkit::sandbox!();
    let at = address();
    let lacking = backend_at(at, &["m"], |_, stream| wire::json(stream, 404, "{}"));
    let other = backend_of(&["m"], ok);
    let settings = [("LLMLB_PROBE_INTERVAL", "100ms")];
    let server = serve(&place, &[&lacking, &other], &settings);
    send(&server, MESSAGES, &lacking);
    assert_eq!(asked_for(&lacking, MESSAGES), 1);
    lacking.stop();
    until("it is down", || {
        server.status()["backends"][0]["up"] == false
    });
    let back = backend_at(at, &["m"], ok);
    until("it is asked again", || {
        assert_eq!(server.post(MESSAGES, ASK).status(), 200);
        asked_for(&back, MESSAGES) > 0
    });
}
