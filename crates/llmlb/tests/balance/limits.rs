//! Limits on the concurrent requests of a backend (`max_concurrent`). (promise L7)

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

/// Returns a slow backend and the maximum number of requests that it had at a time.
fn counting() -> (FakeLlm, Arc<AtomicUsize>) {
    let (now, max_busy) = (AtomicUsize::new(0), Arc::new(AtomicUsize::new(0)));
    let record = Arc::clone(&max_busy);
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
    (mock, max_busy)
}

fn limited(mock: &FakeLlm, limit: usize) -> String {
    let url = mock.url();
    format!("[[backend]]\nurl = \"{url}\"\nmax_concurrent = {limit}\n")
}

/// Sends five requests from each of this many clients. Every response must be a success.
fn send_all(server: &LlmlbServer, clients: usize) {
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
fn backend_never_has_more_requests_than_max_concurrent() {
    let sandbox = testkit::sandbox!();
    let (mock, max_busy) = counting();
    let server = serve_file(&sandbox, &limited(&mock, 2));
    send_all(&server, 20);
    assert_eq!(max_busy.load(Ordering::SeqCst), 2);
}

#[test]
fn max_concurrent_applies_to_each_backend_separately() {
    let sandbox = testkit::sandbox!();
    let all = [counting(), counting()];
    let file = limited(&all[0].0, 1) + &limited(&all[1].0, 3);
    let server = serve_file(&sandbox, &file);
    send_all(&server, 20);
    let max_busy = all
        .each_ref()
        .map(|(_, max_busy)| max_busy.load(Ordering::SeqCst));
    assert_eq!(max_busy, [1, 3]);
}

#[test]
fn retried_request_holds_one_slot() {
    let sandbox = testkit::sandbox!();
    let bad = backend(|_, stream| wire::json(stream, 503, "{}"));
    let (good, max_busy) = counting();
    let file = limited(&bad, 1) + &limited(&good, 2);
    let server = serve_file(&sandbox, &file);
    send_all(&server, 10);
    assert!(max_busy.load(Ordering::SeqCst) <= 2);
    let status = server.status();
    for backend in status["backends"].as_array().unwrap() {
        assert_eq!(backend["in_flight"], 0, "{status}");
    }
}
