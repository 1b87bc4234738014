//! 64 concurrent clients of one key get exactly as many requests as its limits allow. (promise L11)

use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use testkit::{FakeLlm, Gate, Reply, chat_completion, eventually, until};

use crate::world::{World, chat, limits, send, until_idle};

const CLIENTS: usize = 64;

#[test]
fn requests_per_minute_are_exact_under_64_clients() {
    const LIMIT: usize = 100;
    let sandbox = testkit::sandbox!();
    let backend = FakeLlm::answering("m").unwrap();
    let server = World::new(&sandbox, &[&backend], "rpm = 100").start();
    let answers = Mutex::new(Vec::new());
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                for _ in 0..5 {
                    let status = send(&server, &chat("")).status();
                    answers.lock().unwrap().push((status, began.elapsed()));
                }
            });
        }
    });
    let answers = answers.into_inner().unwrap();
    let admitted = answers.iter().filter(|(status, _)| *status == 200).count();
    let refused = answers.iter().filter(|(status, _)| *status == 429).count();
    assert_eq!(admitted + refused, CLIENTS * 5, "{answers:?}");
    assert_eq!(
        backend.count(),
        admitted,
        "refused requests reach no backend"
    );
    // The limit applies to 60 seconds. If a slow machine needs longer for all requests, the first
    // ones have left the window and more are admitted.
    let is_one_window = began.elapsed() < Duration::from_secs(60);
    assert!(
        admitted == LIMIT || !is_one_window && admitted > LIMIT,
        "{admitted}"
    );
    let status = limits(&server);
    assert_eq!(status["refused"]["requests"], refused, "{status}");
    // Refused requests must not be recorded, otherwise a client beyond its limit could fill the
    // disk. They are only counted.
    let count = || sandbox.records().unwrap().len();
    until("the records are written", || count() == admitted);
    assert_eq!(server.status()["refused"]["rate_limit_exceeded"], refused);
}

#[test]
fn concurrency_is_exact_under_64_clients() {
    const LIMIT: usize = 5;
    let sandbox = testkit::sandbox!();
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |_: &_| Reply::json(200, chat_completion("ok", 1, 1)).after_gate(&gate)
    };
    let backend = FakeLlm::start("m", script).unwrap();
    let server = World::new(&sandbox, &[&backend], "concurrency = 5").start();
    let statuses = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let status = send(&server, &chat("")).status();
                statuses.lock().unwrap().push(status);
            });
        }
        until("all other clients are refused", || {
            statuses.lock().unwrap().len() == CLIENTS - LIMIT
        });
        assert!(statuses.lock().unwrap().iter().all(|status| *status == 429));
        assert_eq!(limits(&server)["concurrency"]["used"], LIMIT);
        assert_eq!(send(&server, &chat("")).status(), 429);
        gate.open();
    });
    let admitted = statuses
        .lock()
        .unwrap()
        .iter()
        .filter(|status| **status == 200)
        .count();
    assert_eq!(admitted, LIMIT);
    assert_eq!(backend.count(), LIMIT);
    until_idle(&server);
    assert_eq!(
        send(&server, &chat("")).status(),
        200,
        "the slots are free again"
    );
}

#[test]
fn cancelled_request_releases_its_concurrency_and_its_reservation() {
    let sandbox = testkit::sandbox!();
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |_: &_| Reply::json(200, chat_completion("ok", 1, 1)).after_gate(&gate)
    };
    let backend = FakeLlm::start("m", script).unwrap();
    let server = World::new(&sandbox, &[&backend], "concurrency = 1\ntpm = 100000").start();
    let mut client = testkit::Http1::connect(server.address).unwrap();
    client
        .send(chat(r#","max_tokens":500"#).to_bytes())
        .unwrap();
    until("the request is at the backend", || backend.count() == 1);
    let reserved = limits(&server)["reserved"].as_u64().unwrap();
    assert!((500..600).contains(&reserved), "{reserved}");
    client.reset().unwrap();
    until_idle(&server);
    assert_eq!(limits(&server)["reserved"], 0);
    gate.open();
}

#[test]
fn request_that_fails_over_counts_once() {
    let sandbox = testkit::sandbox!();
    let failing = || FakeLlm::start("m", |_| Reply::json(503, "{}")).unwrap();
    let (first, second) = (failing(), failing());
    let server = World::new(&sandbox, &[&first, &second], "rpm = 10\ntpm = 100000").start();
    assert_eq!(send(&server, &chat("")).status(), 503);
    assert_eq!(
        first.count() + second.count(),
        2,
        "both backends were tried"
    );
    let status = limits(&server);
    assert_eq!(status["requests_per_minute"]["used"], 1);
    // The failed attempt must add no tokens: the spend of the key equals the tokens of the record.
    let settled = || Some(limits(&server)).filter(|status| status["reserved"] == 0);
    let status = eventually("the request is settled", settled);
    let record = eventually("the record", || sandbox.records().unwrap().pop());
    assert_eq!(status["spent"]["day"], record["tokens"]);
    assert_eq!(status["tokens_per_minute"]["used"], record["tokens"]);
}
