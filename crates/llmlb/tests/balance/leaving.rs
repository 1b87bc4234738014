//! A client that leaves ends its request at the backend. How soon is printed; scripts hold it
//! against a bound. (L8)

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

/// What a backend sees of a request.
#[derive(Debug, PartialEq)]
enum Seen {
    Begun,
    Left,
}

/// A backend that tells what it sees, and answers the beginning of a stream, or nothing.
fn witness(answers: bool) -> (FakeLlm, Receiver<(Seen, Instant)>) {
    let (sender, receiver) = channel();
    let sender = Mutex::new(sender);
    let mock = backend(move |request, stream: &mut TcpStream| {
        if request.text().contains("quick") {
            return ok(request, stream);
        }
        let tell = |seen| {
            let _ = sender.lock().unwrap().send((seen, Instant::now()));
        };
        if answers {
            wire::begin_stream(stream);
            wire::chunk(stream, "first");
        }
        tell(Seen::Begun);
        if matches!(stream.read(&mut [0]), Ok(0) | Err(_)) {
            tell(Seen::Left);
        }
    });
    (mock, receiver)
}

fn begun(seen: &Receiver<(Seen, Instant)>) {
    assert_eq!(seen.recv_timeout(DEADLINE).unwrap().0, Seen::Begun);
}

/// The same while the client's connection has to go on.
async fn begun_meanwhile(seen: &Receiver<(Seen, Instant)>) {
    let first = loop {
        match seen.try_recv() {
            Ok((first, _)) => break first,
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    };
    assert_eq!(first, Seen::Begun);
}

#[expect(
    clippy::print_stderr,
    reason = "how long it took is for scripts to judge"
)]
fn left(what: &str, since: Instant, seen: &Receiver<(Seen, Instant)>, server: &LlmlbServer) {
    let (seen, at) = seen.recv_timeout(DEADLINE).unwrap();
    assert_eq!(seen, Seen::Left);
    let took = at.saturating_duration_since(since);
    eprintln!("{what}: the backend knows after {} ms", took.as_millis());
    server.until_in_flight(0);
    assert_eq!(server.status()["backends"][0]["in_flight"], 0);
}

#[test]
fn a_client_that_leaves_before_the_first_byte_ends_the_request() {
    let place = testkit::sandbox!();
    let (mock, seen) = witness(false);
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    begun(&seen);
    let since = Instant::now();
    drop(client);
    left("left before the first byte", since, &seen, &server);
}

#[test]
fn a_client_that_leaves_in_the_middle_ends_the_request() {
    let place = testkit::sandbox!();
    let (mock, seen) = witness(true);
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    assert_eq!(client.head().status(), 200);
    assert_eq!(
        read_chunk(&mut client.reader),
        Some(Some(b"first".to_vec()))
    );
    begun(&seen);
    let since = Instant::now();
    drop(client);
    left("left in the middle", since, &seen, &server);
}

#[test]
fn a_client_whose_machine_resets_the_connection_ends_the_request() {
    for answers in [false, true] {
        let place = testkit::sandbox!();
        let (mock, seen) = witness(answers);
        let server = serve(&place, &[&mock], UNPROBED);
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, ASK);
        begun(&seen);
        let since = Instant::now();
        raw::reset(client.reader.get_ref());
        left("reset", since, &seen, &server);
    }
}

#[test]
fn a_client_that_leaves_is_nobodys_failure() {
    let place = testkit::sandbox!();
    let (mock, seen) = witness(false);
    let other = backend(ok);
    let server = serve(&place, &[&mock, &other], UNPROBED);
    // More often than it takes for a backend to be left alone.
    for _ in 0..6 {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, ASK);
        while seen.try_recv().is_err() {
            if server.status()["in_flight"] == 0 {
                // The other one had it.
                client = Connection::open(server.address);
                client.send_post(CHAT, ASK);
            }
        }
        drop(client);
        assert_eq!(seen.recv_timeout(DEADLINE).unwrap().0, Seen::Left);
        server.until_in_flight(0);
    }
    assert_eq!(server.status()["backends"][0]["up"], true);
    testkit::until("it is asked", || {
        let answer = server.post(CHAT, r#"{"model":"m","x":"quick"}"#);
        testkit::backends::served_by(&answer) == mock.address.to_string()
    });
}

#[test]
fn over_http_2_a_stream_that_is_given_up_ends_the_request_and_no_other() {
    for answers in [false, true] {
        let place = testkit::sandbox!();
        let (mock, seen) = witness(answers);
        let server = serve(&place, &[&mock], UNPROBED);
        connected(server.address, async |client| {
            let response = h2_client::send(&client, request(Method::POST, CHAT), ASK).await;
            let since;
            if answers {
                let mut body = response.await.unwrap().into_body();
                assert_eq!(next(&mut body).await.unwrap().unwrap(), "first");
                begun(&seen);
                since = Instant::now();
                drop(body);
            } else {
                begun_meanwhile(&seen).await;
                since = Instant::now();
                drop(response);
            }
            let quick = r#"{"model":"m","x":"quick"}"#;
            let answer = h2_client::post(&client, CHAT, quick).await;
            assert_eq!(answer.status, 200);
            left("an HTTP/2 stream given up", since, &seen, &server);
        });
    }
}

#[test]
fn over_http_2_a_client_that_leaves_ends_all_its_requests() {
    let place = testkit::sandbox!();
    let (mock, seen) = witness(false);
    let server = serve(&place, &[&mock], UNPROBED);
    connected(server.address, async |client| {
        let mut responses = Vec::new();
        for _ in 0..5 {
            responses.push(h2_client::send(&client, request(Method::POST, CHAT), ASK).await);
        }
        for _ in 0..5 {
            begun_meanwhile(&seen).await;
        }
    });
    for _ in 0..5 {
        assert_eq!(seen.recv_timeout(DEADLINE).unwrap().0, Seen::Left);
    }
    server.until_in_flight(0);
}

#[test]
fn a_client_that_leaves_within_its_upload_ends_it_at_the_backend() {
    let place = testkit::sandbox!();
    let (sender, seen) = channel();
    let sender = Mutex::new(sender);
    let raw = raw::heads(move |_, reader| {
        let _ = sender.lock().unwrap().send(Seen::Begun);
        let _ = reader.read_to_end(&mut Vec::new());
        let _ = sender.lock().unwrap().send(Seen::Left);
    });
    let server = place.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(
        "POST /v1/whatever HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/octet-stream\r\ncontent-length: 1000\r\n\r\nhalf",
    );
    assert_eq!(seen.recv_timeout(DEADLINE), Ok(Seen::Begun));
    drop(client);
    assert_eq!(seen.recv_timeout(DEADLINE), Ok(Seen::Left));
    server.until_in_flight(0);
}

#[test]
fn a_client_that_says_it_has_no_more_to_send_is_not_forgotten() {
    // Whether it still listens cannot be told from whether it left: it may be answered or not, but
    // nothing may stay.
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], UNPROBED);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, ASK);
    client.reader.get_ref().shutdown(Shutdown::Write).unwrap();
    let mut rest = String::new();
    let _ = client.reader.read_to_string(&mut rest);
    assert!(rest.is_empty() || rest.ends_with("{}"), "{rest}");
    server.until_in_flight(0);
}
