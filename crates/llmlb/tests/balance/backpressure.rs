//! A peer that does not read stops the sender, and the server does not buffer the rest. (promise L10)

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
/// Maximum number of bytes that all socket buffers and the server's own buffers hold together. If a
/// sender can send more, the server buffers without a limit.
const MAX_BUFFERED: usize = 64 * MIB;

/// Sends bytes and counts them until the connection fails or `MAX_BUFFERED` is exceeded.
fn send_endlessly(stream: &mut TcpStream, sent: &AtomicUsize) {
    let piece = vec![b'x'; MIB];
    while sent.load(Ordering::SeqCst) <= MAX_BUFFERED && stream.write_all(&piece).is_ok() {
        sent.fetch_add(MIB, Ordering::SeqCst);
    }
}

/// Waits until no more bytes are accepted. Fails if more than `MAX_BUFFERED` bytes were.
fn assert_sender_is_blocked(sent: &AtomicUsize) {
    let mut before = usize::MAX;
    loop {
        let now = sent.load(Ordering::SeqCst);
        assert!(now <= MAX_BUFFERED, "{now} bytes were buffered");
        if now == before {
            return;
        }
        before = now;
        thread::sleep(Duration::from_millis(500));
    }
}

/// Returns a backend whose responses do not end, and the number of bytes that it has sent.
fn endless() -> (FakeLlm, Arc<AtomicUsize>) {
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let mock = backend(move |_, stream| {
        let length = 100 * MAX_BUFFERED;
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let _ = stream.write_all(head.as_bytes());
        send_endlessly(stream, &count);
    });
    (mock, sent)
}

#[test]
fn http_1_client_that_does_not_read_blocks_its_backend() {
    let sandbox = testkit::sandbox!();
    let (mock, sent) = endless();
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    assert_sender_is_blocked(&sent);
    drop(client);
    server.until_in_flight(0);
}

#[test]
fn http_2_client_that_does_not_read_blocks_its_backend() {
    let sandbox = testkit::sandbox!();
    let (mock, sent) = endless();
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let response = send(&client, request(Method::POST, CHAT), ASK).await;
        let response = response.await.unwrap();
        assert_eq!(response.status(), 200);
        assert_sender_is_blocked(&sent);
    });
    server.until_in_flight(0);
}

#[test]
fn backend_that_does_not_read_blocks_its_client() {
    let sandbox = testkit::sandbox!();
    let (resume, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let raw = raw::heads(move |_, reader| {
        let _ = wait.lock().unwrap().recv();
        let _ = reader.read(&mut [0]);
        wire::json(reader.get_mut(), 200, "{}");
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let client = TcpStream::connect(server.address).unwrap();
    let sent = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = &client;
            let head = format!(
                "POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\n\
                 content-type: application/octet-stream\r\ncontent-length: {}\r\n\r\n",
                100 * MAX_BUFFERED
            );
            client.write_all(head.as_bytes()).unwrap();
            send_endlessly(&mut client.try_clone().unwrap(), &sent);
        });
        assert_sender_is_blocked(&sent);
        testkit::backends::close(&client);
    });
    drop(resume);
    server.until_in_flight(0);
}
