//! How many requests a backend may have at a time. (L7)

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;
use testkit::{
    FakeLlm, LlmlbServer, Received,
    backends::{ASK, CHAT, backend, ok, serve_file},
    wire,
};

/// A backend that takes its time and remembers how much it had to do at once.
fn counting() -> (FakeLlm, Arc<AtomicUsize>) {
    let (now, most) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let record = Arc::clone(&most);
    let mock = backend(move |request: &Received, stream: &mut TcpStream| {
        let busy = now.fetch_add(1, Ordering::SeqCst) + 1;
        record.fetch_max(busy, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(10));
        now.fetch_sub(1, Ordering::SeqCst);
        if request.text().contains("stream") {
            wire::begin_stream(stream);
            wire::chunk(stream, "data: 1\n\n");
            wire::end_stream(stream);
        } else {
            ok(request, stream);
        }
    });
    (mock, most)
}

fn limited(mock: &FakeLlm, limit: usize) -> String {
    let url = mock.url();
    format!("[[backend]]\nurl = \"{url}\"\nmax_concurrent = {limit}\n")
}

/// So many clients, each with a few questions; all are answered.
fn ask(server: &LlmlbServer, clients: usize) {
    thread::scope(|scope| {
        for client in 0..clients {
            scope.spawn(move || {
                let stream = r#"{"model":"m","stream":true}"#;
                let body = if client % 2 == 0 { ASK } else { stream };
                for _ in 0..5 {
                    let answer = server.post(CHAT, body);
                    assert_eq!(answer.status(), 200, "{answer:?}");
                }
            });
        }
    });
    server.until_in_flight(0);
}

#[test]
fn a_backend_never_gets_more_at_a_time_than_it_may() {
    let place = testkit::sandbox!();
    let (mock, most) = counting();
    let server = serve_file(&place, &limited(&mock, 2));
    ask(&server, 20);
    assert_eq!(most.load(Ordering::SeqCst), 2);
}

#[test]
fn each_backend_has_its_own_limit() {
    let place = testkit::sandbox!();
    let all = [counting(), counting()];
    let file = limited(&all[0].0, 1) + &limited(&all[1].0, 3);
    let server = serve_file(&place, &file);
    ask(&server, 20);
    let most = all.each_ref().map(|one| one.1.load(Ordering::SeqCst));
    assert_eq!(most, [1, 3]);
}

#[test]
fn a_request_that_failed_over_holds_a_place_at_one_backend_only() {
    let place = testkit::sandbox!();
    let bad = backend(|_, stream| wire::json(stream, 503, "{}"));
    let (good, most) = counting();
    let file = limited(&bad, 1) + &limited(&good, 2);
    let server = serve_file(&place, &file);
    ask(&server, 10);
    assert!(most.load(Ordering::SeqCst) <= 2);
    let status = server.status();
    for one in status["backends"].as_array().unwrap() {
        assert_eq!(one["in_flight"], 0, "{status}");
    }
}
