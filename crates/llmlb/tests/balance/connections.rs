//! Limits on the connections of clients: their number, and the time for which they may be idle.
//! (promise L11)

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use testkit::{
    Answer, Connection, DEADLINE, Head, LlmlbServer, Request,
    backends::{ASK, CHAT, backend, code, ok, serve},
    h2_client::{answer, next, post, request, send},
    raw, until, wire,
};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// Connections from this machine that the server accepts beyond the limit.
const EXTRA_LOCAL: usize = 4;
const SHORT_IDLE: &[(&str, &str)] = &[
    ("LLMLB_PROBE_INTERVAL", "1h"),
    ("LLMLB_SERVER_IDLE_TIMEOUT", "200ms"),
];

fn post_on(client: &mut Connection) -> Answer {
    client.send_post(CHAT, ASK);
    client.answer()
}

/// Returns `/status`, requested on an open connection.
fn status(client: &mut Connection) -> Value {
    client.send_get("/status");
    client.answer().json()
}

/// Opens a connection beyond the limit. Returns the response, for which no request was sent.
fn open_rejected(server: &LlmlbServer) -> Answer {
    let mut client = Connection::open(server.address);
    let response = client.answer();
    assert!(client.is_closed());
    response
}

#[test]
fn connections_beyond_the_limit_get_503_and_are_closed() {
    const MAX: usize = 6;
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let max = MAX.to_string();
    let settings = [
        ("LLMLB_PROBE_INTERVAL", "1h"),
        ("LLMLB_MAX_CONNECTIONS", &*max),
    ];
    let server = serve(&sandbox, &[&mock], &settings);
    let mut held: Vec<_> = (0..MAX + EXTRA_LOCAL)
        .map(|_| Connection::open(server.address))
        .collect();
    for client in &mut held {
        assert_eq!(post_on(client).status(), 200);
    }
    for _ in 0..50 {
        let response = open_rejected(&server);
        assert_eq!(response.status(), 503, "{response:?}");
        assert_eq!(code(&response), "too_many_connections");
        assert_eq!(response.head.header("retry-after").as_deref(), Some("1"));
        assert_eq!(response.head.header("connection").as_deref(), Some("close"));
    }
    // Rejecting new connections must not end the connections that are already open.
    for client in &mut held {
        assert_eq!(post_on(client).status(), 200);
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
fn upgraded_connection_counts_until_it_is_closed() {
    let sandbox = testkit::sandbox!();
    let raw = raw::heads(|_, reader| {
        let agreed = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
            upgrade: websocket\r\n\r\n";
        let _ = std::io::Write::write_all(reader.get_mut(), agreed);
        let _ = std::io::Read::read(reader, &mut [0]);
    });
    let server = sandbox.serve(&format!("--backend {}", raw.url()));
    let mut client = Connection::open(server.address);
    client.send(Request::websocket("/v1/realtime?model=m").to_bytes());
    assert_eq!(client.head().status(), 101);
    let open = |of: &str, count: u64| server.status()[of]["open"] == count;
    // The request to `/status` has its own client connection, so two client connections are open.
    until("both connections are counted", || {
        open("connections", 2) && open("backend_connections", 1)
    });
    drop(client);
    until("only the connection of /status is left", || {
        open("connections", 1) && open("backend_connections", 0)
    });
}

#[test]
fn idle_http_2_connection_is_closed_although_it_answers_pings() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], SHORT_IDLE);
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
            // The client library answers the server's pings and this task sends pings. Pings are no
            // requests and must not keep an idle connection open.
            tasks.spawn(async move {
                while ping.ping(h2::Ping::opaque()).await.is_ok() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
            if has_request {
                assert_eq!(post(&client, CHAT, ASK).await.status, 200);
            }
            // `client` is dropped after the connection has ended, so that only the server can end the
            // connection.
            let ended = connection.await.unwrap();
            assert!(ended.is_ok(), "not a GOAWAY without an error: {ended:?}");
            drop(client);
        }
    };
    let closed = runtime.block_on(async { timeout(DEADLINE, closed).await });
    closed.expect("the server closes idle connections");
}

#[test]
fn silent_http_2_client_is_disconnected() {
    const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], SHORT_IDLE);
    // The client acknowledges neither the server's settings nor a ping, like one whose machine is
    // gone. The server must not keep its connection forever.
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
fn stream_longer_than_the_idle_timeout_is_complete() {
    let sandbox = testkit::sandbox!();
    let (resume, resumed) = channel::<()>();
    let resumed = Mutex::new(resumed);
    let mock = backend(move |_, stream: &mut TcpStream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: 1\n\n");
        let _ = resumed.lock().unwrap().recv();
        wire::chunk(stream, "data: 2\n\n");
        wire::end_stream(stream);
    });
    let server = serve(&sandbox, &[&mock], SHORT_IDLE);
    testkit::h2_client::connected(server.address, async |client| {
        let response = send(&client, request(::http::Method::POST, CHAT), ASK).await;
        let mut body = response.await.unwrap().into_body();
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "data: 1\n\n");
        tokio::time::sleep(Duration::from_secs(1)).await;
        resume.send(()).unwrap();
        assert_eq!(next(&mut body).await.unwrap().unwrap(), "data: 2\n\n");
        assert!(next(&mut body).await.is_none());
        // A long stream must not use up the idle timeout: the connection still serves the next
        // request.
        resume.send(()).unwrap();
        let response = send(&client, request(::http::Method::POST, CHAT), ASK).await;
        assert_eq!(answer(response).await.status, 200);
    });
}

#[test]
fn idle_http_1_connections_and_unfinished_heads_are_closed() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&sandbox, &[&mock], SHORT_IDLE);
    let mut idle = Connection::open(server.address);
    assert_eq!(post_on(&mut idle).status(), 200);
    let mut silent = Connection::open(server.address);
    let mut slow = Connection::open(server.address);
    slow.send("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n");
    let drip = std::thread::spawn(move || {
        // The timeout applies to the whole head: a client must not extend it by sending single
        // bytes.
        while std::io::Write::write_all(slow.reader.get_mut(), b"x").is_ok() {
            sleep(Duration::from_millis(20));
        }
    });
    assert!(idle.is_closed());
    assert!(silent.is_closed());
    drip.join().unwrap();
    until("only the connection of /status is left", || {
        server.status()["connections"]["open"] == 1
    });
}

#[test]
fn http_2_settings_announce_the_stream_limit() {
    let sandbox = testkit::sandbox!();
    let mock = backend(ok);
    let settings = [("LLMLB_PROBE_INTERVAL", "1h"), ("LLMLB_MAX_STREAMS", "7")];
    let server = serve(&sandbox, &[&mock], &settings);
    testkit::h2_client::connected(server.address, async |client| {
        // The first response arrives after the server's HTTP/2 settings, so from then on the client
        // knows the limit on streams.
        assert_eq!(post(&client, CHAT, ASK).await.status, 200);
        assert_eq!(client.current_max_send_streams(), 7);
    });
}
