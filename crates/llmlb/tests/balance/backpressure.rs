//! Who does not read holds up who sends, and nobody keeps what is not read. (L10)

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use ::http::Method;
use testkit::{
    Connection, FakeLlm,
    backends::{ASK, CHAT, UNPROBED, backend, serve},
    h2_client::{connected, request, send},
    raw, wire,
};

const MIB: usize = 1 << 20;
/// More than the systems on the way and a balancer that behaves would hold.
const MOST: usize = 64 * MIB;

/// Sends and counts, until nobody takes any more or `MOST` is exceeded.
fn pour(stream: &mut TcpStream, poured: &AtomicUsize) {
    let piece = vec![b'x'; MIB];
    while poured.load(Ordering::SeqCst) <= MOST && stream.write_all(&piece).is_ok() {
        poured.fetch_add(MIB, Ordering::SeqCst);
    }
}

/// Waits until nothing more is taken, and sees that this was soon.
fn assert_held_up(poured: &AtomicUsize) {
    let mut before = usize::MAX;
    loop {
        let now = poured.load(Ordering::SeqCst);
        assert!(now <= MOST, "{now} bytes were taken, and nobody read them");
        if now == before {
            return;
        }
        before = now;
        thread::sleep(Duration::from_millis(500));
    }
}

/// A backend whose answers do not end, and how much of them was taken.
fn endless() -> (FakeLlm, Arc<AtomicUsize>) {
    let poured = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&poured);
    let mock = backend(move |_, stream| {
        let length = 100 * MOST;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        pour(stream, &count);
    });
    (mock, poured)
}

#[test]
fn a_client_that_does_not_read_holds_up_its_backend() {
    let place = testkit::sandbox!();
    let (mock, poured) = endless();
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    assert_held_up(&poured);
    drop(client);
    server.until_in_flight(0);
}

#[test]
fn a_client_of_http_2_that_does_not_read_holds_up_its_backend() {
    let place = testkit::sandbox!();
    let (mock, poured) = endless();
    let server = serve(&place, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let response = send(&client, request(Method::POST, CHAT), ASK).await;
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_held_up(&poured);
    });
    server.until_in_flight(0);
}

#[test]
fn a_backend_that_does_not_read_holds_up_its_client() {
    let place = testkit::sandbox!();
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let raw = raw::heads(move |_, reader| {
        let _ = wait.lock().unwrap().recv();
        let _ = reader.read(&mut [0]);
        wire::json(reader.get_mut(), 200, "{}");
    });
    let server = place.serve(&format!("--backend {}", raw.url()));
    let client = TcpStream::connect(server.address).unwrap();
    let poured = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = &client;
            let head = format!(
                "POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\n\
                 content-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
                100 * MOST
            );
            client.write_all(head.as_bytes()).unwrap();
            pour(&mut client.try_clone().unwrap(), &poured);
        });
        assert_held_up(&poured);
        testkit::backends::close(&client);
    });
    drop(go_on);
    server.until_in_flight(0);
}
