//! Backends that recover get requests again soon. The tests print the time that it took. (promise L8)

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::backend_process::BackendProcess;
use testkit::{
    FakeLlm, LlmlbServer, Received,
    backends::{
        ASK, CHAT, Occupied, UNPROBED, address, backend, backend_at, code, count, ok, serve,
        served_by,
    },
    until, wire,
};

/// Sends requests until this backend serves one. Every response must be a success.
#[expect(
    clippy::print_stderr,
    reason = "reports the time until the backend served a request"
)]
fn until_served_by(event: &str, server: &LlmlbServer, label: &str) {
    let from = Instant::now();
    until(event, || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        served_by(&answer) == label
    });
    eprintln!("{event}: after {} ms", from.elapsed().as_millis());
}

#[test]
fn restarted_backend_gets_requests_again() {
    let sandbox = testkit::sandbox!();
    let (mut victim, other) = (BackendProcess::start(), BackendProcess::start());
    let server = sandbox.serve(&format!("{} {}", victim.flag(), other.flag()));
    victim.kill();
    until("the backend is marked down", || {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
        server.status()["backends"][0]["up"] == false
    });
    victim.restart();
    until_served_by(
        "the restarted backend serves a request",
        &server,
        "backend-1",
    );
}

#[test]
fn restarted_backend_is_used_before_the_next_probe() {
    let sandbox = testkit::sandbox!();
    let mut only = BackendProcess::start();
    let server = sandbox.serve(&only.flag());
    for _ in 0..5 {
        only.kill();
        until("the backend is marked down", || {
            assert_ne!(server.post(CHAT, ASK).status(), 200);
            server.status()["backends"][0]["up"] == false
        });
        only.restart();
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
}

#[test]
fn only_backend_gets_requests_again_after_a_restart() {
    let sandbox = testkit::sandbox!();
    let mut only = BackendProcess::start();
    let server = sandbox.serve(&only.flag());
    only.kill();
    let answer = server.post(CHAT, ASK);
    assert!([502, 503].contains(&answer.status()), "{answer:?}");
    only.restart();
    let from = Instant::now();
    until("the restarted backend responds", || {
        server.post(CHAT, ASK).status() == 200
    });
    eprintln!(
        "the only backend serves a request: after {} ms",
        from.elapsed().as_millis()
    );
}

/// Returns a backend that responds 503 to requests, but not to probes, while the flag is set.
fn failing_backend() -> (FakeLlm, Arc<AtomicBool>) {
    let failing = Arc::new(AtomicBool::new(true));
    let is_failing = Arc::clone(&failing);
    let mock = backend(move |request: &Received, stream: &mut TcpStream| {
        if is_failing.load(Ordering::SeqCst) {
            wire::json(stream, 503, "failing");
        } else {
            ok(request, stream);
        }
    });
    (mock, failing)
}

#[test]
fn backend_that_fails_requests_but_not_probes_is_ejected_until_it_recovers() {
    let sandbox = testkit::sandbox!();
    let ((failing_backend, failing), other) = (failing_backend(), backend(ok));
    let server = serve(&sandbox, &[&failing_backend, &other], UNPROBED);
    for _ in 0..300 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    let (bad, good) = (count(&failing_backend), count(&other));
    assert_eq!(good, 300);
    assert!(bad >= 3, "ejected after {bad} requests");
    assert!(bad < 60, "the failing backend got {bad} requests");
    failing.store(false, Ordering::SeqCst);
    let label = failing_backend.address.to_string();
    until_served_by("the recovered backend serves a request", &server, &label);
    // Wait for more than ten requests: an ejected backend gets single trial requests, a recovered
    // one its full share.
    let before = count(&failing_backend);
    until("the backend gets its share", || {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
        count(&failing_backend) > before + 10
    });
}

#[test]
fn requests_still_reach_backends_when_all_are_ejected() {
    let sandbox = testkit::sandbox!();
    let backends = [failing_backend(), failing_backend()];
    let server = serve(&sandbox, &[&backends[0].0, &backends[1].0], UNPROBED);
    for _ in 0..20 {
        let answer = server.post(CHAT, ASK);
        assert_eq!((answer.status(), answer.text().as_str()), (503, "failing"));
    }
    for (_, failing) in &backends {
        failing.store(false, Ordering::SeqCst);
    }
    assert_eq!(server.post(CHAT, ASK).status(), 200);
}

#[test]
fn three_consecutive_failures_eject_a_backend() {
    let sandbox = testkit::sandbox!();
    let ((failing_backend, failing), mut other) = (failing_backend(), Occupied::new());
    failing.store(false, Ordering::SeqCst);
    let server = other.beside(&sandbox, &failing_backend);
    let ask = |is_failing, expected| {
        failing.store(is_failing, Ordering::SeqCst);
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), expected, "{answer:?}");
        answer
    };
    for _ in 0..10 {
        ask(true, 503);
        ask(true, 503);
        ask(false, 200);
    }
    ask(true, 503);
    ask(true, 503);
    ask(true, 503);
    // The failing backend is ejected, so the request must not reach it. The healthy backend is at
    // its limit and there is no queue, so the client gets 429.
    assert_eq!(code(&ask(false, 429)), "queue_full");
    until("the backend is tried again", || {
        server.post(CHAT, ASK).status() == 200
    });
    ask(false, 200);
}

#[test]
fn backend_that_starts_after_the_server_gets_requests() {
    let sandbox = testkit::sandbox!();
    let (late, other) = (address(), backend(ok));
    let server = sandbox.serve(&format!(
        "--backend http://{late} --backend {}",
        other.url()
    ));
    assert_eq!(server.post(CHAT, ASK).status(), 200);
    let _late = backend_at(late, &["m"], ok);
    until_served_by("the late backend serves a request", &server, "backend-1");
}
