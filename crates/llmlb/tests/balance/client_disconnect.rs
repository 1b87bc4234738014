//! A client that disconnects cancels its request at the backend. The tests print the time that it
//! took. (promise L8)

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ::http::Method;
use testkit::{
    Connection, DEADLINE, FakeLlm, LlmlbServer,
    backends::{ASK, CHAT, UNPROBED, backend, ok, serve},
    h2_client::{self, connected, next, request},
    raw, read_chunk, wire,
};

/// Events of a request that a backend observes.
#[derive(Debug, PartialEq)]
enum Event {
    Started,
    Cancelled,
}

/// Returns a backend that reports the events of each request. It responds with the beginning of a
/// stream, or not at all.
fn observing_backend(responds: bool) -> (FakeLlm, Receiver<(Event, Instant)>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let mock = backend(move |request, stream: &mut TcpStream| {
        if request.text().contains("quick") {
            return ok(request, stream);
        }
        let report = |event| {
            let _ = sender.lock().unwrap().send((event, Instant::now()));
        };
        if responds {
            wire::begin_stream(stream);
            wire::chunk(stream, "first");
        }
        report(Event::Started);
        if matches!(stream.read(&mut [0]), Ok(0) | Err(_)) {
            report(Event::Cancelled);
        }
    });
    (mock, receiver)
}

fn assert_started(events: &Receiver<(Event, Instant)>) {
    assert_eq!(events.recv_timeout(DEADLINE).unwrap().0, Event::Started);
}

/// Like [`assert_started`], but lets the client's connection make progress meanwhile.
async fn assert_started_async(events: &Receiver<(Event, Instant)>) {
    let first = loop {
        match events.try_recv() {
            Ok((first, _)) => break first,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    assert_eq!(first, Event::Started);
}

#[expect(
    clippy::print_stderr,
    reason = "reports the time until the backend saw the disconnect"
)]
fn assert_cancelled(
    cause: &str,
    since: Instant,
    events: &Receiver<(Event, Instant)>,
    server: &LlmlbServer,
) {
    let (event, at) = events.recv_timeout(DEADLINE).unwrap();
    assert_eq!(event, Event::Cancelled);
    let took = at.saturating_duration_since(since);
    eprintln!("{cause}: cancelled after {} ms", took.as_millis());
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn client_disconnect_before_the_first_byte_cancels_the_upstream_request() {
    let sandbox = testkit::sandbox!();
    let (mock, events) = observing_backend(false);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_started(&events);
    let since = Instant::now();
    drop(client);
    assert_cancelled("disconnect before the first byte", since, &events, &server);
}

#[test]
fn client_disconnect_within_the_response_cancels_the_upstream_request() {
    let sandbox = testkit::sandbox!();
    let (mock, events) = observing_backend(true);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    assert_eq!(
        read_chunk(&mut client.reader),
        Some(Some(b"first".to_vec()))
    );
    assert_started(&events);
    let since = Instant::now();
    drop(client);
    assert_cancelled("disconnect within the response", since, &events, &server);
}

#[test]
fn client_reset_cancels_the_upstream_request() {
    for responds in [false, true] {
        let sandbox = testkit::sandbox!();
        let (mock, events) = observing_backend(responds);
        let server = serve(&sandbox, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, ASK);
        assert_started(&events);
        let since = Instant::now();
        raw::reset(client.reader.get_ref());
        assert_cancelled("reset", since, &events, &server);
    }
}

#[test]
fn client_disconnect_does_not_count_against_the_backend() {
    let sandbox = testkit::sandbox!();
    let (mock, events) = observing_backend(false);
    let other = backend(ok);
    let server = serve(&sandbox, &[&mock, &other], UNPROBED);
    // Repeat the disconnect more often than the number of failures that ejects a backend, because a
    // disconnect must not count as such a failure.
    for _ in 0..6 {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, ASK);
        while events.try_recv().is_err() {
            if server.status()["in_flight"] == 0 {
                // The other backend, which responds, served this request. Send another request
                // until the silent backend gets one.
                client = Connection::open(server.address);
                client.send_post(CHAT, ASK);
            }
        }
        drop(client);
        assert_eq!(events.recv_timeout(DEADLINE).unwrap().0, Event::Cancelled);
        server.until_in_flight(0);
    }
    assert_eq!(server.status()["backends"][0]["up"], true);
    testkit::until("the backend serves a request", || {
        let answer = server.post(CHAT, r#"{"model":"m","x":"quick"}"#);
        testkit::backends::served_by(&answer) == mock.address.to_string()
    });
}

#[test]
fn http_2_stream_reset_cancels_only_its_upstream_request() {
    for responds in [false, true] {
        let sandbox = testkit::sandbox!();
        let (mock, events) = observing_backend(responds);
        let server = serve(&sandbox, &[&mock], UNPROBED);
        connected(server.address, async |client| {
            let response = h2_client::send(&client, request(Method::POST, CHAT), ASK).await;
            let since;
            if responds {
                let mut body = response.await.unwrap().into_body();
                assert_eq!(next(&mut body).await.unwrap().unwrap(), "first");
                assert_started(&events);
                since = Instant::now();
                drop(body);
            } else {
                assert_started_async(&events).await;
                since = Instant::now();
                drop(response);
            }
            let quick = r#"{"model":"m","x":"quick"}"#;
            let answer = h2_client::post(&client, CHAT, quick).await;
            assert_eq!(answer.status, 200);
            assert_cancelled("reset of an HTTP/2 stream", since, &events, &server);
        });
    }
}

#[test]
fn http_2_disconnect_cancels_all_upstream_requests() {
    let sandbox = testkit::sandbox!();
    let (mock, events) = observing_backend(false);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let mut responses = Vec::new();
        for _ in 0..5 {
            responses.push(h2_client::send(&client, request(Method::POST, CHAT), ASK).await);
        }
        for _ in 0..5 {
            assert_started_async(&events).await;
        }
    });
    for _ in 0..5 {
        assert_eq!(events.recv_timeout(DEADLINE).unwrap().0, Event::Cancelled);
    }
    server.until_in_flight(0);
}

#[test]
fn client_disconnect_within_an_upload_cancels_the_upstream_request() {
    let sandbox = testkit::sandbox!();
    let (sender, events) = channel();
    let sender = Mutex::new(sender);
    let raw = raw::heads(move |_, reader| {
        let _ = sender.lock().unwrap().send(Event::Started);
        let _ = reader.read_to_end(&mut Vec::new());
        let _ = sender.lock().unwrap().send(Event::Cancelled);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(
        "POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/octet-stream\r\ncontent-length: 1000\r\n\r\nhalf",
    );
    assert_eq!(events.recv_timeout(DEADLINE), Ok(Event::Started));
    drop(client);
    assert_eq!(events.recv_timeout(DEADLINE), Ok(Event::Cancelled));
    server.until_in_flight(0);
}

#[test]
fn client_that_shuts_down_its_sending_side_leaves_no_request_in_flight() {
    // The server cannot distinguish a half-closed connection from a disconnect, so it may respond
    // or not. Either way the request must not stay in flight.
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    client.reader.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut rest = String::new();
    let _ = client.reader.read_to_string(&mut rest);
    assert!(rest.is_empty() || rest.ends_with("{}"), "{rest}");
    server.until_in_flight(0);
}
