//! Item 4: clients that hold every descriptor, so that requests are served and not recorded.

use std::error::Error;
use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use testkit::{
    FakeLlm, Frame, FrameKind, Http1, Http2, LlmlbServer, Reply, Request, UsageReceiver,
    chat_completion, is_reached, resources,
};

use crate::{Attack, Outcome, Target, is_serving, verdict};

/// Descriptors of the server under attack.
const DESCRIPTORS: usize = 128;
/// Connections that attackers try to hold: more than there are descriptors.
const HELD: usize = 200;
/// Clients that send requests while all descriptors are held.
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
        Attack::slow(
            "4-http2-ping-keeps-connection",
            "an idle HTTP/2 connection that answers pings lives forever",
            pinging,
        ),
    ]
}

/// Opens idle connections until the server has no descriptor left, or refuses more of them.
fn hold(server: &LlmlbServer) -> Result<Vec<TcpStream>, Box<dyn Error>> {
    let mut held = Vec::new();
    for _ in 0..HELD {
        if let Ok(mut stream) = TcpStream::connect(server.address()) {
            // Half a request: the connection is not idle.
            let _ = stream.write_all(b"GET /v1/models HTTP/1.1\r\n");
            held.push(stream);
        }
    }
    // The server accepts what waits as soon as anything is closed.
    is_reached(Duration::from_secs(3), || {
        resources::open_descriptors(server.pid()).is_ok_and(|open| open >= DESCRIPTORS)
    });
    Ok(held)
}

/// Requests of clients that connected before the flood.
fn unrecorded(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |_| {
        // Long enough that all clients have a backend connection of their own.
        Reply::json(200, chat_completion("ok", 100, 50)).after(Duration::from_millis(150))
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox.serve().backend(&llm.url());
    let server = server.max_descriptors(DESCRIPTORS).start()?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(Http1::connect(server.address())?);
    }
    // Opens the backend connections that the later requests use.
    ask_all(&mut clients, "before");
    let held = hold(&server)?;
    // The staged entry is sealed after a second, and its descriptor goes to a client.
    thread::sleep(Duration::from_millis(1500));
    let open = resources::open_descriptors(server.pid())?;
    let served = ask_all(&mut clients, "during");
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

/// Sends one request on each connection at once and returns how many were served.
fn ask_all(clients: &mut [Http1], name: &str) -> usize {
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
        .serve()
        .backend(&llm.url())
        .setting("usage.url", &format!("\"{}\"", receiver.url()))
        .setting("usage.every", "\"1s\"")
        .max_descriptors(DESCRIPTORS)
        .start()?;
    let mut client = Http1::connect(server.address())?;
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
        "request answered {response}, its record {word}; {open} descriptors in use, limit {DESCRIPTORS}"
    );
    verdict(is_delivered && response == 200, evidence)
}

/// Names that the limit on idle HTTP/2 connections may have.
const IDLE_SETTINGS: [&str; 3] = [
    "server.http2_idle_timeout",
    "server.h2_idle",
    "server.idle_timeout",
];

fn pinging(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let mut server = sandbox.serve().backend(&llm.url());
    let mut limit = Duration::from_secs(95);
    for name in IDLE_SETTINGS {
        if sandbox.accepts_setting(name, "\"1s\"")? {
            server = server.setting(name, "\"1s\"");
            limit = Duration::from_secs(10);
        }
    }
    let server = server.start()?;
    let client = Http2::connect(server.address())?;
    let began = Instant::now();
    while began.elapsed() < limit && !client.is_closed() {
        // Pings of the client are traffic as well.
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
