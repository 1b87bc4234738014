//! Limits on the connections of clients: their number, and the time for which they may be idle.
//! (L11)

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use testkit::{
    Answer, Connection, DEADLINE, Head, LlmlbServer,
    backends::{ASK, CHAT, backend, code, ok, serve},
    h2_client::{answer, next, post, request, send},
    raw, until, wire,
};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// Connections from this machine that are accepted beyond the limit.
const EXTRA_LOCAL: usize = 4;
const SHORT_IDLE: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_SERVER_IDLE_TIMEOUT", "200ms"),
];

/// Sends a request on a connection that is open.
fn asked(client: &mut Connection) -> Answer {
    client.send_post(CHAT, ASK);
    client.answer()
}

/// `/status`, over a connection that is open.
fn status(client: &mut Connection) -> Value {
    client.send_get("/status");
    client.answer().json()
}

/// The response to a connection that is not admitted, on which nothing was sent.
fn rejected(server: &LlmlbServer) -> Answer {
    let mut client = Connection::open(server.address);
    let response = client.answer();
    assert!(client.is_closed());
    response
}

#[test]
fn connections_beyond_the_limit_get_503_and_are_closed() {
    const MAX: usize = 6;
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let max = MAX.to_string();
    let settings = [
        ("LLMLB_PROBE_INTERVAL", "1h"),
        ("LLMLB_MAX_CONNECTIONS", &*max),
    ];
    let server = serve(&place, &[&mock], &settings);
    let mut held: Vec<_> = (0..MAX + EXTRA_LOCAL)
        .map(|_| Connection::open(server.address))
        .collect();
    for client in &mut held {
        assert_eq!(asked(client).status(), 200);
    }
    for _ in 0..50 {
        let response = rejected(&server);
        assert_eq!(response.status(), 503, "{response:?}");
        assert_eq!(code(&response), "too_many_connections");
        assert_eq!(response.head.header("retry-after").as_deref(), Some("1"));
        assert_eq!(response.head.header("connection").as_deref(), Some("close"));
    }
    // Those that are open are served as before.
    for client in &mut held {
        assert_eq!(asked(client).status(), 200);
    }
    let connections = status(&mut held[0])["connections"].clone();
    assert_eq!(connections["open"], MAX + EXTRA_LOCAL, "{connections}");
    assert_eq!(connections["max"], MAX, "{connections}");
    assert_eq!(connections["rejected"], 50, "{connections}");
    assert_eq!(connections["rejected_per_address"], 0, "{connections}");
    let log = server.process.stderr();
    let lines = log.matches("rejecting connections: 6 are open").count();
    assert_eq!(lines, 1, "{log}");

    held.truncate(1);
    until("closed connections are replaced", || {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, ASK);
        Head::read(&mut client.reader).is_some_and(|head| head.status() == 200)
    });
}

#[test]
fn an_upgraded_connection_counts_until_it_is_closed() {
    let place = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        let agreed = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
            upgrade: websocket\r\n\r\n";
        let _ = std::io::Write::write_all(reader.get_mut(), agreed);
        let _ = std::io::Read::read(reader, &mut [0]);
    });
    let server = place.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(
        "GET /v1/realtime?model=m HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\n\
         upgrade: websocket\r\nsec-websocket-version: 13\r\n\
         sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
    assert_eq!(client.head().status(), 101);
    let open = |of: &str, count: u64| server.status()[of]["open"] == count;
    // This one, and the one that asks.
    until("both connections are counted", || {
        open("connections", 2) && open("backend_connections", 1)
    });
    drop(client);
    until("only the one that asks is left", || {
        open("connections", 1) && open("backend_connections", 0)
    });
}

#[test]
fn an_idle_http_2_connection_that_answers_pings_is_closed() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], SHORT_IDLE);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let closed = async {
        for has_request in [false, true] {
            let stream = tokio::net::TcpStream::connect(server.address)
                .await
                .unwrap();
            let (client, mut connection) = h2::client::handshake(stream).await.unwrap();
            let mut ping = connection.ping_pong().unwrap();
            let tasks = TaskTracker::new();
            let connection = tasks.spawn(connection);
            // It answers pings by itself, and sends some of its own.
            tasks.spawn(async move {
                while ping.ping(h2::Ping::opaque()).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            if has_request {
                assert_eq!(post(&client, CHAT, ASK).await.status, 200);
            }
            // The client is kept, so that it is the server that ends the connection.
            let ended = connection.await.unwrap();
            assert!(ended.is_ok(), "not a GOAWAY without an error: {ended:?}");
            drop(client);
        }
    };
    let closed = runtime.block_on(async { timeout(DEADLINE, closed).await });
    closed.expect("the server closes idle connections");
}

#[test]
fn an_http_2_client_that_never_says_anything_more_is_closed() {
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], SHORT_IDLE);
    // With and without its settings; in neither case it confirms ours, or a ping.
    for first in [&b""[..], SETTINGS] {
        let mut client = Connection::open(server.address);
        client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        client.send(first);
        let read = std::io::copy(&mut client.reader, &mut std::io::sink());
        let still_open = read.is_err_and(|error| {
            use std::io::ErrorKind::{TimedOut, WouldBlock};
            matches!(error.kind(), TimedOut | WouldBlock)
        });
        assert!(!still_open);
    }
}

#[test]
fn a_stream_that_outlasts_the_idle_time_is_not_cut() {
    let place = testkit::sandbox!();
    let (go_on, told) = channel::<()>();
    let told = Mutex::new(told);
    let mock = backend(move |_, stream: &mut TcpStream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        let _ = told.lock().unwrap().recv();
        wire::chunk(stream, "data: 2\n\n");
        wire::end_stream(stream);
    });
    let server = serve(&place, &[&mock], SHORT_IDLE);
    testkit::h2_client::connected(server.address, async |client| {
        let response = send(&client, request(::http::Method::POST, CHAT), ASK).await;
        let mut body = response.await.unwrap().into_body();
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "data: 1\n\n");
        tokio::time::sleep(Duration::from_secs(1)).await;
        go_on.send(()).unwrap();
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "data: 2\n\n");
        assert!(next(&mut body).await.is_none());
        // The next request is served on the same connection.
        go_on.send(()).unwrap();
        let response = send(&client, request(::http::Method::POST, CHAT), ASK).await;
        assert_eq!(answer(response).await.status, 200);
    });
}

#[test]
fn an_idle_http_1_connection_and_an_unfinished_head_are_closed() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], SHORT_IDLE);
    let mut idle = Connection::open(server.address);
    assert_eq!(asked(&mut idle).status(), 200);
    let mut silent = Connection::open(server.address);
    let mut slow = Connection::open(server.address);
    slow.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n");
    let drip = std::thread::spawn(move || {
        // A byte now and then does not extend the time.
        while std::io::Write::write_all(slow.reader.get_mut(), b"x").is_ok() {
            sleep(Duration::from_millis(20));
        }
    });
    assert!(idle.is_closed());
    assert!(silent.is_closed());
    drip.join().unwrap();
    until("only the connection that asks is left", || {
        server.status()["connections"]["open"] == 1
    });
}

#[test]
fn http_2_streams_beyond_the_limit_wait_for_the_others() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let settings = [("LLMLB_PROBE_INTERVAL", "1h"), ("LLMLB_MAX_STREAMS", "7")];
    let server = serve(&place, &[&mock], &settings);
    testkit::h2_client::connected(server.address, async |client| {
        // The server's settings have come when the first response has.
        assert_eq!(post(&client, CHAT, ASK).await.status, 200);
        assert_eq!(client.current_max_send_streams(), 7);
    });
}
