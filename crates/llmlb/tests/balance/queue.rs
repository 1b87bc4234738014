//! Requests that wait in the queue until a backend has a free slot. (promise L7)

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use testkit::{
    Answer, Connection, DEADLINE, FakeLlm, LlmlbServer, Received, Sandbox,
    backends::{CHAT, backend, code},
    wire,
};

/// Backend with one slot. It reports each request and holds the response until the test releases it.
pub(crate) struct OneSlotBackend {
    mock: FakeLlm,
    arrived: Receiver<String>,
    release: Sender<()>,
}

impl OneSlotBackend {
    pub(crate) fn new() -> Self {
        let (sender, arrived) = channel();
        let (release, wait) = channel();
        let channels = Mutex::new((sender, wait));
        let mock = backend(move |request: &Received, stream: &mut TcpStream| {
            let channels = channels.lock().unwrap();
            let _ = channels.0.send(request.text());
            let _ = channels.1.recv_timeout(DEADLINE);
            wire::json(stream, 200, "{}");
        });
        Self {
            mock,
            arrived,
            release,
        }
    }

    /// Starts an llmlb server in front of this backend.
    pub(crate) fn serve(&self, sandbox: &Sandbox, settings: &[(&str, &str)]) -> LlmlbServer {
        let url = self.mock.url();
        let file = format!("[[backend]]\nurl = \"{url}\"\nmax_concurrent = 1\n");
        std::fs::write(sandbox.path("llmlb.toml"), file).unwrap();
        let mut command = sandbox.command("serve -p 0");
        sandbox.serve_with(command.envs(settings.iter().copied()))
    }

    pub(crate) fn next_request(&self) -> String {
        self.arrived.recv_timeout(DEADLINE).unwrap()
    }

    /// Releases one response.
    pub(crate) fn respond(&self) {
        self.release.send(()).unwrap();
    }
}

pub(crate) fn body(name: &str) -> String {
    format!(r#"{{"model":"m","x":"{name}"}}"#)
}

fn send(server: &LlmlbServer, name: &str) -> Connection {
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, &body(name));
    client
}

/// Asserts that a response is a 429 with this code and a `retry-after`.
pub(crate) fn assert_rejected(answer: &Answer, expected: &str) {
    assert_eq!(answer.status(), 429, "{answer:?}");
    assert_eq!(code(answer), expected);
    let after = answer.head.header("retry-after").unwrap();
    assert!(after.parse::<u64>().unwrap() >= 1, "{after}");
}

#[test]
fn waiting_request_is_served_when_a_slot_is_free() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[]);
    let mut first = send(&server, "first");
    assert_eq!(backend.next_request(), body("first"));
    let mut second = send(&server, "second");
    server.until_in_flight(2);
    assert!(
        backend.arrived.try_recv().is_err(),
        "the only slot is taken"
    );
    backend.respond();
    assert_eq!(first.answer().status(), 200);
    assert_eq!(backend.next_request(), body("second"));
    backend.respond();
    assert_eq!(second.answer().status(), 200);
    server.until_in_flight(0);
}

#[test]
fn request_is_rejected_at_once_without_a_queue() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[("LLMLB_QUEUE", "0")]);
    let mut first = send(&server, "first");
    backend.next_request();
    assert_rejected(&server.post(CHAT, &body("second")), "queue_full");
    backend.respond();
    assert_eq!(first.answer().status(), 200);
    server.until_in_flight(0);
    let mut third = send(&server, "third");
    assert_eq!(backend.next_request(), body("third"));
    backend.respond();
    assert_eq!(third.answer().status(), 200);
}

#[test]
fn full_queue_rejects_new_requests_and_keeps_waiting_ones() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[("LLMLB_QUEUE", "2")]);
    let mut first = send(&server, "first");
    backend.next_request();
    let mut waiting = [send(&server, "second"), send(&server, "third")];
    server.until_in_flight(3);
    // Requests are in flight before they are in the queue. Repeat until the queue is full.
    testkit::until("the queue is full", || {
        let mut client = send(&server, "fourth");
        let stream = client.reader.get_ref();
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(1)))
            .unwrap();
        let Some(head) = testkit::Head::read(&mut client.reader) else {
            return false;
        };
        let body = head.body(&mut client.reader);
        assert_rejected(&Answer { head, body }, "queue_full");
        true
    });
    for _ in 0..3 {
        backend.respond();
    }
    assert_eq!(first.answer().status(), 200);
    for client in &mut waiting {
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn request_is_rejected_after_queue_timeout() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[("LLMLB_QUEUE_TIMEOUT", "200ms")]);
    let mut first = send(&server, "first");
    backend.next_request();
    assert_rejected(&server.post(CHAT, &body("second")), "queue_timeout");
    backend.respond();
    assert_eq!(first.answer().status(), 200);
    server.until_in_flight(0);
    // The request was rejected while it waited in the queue, so it must not have reached the
    // backend.
    assert_eq!(testkit::backends::count(&backend.mock), 1);
}

#[test]
fn client_disconnect_frees_its_position_in_the_queue() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[("LLMLB_QUEUE", "1")]);
    let mut first = send(&server, "first");
    backend.next_request();
    for _ in 0..10 {
        let waiting = send(&server, "gone");
        server.until_in_flight(2);
        drop(waiting);
        server.until_in_flight(1);
    }
    let mut last = send(&server, "last");
    server.until_in_flight(2);
    backend.respond();
    assert_eq!(first.answer().status(), 200);
    assert_eq!(
        backend.next_request(),
        body("last"),
        "the disconnected clients left the queue"
    );
    backend.respond();
    assert_eq!(last.answer().status(), 200);
}

#[test]
fn client_with_many_requests_does_not_delay_another_client() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[]);
    let send = |key: &str, name: &str| {
        let mut client = Connection::open(server.address);
        let field = format!("authorization: Bearer {key}\r\n");
        client.send_post_with(CHAT, &field, &body(name));
        client
    };
    let mut clients = vec![send("greedy", "first")];
    backend.next_request();
    for number in 0..10 {
        clients.push(send("greedy", "more"));
        server.until_in_flight(number + 2);
    }
    clients.push(send("modest", "modest"));
    server.until_in_flight(12);
    let mut served = Vec::new();
    backend.respond();
    for _ in 0..11 {
        served.push(backend.next_request());
        backend.respond();
    }
    let position = served.iter().position(|request| *request == body("modest"));
    assert!(position < Some(3), "{position:?}: {served:?}");
    for client in &mut clients {
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn waiting_request_gets_an_error_when_its_backend_stops() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    let _first = send(&server, "first");
    backend.next_request();
    let mut second = send(&server, "second");
    server.until_in_flight(2);
    backend.mock.stop();
    let answer = second.answer();
    assert!([502, 503].contains(&answer.status()), "{answer:?}");
    server.until_in_flight(0);
    backend.respond();
}
