//! Requests that wait until a backend has room for them. (L7)

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use testkit::{
    Answer, Connection, DEADLINE, FakeLlm, LlmlbServer, Received, Sandbox,
    backends::{CHAT, backend, code},
    wire,
};

/// A backend with room for one, which says whose request it has and answers when it is let.
pub(crate) struct Narrow {
    mock: FakeLlm,
    arrived: Receiver<String>,
    go_on: Sender<()>,
}

impl Narrow {
    pub(crate) fn new() -> Self {
        let (tell, arrived) = channel();
        let (go_on, wait) = channel();
        let channels = Mutex::new((tell, wait));
        let mock = backend(move |request: &Received, stream: &mut TcpStream| {
            let channels = channels.lock().unwrap();
            let _ = channels.0.send(request.text());
            let _ = channels.1.recv_timeout(DEADLINE);
            wire::json(stream, 200, "{}");
        });
        Self {
            mock,
            arrived,
            go_on,
        }
    }

    /// A balancer that sends it one request at a time.
    pub(crate) fn serve(&self, place: &Sandbox, settings: &[(&str, &str)]) -> LlmlbServer {
        let url = self.mock.url();
        let file = format!("[[backend]]\nurl = \"{url}\"\nmax_concurrent = 1\n");
        std::fs::write(place.path("llmlb.toml"), file).unwrap();
        let mut command = place.command("serve -p 0");
        place.serve_with(command.envs(settings.iter().copied()))
    }

    /// Whose request it has now.
    pub(crate) fn has(&self) -> String {
        self.arrived.recv_timeout(DEADLINE).unwrap()
    }

    pub(crate) fn let_go(&self) {
        self.go_on.send(()).unwrap();
    }
}

pub(crate) fn body(name: &str) -> String {
    format!(r#"{{"model":"m","x":"{name}"}}"#)
}

/// A request that somebody sent, and whose answer has not been read.
fn sent(server: &LlmlbServer, name: &str) -> Connection {
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, &body(name));
    client
}

pub(crate) fn refused(answer: &Answer, why: &str) {
    assert_eq!(answer.status(), 429, "{answer:?}");
    assert_eq!(code(answer), why);
    let after = answer.head.header("retry-after").unwrap();
    assert!(after.parse::<u64>().unwrap() >= 1, "{after}");
}

#[test]
fn who_waits_is_served_when_there_is_room() {
    let place = testkit::sandbox!();
    let narrow = Narrow::new();
    let server = narrow.serve(&place, &[]);
    let mut first = sent(&server, "first");
    assert_eq!(narrow.has(), body("first"));
    let mut second = sent(&server, "second");
    server.until_in_flight(2);
    assert!(narrow.arrived.try_recv().is_err(), "it has one already");
    narrow.let_go();
    assert_eq!(first.answer().status(), 200);
    assert_eq!(narrow.has(), body("second"));
    narrow.let_go();
    assert_eq!(second.answer().status(), 200);
    server.until_in_flight(0);
}

#[test]
fn without_a_queue_nobody_waits() {
    let place = testkit::sandbox!();
    let narrow = Narrow::new();
    let server = narrow.serve(&place, &[("LLMLB_QUEUE", "0")]);
    let mut first = sent(&server, "first");
    narrow.has();
    refused(&server.post(CHAT, &body("second")), "queue_full");
    narrow.let_go();
    assert_eq!(first.answer().status(), 200);
    server.until_in_flight(0);
    let mut third = sent(&server, "third");
    assert_eq!(narrow.has(), body("third"));
    narrow.let_go();
    assert_eq!(third.answer().status(), 200);
}

#[test]
fn a_full_queue_is_told_at_once_and_keeps_who_is_in_it() {
    let place = testkit::sandbox!();
    let narrow = Narrow::new();
    let server = narrow.serve(&place, &[("LLMLB_QUEUE", "2")]);
    let mut first = sent(&server, "first");
    narrow.has();
    let mut waiting = [sent(&server, "second"), sent(&server, "third")];
    server.until_in_flight(3);
    // They may have been counted before they queued: so ask until it is full.
    testkit::until("the queue is full", || {
        let mut client = sent(&server, "fourth");
        let stream = client.reader.get_ref();
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(1)))
            .unwrap();
        let Some(head) = testkit::Head::read(&mut client.reader) else {
            return false;
        };
        let body = head.body(&mut client.reader);
        refused(&Answer { head, body }, "queue_full");
        true
    });
    for _ in 0..3 {
        narrow.let_go();
    }
    assert_eq!(first.answer().status(), 200);
    for client in &mut waiting {
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn who_waits_too_long_is_told() {
    let place = testkit::sandbox!();
    let narrow = Narrow::new();
    let server = narrow.serve(&place, &[("LLMLB_QUEUE_TIMEOUT", "200ms")]);
    let mut first = sent(&server, "first");
    narrow.has();
    refused(&server.post(CHAT, &body("second")), "queue_timeout");
    narrow.let_go();
    assert_eq!(first.answer().status(), 200);
    server.until_in_flight(0);
    // Whoever gave up waiting was never sent.
    assert_eq!(testkit::backends::count(&narrow.mock), 1);
}

#[test]
fn who_leaves_the_queue_makes_room_in_it() {
    let place = testkit::sandbox!();
    let narrow = Narrow::new();
    let server = narrow.serve(&place, &[("LLMLB_QUEUE", "1")]);
    let mut first = sent(&server, "first");
    narrow.has();
    for _ in 0..10 {
        let waiting = sent(&server, "gone");
        server.until_in_flight(2);
        drop(waiting);
        server.until_in_flight(1);
    }
    let mut last = sent(&server, "last");
    server.until_in_flight(2);
    narrow.let_go();
    assert_eq!(first.answer().status(), 200);
    assert_eq!(narrow.has(), body("last"), "nobody else is there any more");
    narrow.let_go();
    assert_eq!(last.answer().status(), 200);
}

#[test]
fn who_asks_much_does_not_keep_others_waiting() {
    let place = testkit::sandbox!();
    let narrow = Narrow::new();
    let server = narrow.serve(&place, &[]);
    let send = |key: &str, name: &str| {
        let mut client = Connection::open(server.address);
        let body = body(name);
        client.send(format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        ));
        client
    };
    let mut clients = vec![send("greedy", "first")];
    narrow.has();
    for number in 0..10 {
        clients.push(send("greedy", "more"));
        server.until_in_flight(number + 2);
    }
    clients.push(send("modest", "modest"));
    server.until_in_flight(12);
    let mut served = Vec::new();
    narrow.let_go();
    for _ in 0..11 {
        served.push(narrow.has());
        narrow.let_go();
    }
    let place = served.iter().position(|one| *one == body("modest"));
    assert!(place < Some(3), "{place:?}: {served:?}");
    for client in &mut clients {
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn who_waits_for_a_backend_that_goes_away_is_told() {
    let place = testkit::sandbox!();
    let narrow = Narrow::new();
    let server = narrow.serve(&place, &[("LLMLB_PROBE_INTERVAL", "100ms")]);
    let _first = sent(&server, "first");
    narrow.has();
    let mut second = sent(&server, "second");
    server.until_in_flight(2);
    narrow.mock.stop();
    let answer = second.answer();
    assert!([502, 503].contains(&answer.status()), "{answer:?}");
    server.until_in_flight(0);
    narrow.let_go();
}
