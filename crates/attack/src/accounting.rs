//! Item 6 of docs/attacks.md: memory that is held without being charged to `body_memory`, and charges for
//! memory that is not held, which starve other clients.

use std::error::Error;
use std::thread;
use std::time::Duration;

use serde_json::json;
use testkit::{
    FakeLlm, Gate, Http1, Http2, Http2Options, LlmlbServer, Received, Reply, Request, Step,
    chat_completion, is_reached, resources,
};

use crate::{Attack, Outcome, Target, is_serving, megabytes, verdict};

const MIB: u64 = 1 << 20;
/// Allowance for memory growth that clients do not cause: program pages that are used for the first time, and
/// free memory of the allocator.
const BESIDES: u64 = 12 * MIB;

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "6-websocket-bytes-charged",
            "bytes on a WebSocket use up body_memory, and other clients are rejected",
            websocket,
        ),
        Attack::fast(
            "6-unread-model-lists-charged",
            "a model list that many streams share uses up body_memory for each of them",
            unread_lists,
        ),
        Attack::fast(
            "6-idle-http2-charged",
            "idle HTTP/2 connections use up body_memory, and other clients are rejected",
            idle_http2,
        ),
        Attack::slow(
            "6-idle-after-large-request",
            "idle HTTP/1.1 connections keep large buffers that body_memory does not count",
            |target| beyond_http1(target, Http1Filling::LargeRequest),
        ),
        Attack::slow(
            "6-bytes-behind-body",
            "bytes after a body over HTTP/1.1 are buffered and not charged",
            |target| beyond_http1(target, Http1Filling::BehindBody),
        ),
        Attack::slow(
            "6-body-memory-paths",
            "long paths over HTTP/2 use more than body_memory",
            paths,
        ),
    ]
}

fn upgrade() -> Request {
    Request::get("/v1/realtime?model=m")
        .field("connection", "upgrade")
        .field("upgrade", "websocket")
        .field("sec-websocket-version", "13")
        .field("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
}

/// Sends more bytes than `body_memory` through one WebSocket, then a prompt of 1 MB from another
/// client. llmlb holds if the WebSocket stays open and the prompt is served: bytes that llmlb has
/// forwarded must not stay charged to `body_memory`.
fn websocket(target: &Target) -> Outcome {
    const SENT: usize = 24 << 20;
    let llm = FakeLlm::start("m", |request| {
        if request.head.field("upgrade").is_none() {
            return Reply::json(200, chat_completion("ok", 100, 50));
        }
        let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                    upgrade: websocket\r\n\r\n";
        Reply::raw(head).then(Step::ReadToEnd).then(Step::Close)
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.body_memory", "\"16MiB\"")
        .start()?;
    let mut client = Http1::connect(server.address)?;
    client.send(upgrade().to_bytes())?;
    let status = client.response()?.status();
    if status != 101 {
        return Err(format!("WebSocket rejected with {status}").into());
    }
    let piece = vec![b'x'; 64 << 10];
    let mut sent = 0;
    let mut is_open = true;
    while is_open && sent < SENT {
        is_open = client.send(&piece).is_ok();
        sent += piece.len();
    }
    let prompt = "y".repeat(1_000_000);
    let other = server.send(&Request::chat("m", &prompt))?.status();
    // Write once more: if the server has reset the WebSocket, this write fails. The attack would
    // otherwise reach its verdict without noticing the reset.
    is_open &= client.send(&piece).is_ok();
    let word = if is_open { "open" } else { "reset" };
    let evidence = format!(
        "{} MB sent with body_memory of 16 MiB: WebSocket {word}, other client got {other}",
        sent / 1_000_000
    );
    verdict(is_open && other == 200, evidence)
}

/// Returns a backend with a model list of 1 MB and short responses.
fn many_models() -> Result<FakeLlm, Box<dyn Error>> {
    let models: Vec<_> = (0..8000)
        .map(|number| json!({ "id": format!("m{number}"), "owned_by": "x".repeat(80) }))
        .collect();
    let list = json!({ "data": models }).to_string();
    Ok(FakeLlm::builder(&[])
        .models_reply(move |_| Reply::json(200, &list))
        .start(|_| Reply::json(200, chat_completion("ok", 100, 50)))?)
}

/// Requests the model list on many streams of a single connection and reads no response. llmlb
/// holds if it responds to every stream and to other clients: the streams share one copy of the
/// list, so `body_memory` must not be charged for each stream.
fn unread_lists(target: &Target) -> Outcome {
    const STREAMS: usize = 60;
    let llm = many_models()?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.body_memory", "\"16MiB\"")
        .start()?;
    let list = server.send(&Request::get("/v1/models"))?.body.len();
    let options = Http2Options {
        initial_window: 0,
        ..Http2Options::default()
    };
    let mut client = Http2::connect_with(server.address, &options)?;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(client.get("/v1/models")?);
    }
    is_reached(Duration::from_secs(5), || {
        streams
            .iter()
            .all(|stream| client.status(*stream).is_some())
    });
    let is_served = |stream: &&u32| client.status(**stream) == Some(200);
    let served = streams.iter().filter(is_served).count();
    let other = server.send(&Request::get("/v1/models"))?.status();
    let prompt = "y".repeat(100_000);
    let chat = server.send(&Request::chat("m1", &prompt))?.status();
    let evidence = format!(
        "{served} of {STREAMS} streams were sent a list of {} kB with body_memory of 16 MiB; other \
         clients got {other} for the list and {chat} for a prompt of 100 kB",
        list / 1000
    );
    verdict(served == STREAMS && other == 200 && chat == 200, evidence)
}

/// Opens HTTP/2 connections and leaves them idle, then sends a prompt of 1 MB from each of two
/// other clients. llmlb holds if it accepts every idle connection and serves both prompts: idle
/// connections must not use up `body_memory`.
fn idle_http2(target: &Target) -> Outcome {
    const CONNECTIONS: usize = 100;
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |_: &Received| Reply::json(200, chat_completion("ok", 100, 50)).after_gate(&gate)
    };
    let llm = FakeLlm::start("m", script)?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.body_memory", "\"16MiB\"")
        .start()?;
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut client = Http2::connect(server.address)?;
        // A connection that the server rejects is not counted as open. The attack then counts as
        // successful, because llmlb must accept every idle connection.
        let Ok(stream) = client.get("/healthz") else {
            continue;
        };
        is_reached(Duration::from_secs(2), || client.status(stream).is_some());
        idle.push((client, stream));
    }
    let served = |(client, stream): &&(Http2, u32)| client.status(*stream) == Some(200);
    let open = idle.iter().filter(served).count();
    // A body that is alone in memory may exceed `body_memory`, so two bodies are sent at the same time.
    let request = Request::chat("m", &"y".repeat(1_000_000)).to_bytes();
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = Http1::connect(server.address)?;
        let _ = client.send(&request);
        clients.push(client);
    }
    is_reached(Duration::from_secs(2), || {
        llm.requests().len() >= clients.len()
    });
    gate.open();
    let served = (clients.iter_mut())
        .filter_map(|client| client.response().ok())
        .filter(|response| response.status() == 200)
        .count();
    let evidence = format!(
        "{open} of {CONNECTIONS} idle connections with body_memory of 16 MiB; {served} of 2 \
         prompts of 1 MB were served"
    );
    verdict(open == CONNECTIONS && served == 2, evidence)
}

/// Data that the attack sends on each HTTP/1.1 connection, to fill one kind of buffer in llmlb.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Http1Filling {
    /// A request of 600 kB, after which the connection is idle.
    LargeRequest,
    /// A request of 600 kB, then a head, a pause, a small body and 120 kB of further bytes, while the
    /// backend does not respond.
    BehindBody,
}

/// Sends large requests on many HTTP/1.1 connections and keeps the connections open. llmlb holds if
/// its memory grows by at most `body_memory`, plus 32 KiB per connection, plus `BESIDES`.
fn beyond_http1(target: &Target, filling: Http1Filling) -> Outcome {
    const CONNECTIONS: usize = 600;
    let bound = 24 * MIB + CONNECTIONS as u64 * (32 << 10) + BESIDES;
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |request: &Received| {
            let reply = Reply::json(200, chat_completion("ok", 100, 50));
            if request.text().contains("silent") {
                return reply.after_gate(&gate);
            }
            reply
        }
    };
    let llm = FakeLlm::start("m", script)?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.body_memory", "\"24MiB\"")
        // The idle timeout is long, because opening 600 connections takes long on a slow machine.
        // The default timeout could close connections on which the attack has not sent its request
        // yet.
        .setting("server.idle_timeout", "\"10m\"")
        .start()?;
    let before = resources::resident_memory(server.pid())?;
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.extend(Http1::connect(server.address).ok());
    }
    large_requests(&mut clients);
    if filling == Http1Filling::BehindBody {
        bytes_behind_bodies(&mut clients);
    }
    let peak = settled(&server, before);
    let open = clients.len();
    gate.open();
    drop(clients);
    let evidence = format!(
        "{} MB used by {open} connections with body_memory of 24 MiB; bound {} MB",
        megabytes(peak),
        megabytes(bound)
    );
    let holds = open > CONNECTIONS / 2 && peak <= bound;
    verdict(holds && is_serving(&server), evidence)
}

/// Sends a large request on each connection, and leaves the connections open.
fn large_requests(clients: &mut Vec<Http1>) {
    let request = Request::chat("m", &"x".repeat(600_000)).to_bytes();
    clients.retain_mut(|client| client.send(&request).is_ok() && client.response().is_ok());
}

fn bytes_behind_bodies(clients: &mut Vec<Http1>) {
    let body = r#"{"model":"m","x":"silent"}"#.to_owned();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    let mut rest = body.into_bytes();
    rest.resize(rest.len() + 120_000, b' ');
    clients.retain_mut(|client| client.send(&head).is_ok());
    // After the pause the server has read every head, so it reads the bodies and the bytes behind
    // them into further buffers. The attack checks that those buffers are limited too.
    thread::sleep(Duration::from_millis(500));
    clients.retain_mut(|client| client.send(&rest).is_ok());
}

/// Returns the largest growth of the server's memory within three seconds.
fn settled(server: &LlmlbServer, before: u64) -> u64 {
    let mut peak = 0;
    is_reached(Duration::from_secs(3), || {
        let memory = resources::resident_memory(server.pid()).unwrap_or(0);
        peak = peak.max(memory.saturating_sub(before));
        thread::sleep(Duration::from_millis(20));
        false
    });
    peak
}

/// Opens streams whose paths have a query of 30 kB. The backend does not respond, so llmlb keeps
/// the paths in memory. llmlb holds if its memory grows by at most `body_memory`, plus 32 KiB per
/// connection, plus `BESIDES`.
fn paths(target: &Target) -> Outcome {
    const CONNECTIONS: usize = 8;
    const STREAMS: usize = 110;
    let bound = 16 * MIB + CONNECTIONS as u64 * (32 << 10) + BESIDES;
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |_: &Received| Reply::stream().then(Step::WaitFor(gate.clone())).end()
    };
    let llm = FakeLlm::start("m", script)?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.body_memory", "\"16MiB\"")
        .start()?;
    let before = resources::resident_memory(server.pid())?;
    let path = format!("/v1/chat/completions?x={}", "y".repeat(30_000));
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let Ok(mut client) = Http2::connect(server.address) else {
            continue;
        };
        for _ in 0..STREAMS {
            // The server may close the connection to limit its memory. The attack then opens no
            // further stream on this connection.
            if client.post(&path, br#"{"model":"m"}"#).is_err() || client.is_closed() {
                break;
            }
        }
        clients.push(client);
    }
    let peak = settled(&server, before);
    let requests = llm.requests().len();
    gate.open();
    drop(clients);
    let evidence = format!(
        "{} MB used by {requests} requests with body_memory of 16 MiB; bound {} MB",
        megabytes(peak),
        megabytes(bound)
    );
    let holds = requests > 0 && peak <= bound;
    verdict(holds && is_serving(&server), evidence)
}
