//! Clients at different addresses share a backend that is at its limit: many requests of one client do not
//! delay another client. (Promise L7 in docs/promises.md)

use std::net::{Ipv4Addr, SocketAddr};

use crate::queue::{OneSlotBackend, assert_rejected, body};
use testkit::{Connection, DEADLINE, LlmlbServer, backends::CHAT};

const ATTACKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const VICTIM: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);

pub(crate) fn connect_from(source: Ipv4Addr, server: &LlmlbServer) -> Connection {
    use socket2::{Domain, Socket, Type};
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let source = SocketAddr::from((source, 0));
    socket.bind(&source.into()).unwrap();
    socket
        .connect_timeout(&server.address.into(), DEADLINE)
        .unwrap();
    Connection::over(socket.into())
}

fn send(server: &LlmlbServer, source: Ipv4Addr, key: Option<&str>, name: &str) -> Connection {
    let mut client = connect_from(source, server);
    let key = key.map(|key| format!("authorization: Bearer {key}\r\n"));
    client.send_post_with(CHAT, &key.unwrap_or_default(), &body(name));
    client
}

fn until_waiting(server: &LlmlbServer, count: u64) {
    testkit::until("requests wait", || server.status()["waiting"] == count);
}

#[test]
fn invented_credentials_do_not_multiply_the_share_of_an_address() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[]);
    let mut clients = vec![send(&server, ATTACKER, Some("k"), "first")];
    backend.next_request();
    for number in 0..10 {
        let key = format!("invented-{number}");
        clients.push(send(&server, ATTACKER, Some(&key), "more"));
        until_waiting(&server, number + 1);
    }
    clients.push(send(&server, VICTIM, None, "victim"));
    until_waiting(&server, 11);
    let mut served = Vec::new();
    backend.respond();
    for _ in 0..11 {
        served.push(backend.next_request());
        backend.respond();
    }
    let position = served.iter().position(|request| *request == body("victim"));
    assert!(position < Some(2), "{position:?}: {served:?}");
    for client in &mut clients {
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn full_queue_rejects_the_newest_request_of_the_address_with_the_most_requests() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[("LLMLB_QUEUE", "3")]);
    let mut running = send(&server, ATTACKER, Some("k"), "running");
    backend.next_request();
    let mut waiting = Vec::new();
    for number in 0..3 {
        let key = format!("invented-{number}");
        waiting.push(send(&server, ATTACKER, Some(&key), &number.to_string()));
        until_waiting(&server, number + 1);
    }
    // The queue is full. A client without waiting requests must get a position, which it takes from
    // the newest request of the client with the most.
    let mut victim = send(&server, VICTIM, None, "victim");
    let newest = waiting.pop().unwrap().answer();
    assert_rejected(&newest, "queue_full");
    until_waiting(&server, 3);
    // The address with the most waiting requests must not take a position from others, so its own
    // new request is rejected.
    let mut more = send(&server, ATTACKER, None, "more");
    assert_rejected(&more.answer(), "queue_full");
    backend.respond();
    let mut served = vec![backend.next_request()];
    backend.respond();
    served.push(backend.next_request());
    backend.respond();
    served.push(backend.next_request());
    backend.respond();
    assert!(served[..2].contains(&body("victim")), "{served:?}");
    assert_eq!(running.answer().status(), 200);
    assert_eq!(victim.answer().status(), 200);
    for client in &mut waiting {
        assert_eq!(client.answer().status(), 200);
    }
}

#[test]
fn full_queue_of_equal_clients_rejects_the_new_request() {
    let sandbox = testkit::sandbox!();
    let backend = OneSlotBackend::new();
    let server = backend.serve(&sandbox, &[("LLMLB_QUEUE", "2")]);
    let mut running = send(&server, ATTACKER, None, "running");
    backend.next_request();
    let addresses = [2, 3].map(|last| Ipv4Addr::new(127, 0, 0, last));
    let mut waiting = Vec::new();
    for (count, address) in (1..).zip(addresses) {
        waiting.push(send(&server, address, None, "waiting"));
        until_waiting(&server, count);
    }
    let mut late = send(&server, Ipv4Addr::new(127, 0, 0, 4), None, "late");
    assert_rejected(&late.answer(), "queue_full");
    for _ in 0..3 {
        backend.respond();
    }
    assert_eq!(running.answer().status(), 200);
    for client in &mut waiting {
        assert_eq!(client.answer().status(), 200);
    }
}
