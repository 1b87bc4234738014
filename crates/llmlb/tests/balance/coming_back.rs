//! Who was away is asked again soon. How soon is printed; scripts hold it against a bound. (L8)

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::real::Real;
use testkit::{
    FakeLlm, LlmlbServer, Received,
    backends::{
        ASK, CHAT, Occupied, UNPROBED, address, backend, backend_at, code, count, ok, serve,
        served_by,
    },
    until, wire,
};

/// Asks until this backend answers; no other answer may be an error.
#[expect(
    clippy::print_stderr,
    reason = "how long it took is for scripts to judge"
)]
fn until_it_serves(what: &str, server: &LlmlbServer, label: &str) {
    let from = Instant::now();
    until(what, || {
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
        served_by(&answer) == label
    });
    eprintln!("{what}: after {} ms", from.elapsed().as_millis());
}

#[test]
fn a_backend_that_was_started_anew_gets_requests_again() {
    let place = testkit::sandbox!();
    let (mut victim, other) = (Real::start(), Real::start());
    let server = place.serve(&format!("{} {}", victim.flag(), other.flag()));
    victim.kill();
    until("it counts as down", || {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
        server.status()["backends"][0]["up"] == false
    });
    victim.restart();
    until_it_serves("a restarted backend is back", &server, "backend-1");
}

#[test]
fn a_backend_that_is_back_is_used_before_anybody_has_asked_how_it_is() {
    let place = testkit::sandbox!();
    let mut only = Real::start();
    let server = place.serve(&only.flag());
    for _ in 0..5 {
        only.kill();
        until("it counts as down", || {
            assert_ne!(server.post(CHAT, ASK).status(), 200);
            server.status()["backends"][0]["up"] == false
        });
        only.restart();
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
}

#[test]
fn the_only_backend_gets_requests_again_when_it_is_back() {
    let place = testkit::sandbox!();
    let mut only = Real::start();
    let server = place.serve(&only.flag());
    only.kill();
    let answer = server.post(CHAT, ASK);
    assert!([502, 503].contains(&answer.status()), "{answer:?}");
    only.restart();
    let from = Instant::now();
    until("it is back", || server.post(CHAT, ASK).status() == 200);
    eprintln!(
        "the only backend is back: after {} ms",
        from.elapsed().as_millis()
    );
}

/// A backend that fails questions, but not probes, as long as it is ill.
fn patient() -> (FakeLlm, Arc<AtomicBool>) {
    let ill = Arc::new(AtomicBool::new(true));
    let is_ill = Arc::clone(&ill);
    let mock = backend(move |request: &Received, stream: &mut TcpStream| {
        if is_ill.load(Ordering::SeqCst) {
            wire::json(stream, 503, "ill");
        } else {
            ok(request, stream);
        }
    });
    (mock, ill)
}

#[test]
fn a_backend_that_only_fails_questions_is_left_alone_until_it_is_well() {
    let place = testkit::sandbox!();
    let ((patient, ill), other) = (patient(), backend(ok));
    let server = serve(&place, &[&patient, &other], UNPROBED);
    for _ in 0..300 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    let (bad, good) = (count(&patient), count(&other));
    assert_eq!(good, 300);
    assert!(bad >= 3, "it is believed in at first: {bad}");
    assert!(bad < 60, "it was asked {bad} times for nothing");
    ill.store(false, Ordering::SeqCst);
    let label = patient.address.to_string();
    until_it_serves("a mended backend is back", &server, &label);
    // For good, not for one trial.
    let before = count(&patient);
    until("it has its share", || {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
        count(&patient) > before + 10
    });
}

#[test]
fn if_all_have_failed_they_are_asked_all_the_same() {
    let place = testkit::sandbox!();
    let patients = [patient(), patient()];
    let server = serve(&place, &[&patients[0].0, &patients[1].0], UNPROBED);
    for _ in 0..20 {
        let answer = server.post(CHAT, ASK);
        assert_eq!((answer.status(), answer.text().as_str()), (503, "ill"));
    }
    for (_, ill) in &patients {
        ill.store(false, Ordering::SeqCst);
    }
    assert_eq!(server.post(CHAT, ASK).status(), 200);
}

#[test]
fn three_failures_in_a_row_send_a_backend_away_and_fewer_do_not() {
    let place = testkit::sandbox!();
    let ((patient, ill), mut other) = (patient(), Occupied::new());
    ill.store(false, Ordering::SeqCst);
    let server = other.beside(&place, &patient);
    let ask = |is_ill, expected| {
        ill.store(is_ill, Ordering::SeqCst);
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
    // The other one works, and is worth waiting for; but nobody may wait.
    assert_eq!(code(&ask(false, 429)), "queue_full");
    until("it is tried again", || {
        server.post(CHAT, ASK).status() == 200
    });
    ask(false, 200);
}

#[test]
fn a_backend_that_comes_late_gets_requests_without_being_asked_for() {
    let place = testkit::sandbox!();
    let (late, other) = (address(), backend(ok));
    let server = place.serve(&format!(
        "--backend http://{late} --backend {}",
        other.url()
    ));
    assert_eq!(server.post(CHAT, ASK).status(), 200);
    let _late = backend_at(late, &["m"], ok);
    until_it_serves("a late backend is there", &server, "backend-1");
}
