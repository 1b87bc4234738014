//! Item 4 of docs/attacks.md: clients that use up all file descriptors, so that requests are served and not
//! recorded.

use std::error::Error;
use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use testkit::{
    FakeLlm, Frame, FrameKind, Gate, Http1, Http2, LlmlbServer, Received, Reply, Request,
    UsageReceiver, chat_completion, is_reached, resources,
};

use crate::{Attack, Outcome, Target, is_serving, verdict};

/// Maximum number of file descriptors that the server under attack may open.
const DESCRIPTORS: usize = 128;
/// Number of connections that attackers open, more than the limit of descriptors.
const HELD: usize = 200;
/// Number of clients that send requests while attackers hold all descriptors.
const CLIENTS: usize = 12;

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::slow(
            "4-served-but-not-recorded",
            "requests are served and not recorded while clients hold all descriptors",
            unrecorded,
        ),
        Attack::slow(
            "4-delivery-starved",
            "usage records are not delivered while clients hold all descriptors",
            undelivered,
        ),
        Attack::fast(
            "4-one-address-takes-backend-connections",
            "one address holds all connections to backends, and other clients get 503",
            backend_connections,
        ),
        Attack::slow(
            "4-http2-ping-keeps-connection",
            "an idle HTTP/2 connection that responds to pings is never closed",
            pinging,
        ),
    ]
}

/// Opens connections with an incomplete request until the server has no descriptor left, or rejects
/// connections. Returns the connections, which occupy the descriptors until they are dropped.
fn hold(server: &LlmlbServer) -> Result<Vec<TcpStream>, Box<dyn Error>> {
    let mut held = Vec::new();
    for _ in 0..HELD {
        if let Ok(mut stream) = TcpStream::connect(server.address) {
            // An incomplete request head keeps the connection from being idle. A server could close
            // idle connections to free their descriptors.
            let _ = stream.write_all(b"GET /v1/models HTTP/1.1\r\n");
            held.push(stream);
        }
    }
    // Wait until the server has accepted enough connections from the kernel's queue to use up its
    // descriptors. Without the wait, the attack would continue while descriptors are free.
    is_reached(Duration::from_secs(3), || {
        resources::open_descriptors(server.pid()).is_ok_and(|open| open >= DESCRIPTORS)
    });
    Ok(held)
}

/// Sends requests on connections that were opened before a flood of connections used up the
/// server's descriptors. llmlb must serve some of the requests, and every served request must have
/// a usage record.
fn unrecorded(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |_| {
        // Delay every response, so that all requests are in flight at the same time and each client
        // uses a backend connection of its own.
        Reply::json(200, chat_completion("ok", 100, 50)).after(Duration::from_millis(150))
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url());
    let server = server.max_descriptors(DESCRIPTORS).start()?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Http1::connect(server.address)?);
    }
    // Make the server open the backend connections that the later requests reuse. A server without
    // a free descriptor could not open them later and would serve no request.
    send_all(&mut clients, "before");
    let held = hold(&server)?;
    // The server seals and closes its staging entry after a second. A waiting client connection
    // then uses the descriptor that became free, so none is left when the next record must be
    // written.
    thread::sleep(Duration::from_millis(1500));
    let open = resources::open_descriptors(server.pid())?;
    let served = send_all(&mut clients, "during");
    let mut recorded = 0;
    for number in 0..CLIENTS {
        let record = sandbox.record_of(&format!("during-{number}"))?;
        let is_complete = record.is_some_and(|record| record["outcome"] == "complete");
        recorded += usize::from(is_complete);
    }
    drop(held);
    let evidence = format!(
        "{served} of {CLIENTS} requests served, {recorded} recorded; {open} \
         descriptors in use, limit {DESCRIPTORS}"
    );
    verdict(served > 0 && recorded == served, evidence)
}

/// Sends one request on each connection at the same time. Returns the number of requests with
/// status 200.
fn send_all(clients: &mut [Http1], name: &str) -> usize {
    let mut sent = Vec::new();
    for (number, client) in clients.iter_mut().enumerate() {
        let request = Request::chat("m", "hello").field("x-request-id", format!("{name}-{number}"));
        sent.push(client.send(request.to_bytes()).is_ok());
    }
    let is_served = |client: &mut Http1| client.response().is_ok_and(|one| one.status() == 200);
    let mut served = 0;
    for (client, is_sent) in clients.iter_mut().zip(sent) {
        served += usize::from(is_sent && is_served(client));
    }
    served
}

fn undelivered(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let receiver = UsageReceiver::accepting()?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("usage.url", &format!("\"{}\"", receiver.url))
        .setting("usage.every", "\"1s\"")
        .max_descriptors(DESCRIPTORS)
        .start()?;
    let mut client = Http1::connect(server.address)?;
    let held = hold(&server)?;
    client.send(Request::chat("m", "hello").to_bytes())?;
    let response = client.response()?.status();
    let is_delivered = is_reached(Duration::from_secs(8), || !receiver.records().is_empty());
    let open = resources::open_descriptors(server.pid())?;
    drop(held);
    let word = if is_delivered {
        "delivered"
    } else {
        "not delivered within 8 s"
    };
    let evidence = format!(
        "client got {response}, its record {word}; {open} descriptors in use, limit {DESCRIPTORS}"
    );
    verdict(is_delivered && response == 200, evidence)
}

/// Sends as many requests as possible from one address over a few HTTP/2 connections. llmlb holds
/// if it rejects the excess with 429 and still serves another address. A trusted proxy reports the
/// addresses, because programs on this machine have no limit.
fn backend_connections(target: &Target) -> Outcome {
    const CONNECTIONS: usize = 3;
    const STREAMS: usize = 120;
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |request: &Received| {
            let reply = Reply::json(200, chat_completion("ok", 100, 50));
            if request.text().contains("victim") {
                return reply;
            }
            reply.after_gate(&gate)
        }
    };
    let llm = FakeLlm::start("m", script)?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.trusted_proxies", "[\"127.0.0.1\"]")
        .max_descriptors(2 * DESCRIPTORS)
        .start()?;
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/v1/chat/completions"),
        ("x-forwarded-for", "203.0.113.1"),
    ];
    let mut clients = Vec::new();
    let mut streams = Vec::new();
    for number in 0..CONNECTIONS {
        let mut client = Http2::connect(server.address)?;
        for _ in 0..STREAMS {
            let stream = client.open(&fields, false)?;
            client.data(stream, br#"{"model":"m"}"#, true)?;
            streams.push((number, stream));
        }
        clients.push(client);
    }
    // Wait until every request of the attacker is in flight at the backend or was rejected. Only
    // then has the attacker as many backend connections as llmlb permits, and the victim's request
    // can be judged.
    is_reached(Duration::from_secs(10), || {
        let is_rejected = |(number, stream): &&(usize, u32)| {
            let client: &Http2 = &clients[*number];
            client.status(*stream).is_some()
        };
        llm.requests().len() + streams.iter().filter(is_rejected).count() >= streams.len()
    });
    let held = llm.requests().len();
    let victim = Request::chat("m", "victim").field("x-forwarded-for", "203.0.113.2");
    let other = server.send(&victim)?.status();
    let statuses = streams
        .iter()
        .filter_map(|(number, stream)| clients[*number].status(*stream));
    let is_told = statuses.collect::<Vec<_>>().iter().all(|one| *one == 429);
    gate.open();
    let evidence = format!(
        "{held} of {} requests of one address at the backend; another address got {other}",
        streams.len()
    );
    verdict(other == 200 && held > 0 && is_told, evidence)
}

/// Names of settings that limit idle HTTP/2 connections. Earlier versions of llmlb have none of
/// them.
const IDLE_SETTINGS: [&str; 3] = [
    "server.http2_idle_timeout",
    "server.h2_idle",
    "server.idle_timeout",
];

fn pinging(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let mut server = sandbox.server().backend(&llm.url());
    let mut limit = Duration::from_secs(95);
    for name in IDLE_SETTINGS {
        if sandbox.accepts_setting(name, "\"1s\"")? {
            server = server.setting(name, "\"1s\"");
            limit = Duration::from_secs(10);
        }
    }
    let server = server.start()?;
    let client = Http2::connect(server.address)?;
    let began = Instant::now();
    while began.elapsed() < limit && !client.is_closed() {
        // The client sends pings and opens no stream. llmlb must close the connection as idle all
        // the same. Otherwise pings would hold a descriptor at almost no cost.
        let _ = client.send(&Frame::new(FrameKind::Ping, 0, 0, [7; 8]));
        thread::sleep(Duration::from_millis(500));
    }
    let seconds = began.elapsed().as_secs();
    let word = if client.is_closed() {
        "closed"
    } else {
        "still open"
    };
    let evidence = format!("idle connection {word} after {seconds} s of pings");
    verdict(client.is_closed() && is_serving(&server), evidence)
}
