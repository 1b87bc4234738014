//! How much memory the bodies of requests may take together. (L10, L11)

use std::io::Read;
use testkit::{
    Connection, LlmlbServer,
    backends::{ASK, CHAT, backend, code, count, ok, serve},
    eventually,
    h2_client::{connect, request, run, send},
    until, wire,
};

const LIMITS: &[(&str, &str)] = &[
    ("LLMLB_MAX_BODY", "1MiB"),
    ("LLMLB_BODY_MEMORY", "1MiB"),
    ("LLMLB_PROBE_INTERVAL", "1h"),
];

/// A question of so many bytes.
fn question(length: usize) -> String {
    let (before, after) = (r#"{"model":"m","x":""#, r#""}"#);
    let text = "y".repeat(length - before.len() - after.len());
    format!("{before}{text}{after}")
}

/// A client that has sent this much of a question, and pauses.
fn pausing(server: &LlmlbServer, question: &str, sent: usize) -> Connection {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{}",
        question.len(),
        &question[..sent]
    ));
    client
}

/// A client that has sent so much of a question that there is no room for another one, whose client is
/// told as it expects.
fn filling(server: &LlmlbServer, question: &str) -> Connection {
    eventually("there is no room", || {
        // If the other one was quicker, this one has none.
        let first = pausing(server, question, 500_000);
        let answer = server.post(CHAT, question);
        if answer.status() == 200 {
            return None;
        }
        assert_eq!(answer.status(), 503, "{answer:?}");
        assert_eq!(code(&answer), "overloaded");
        assert!(answer.head.header("retry-after").is_some(), "{answer:?}");
        Some(first)
    })
}

/// Everything was given back: one body may have all there is.
fn until_empty(server: &LlmlbServer) {
    until("there is room again", || {
        server.post(CHAT, &question(1 << 20)).status() == 200
    });
}

#[test]
fn what_does_not_fit_is_refused_until_there_is_room_again() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], LIMITS);
    let large = question(600_000);
    // Two that arrive at the same moment may keep each other out.
    until("the first one is served", || {
        let mut first = filling(&server, &large);
        // A small request always fits.
        assert_eq!(server.post(CHAT, ASK).status(), 200);
        first.send(&large[500_000..]);
        first.answer().status() == 200
    });
    until_empty(&server);
}

#[test]
fn what_a_client_that_leaves_had_is_given_back_and_no_more() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], LIMITS);
    let large = question(600_000);
    for _ in 0..3 {
        drop(filling(&server, &large));
        until_empty(&server);
    }
    // Had it been given back twice, there would be room for two, whoever comes first.
    until("there is no room for two", || {
        let _first = filling(&server, &large);
        server.post(CHAT, &large).status() == 503
    });
}

#[test]
fn a_body_is_held_until_it_is_answered_and_not_while_it_is() {
    let place = testkit::sandbox!();
    let mock = backend(|request, stream| {
        if request.text().contains("silent") {
            let _ = stream.read(&mut [0]);
        } else if request.text().contains("endless") {
            wire::begin_stream(stream);
            wire::chunk(stream, "data: 1\n\n");
            let _ = stream.read(&mut [0]);
        } else {
            ok(request, stream);
        }
    });
    let server = serve(&place, &[&mock], LIMITS);
    let asking = |word: &str| {
        let mut client = Connection::open(server.address);
        client.send_post(CHAT, &question(900_000).replacen("yyyyyyy", word, 1));
        client
    };
    let waiting = asking("silent!");
    until("it is asked", || count(&mock) == 1);
    assert_eq!(server.post(CHAT, &question(900_000)).status(), 503);
    drop(waiting);
    until_empty(&server);
    let mut answered = asking("endless");
    assert_eq!(answered.head().status(), 200);
    until_empty(&server);
}

/// The address space of a process, in bytes.
#[cfg(target_os = "linux")]
fn address_space(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse::<u64>().unwrap() << 10
}

#[cfg(target_os = "linux")]
#[test]
fn announced_length_takes_no_memory() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], testkit::backends::UNPROBED);
    let limit = Some(address_space(server.process.pid()) + (256 << 20));
    let limit = rustix::process::Rlimit {
        current: limit,
        maximum: limit,
    };
    let pid = i32::try_from(server.process.pid())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    rustix::process::prlimit(pid, rustix::process::Resource::As, limit).unwrap();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n",
        32 << 20
    );
    let part = vec![b' '; 30_000];
    let held: Vec<_> = (0..40)
        .map(|_| {
            let mut client = Connection::open(server.address);
            client.send(head.as_bytes());
            client.send(&part);
            client
        })
        .collect();
    // Sent after all of them, and answered by a server that is alive.
    for _ in 0..20 {
        assert_eq!(server.post(CHAT, ASK).status(), 200);
    }
    drop(held);
}

#[test]
fn client_that_sends_on_after_a_refusal_sees_the_response() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], LIMITS);
    for _ in 0..5 {
        let mut client = Connection::open(server.address);
        // Larger than allowed, which is known from the head, and than the sockets hold.
        client.send_post(CHAT, &question(16 << 20));
        let answer = client.answer();
        assert_eq!(answer.status(), 413, "{answer:?}");
        assert_eq!(code(&answer), "body_too_large");
        assert!(client.is_closed());
    }
}

#[test]
fn idle_http_2_connections_leave_the_memory_to_others() {
    let place = testkit::sandbox!();
    let mock = backend(ok);
    let server = serve(&place, &[&mock], LIMITS);
    run(async {
        let mut idle = Vec::new();
        for _ in 0..12 {
            let (client, _) = connect(server.address, &h2::client::Builder::new()).await;
            let asking = request(::http::Method::POST, CHAT);
            let response = send(&client, asking, ASK).await.await;
            assert_eq!(response.unwrap().status(), 200);
            idle.push(client);
        }
        // Twelve connections of 32 KiB leave 600 KiB besides the part for connections.
        assert_eq!(server.post(CHAT, &question(500_000)).status(), 200);
    });
}
