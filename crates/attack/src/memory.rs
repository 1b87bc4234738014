//! Items 5, 6 and 14c of docs/attacks.md: memory that clients and backends can make the server use.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{
    FakeLlm, Http1, Http2, Http2Options, LlmlbServer, Reply, Request, chat_completion, is_reached,
    resources,
};

use crate::{Attack, Outcome, Target, is_serving, megabytes, verdict};

const MIB: u64 = 1 << 20;

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "5-announced-length-aborts",
            "announced lengths are allocated up front, and the process aborts",
            announced,
        ),
        Attack::slow(
            "6-window-0-own-responses",
            "llmlb's own responses to a client with window 0 are held forever",
            |target| window_0(target, Held::Own),
        ),
        Attack::slow(
            "6-window-0-short-responses",
            "short responses of backends to a client with window 0 are held forever",
            |target| window_0(target, Held::Short),
        ),
        Attack::slow(
            "6-body-memory-bodies",
            "bodies over HTTP/2 use more than body_memory",
            |target| beyond_body_memory(target, Filling::Bodies),
        ),
        Attack::slow(
            "6-body-memory-headers",
            "header fields over HTTP/2 use more than body_memory",
            |target| beyond_body_memory(target, Filling::Headers),
        ),
        Attack::slow(
            "6-body-memory-responses",
            "unsent responses over HTTP/2 use more than body_memory",
            |target| beyond_body_memory(target, Filling::Responses),
        ),
        Attack::slow(
            "14c-large-model-list",
            "a model list of 7 MB costs more than 1 GB",
            model_list,
        ),
    ]
}

/// Sends requests that announce bodies of 32 MiB and send 30 kB, to a server with an address space
/// of 1 GiB. llmlb holds if it survives: memory for the announced lengths would exceed the address
/// space.
fn announced(target: &Target) -> Outcome {
    const CLIENTS: usize = 40;
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url());
    let server = server.max_address_space(1 << 30).start()?;
    let piece = [b' '; 15 << 10];
    let mut clients = Vec::new();
    let mut sent = 0;
    for _ in 0..CLIENTS {
        let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
                    content-type: application/json\r\ncontent-length: 33554432\r\n\r\n";
        let Ok(mut client) = Http1::connect(server.address) else {
            break;
        };
        if client.send(head).is_ok() && client.send(piece).is_ok() {
            sent += head.len() + piece.len();
            clients.push(client);
        }
    }
    // A server that allocates the announced length in advance does so at the latest when more of
    // the body follows, so the client sends a second piece.
    thread::sleep(Duration::from_millis(100));
    for client in &mut clients {
        sent += client.send(piece).map_or(0, |()| piece.len());
    }
    is_reached(Duration::from_secs(1), || !server.is_running());
    let end = match server.process.exit_status()? {
        Some(status) => format!("server ended: {status}"),
        None => "server runs".to_owned(),
    };
    verdict(
        is_serving(&server),
        format!("{end} after {} kB were sent", sent / 1000),
    )
}

/// Kind of the responses that a client requests and does not read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// Responses of llmlb itself: the client requests the model list of 1 MB.
    Own,
    /// Responses of a backend: the client requests short chat completions, which llmlb has to hold
    /// while the client does not read.
    Short,
}

/// A client announces an HTTP/2 window of 0, sends up to 200 requests and reads no response. llmlb
/// holds if it aborts all responses once `send_timeout` has passed, so that they do not occupy
/// memory forever.
fn window_0(target: &Target, held: Held) -> Outcome {
    const STREAMS: usize = 200;
    let llm = many_models()?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.send_timeout", "\"2s\"")
        .start()?;
    let before = resources::resident_memory(server.pid())?;
    let options = Http2Options {
        initial_window: 0,
        ..Http2Options::default()
    };
    let mut client = Http2::connect_with(server.address, &options)?;
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        let opened = match held {
            Held::Own => client.get("/v1/models"),
            Held::Short => client.post("/v1/chat/completions", br#"{"model":"m0"}"#),
        };
        // The server may close the connection to defend itself. The attack then opens no more
        // streams, and all responses count as aborted.
        let Ok(stream) = opened else { break };
        streams.push(stream);
    }
    let began = Instant::now();
    let mut peak = 0;
    let is_released = is_reached(Duration::from_secs(15), || {
        peak = peak.max(growth(&server, before).unwrap_or(0));
        thread::sleep(Duration::from_millis(50));
        client.is_closed() || client.ended_streams() >= streams.len()
    });
    let held = streams.len() - client.ended_streams();
    let seconds = began.elapsed().as_secs_f32();
    let peak = megabytes(peak);
    let evidence = if is_released {
        format!("all responses aborted after {seconds:.1} s (send_timeout 2s), {peak} MB at most")
    } else {
        format!("{held} responses still held after {seconds:.0} s (send_timeout 2s), {peak} MB")
    };
    verdict(is_released && is_serving(&server), evidence)
}

fn growth(server: &LlmlbServer, before: u64) -> io::Result<u64> {
    Ok(resources::resident_memory(server.pid())?.saturating_sub(before))
}

/// Direction of the data with which the attack fills the buffers of each HTTP/2 stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Filling {
    Bodies,
    Headers,
    Responses,
}

/// Fills the buffers of all streams of many HTTP/2 connections, with `body_memory` of 16 MiB. llmlb
/// holds if its memory grows by at most `body_memory`, 32 KiB per connection and 48 MiB for the
/// process itself.
fn beyond_body_memory(target: &Target, filling: Filling) -> Outcome {
    let connections: u32 = match filling {
        Filling::Bodies | Filling::Headers => 60,
        // Two connections are enough to exceed the bound if the server buffers all responses: each
        // connection requests 190 responses of 1 MB.
        Filling::Responses => 2,
    };
    let bound = (16 + 48) * MIB + u64::from(connections) * (32 << 10);
    let llm = many_models()?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.body_memory", "\"16MiB\"")
        .start()?;
    let before = resources::resident_memory(server.pid())?;
    let mut clients = Vec::new();
    for _ in 0..connections {
        clients.extend(fill(&server, filling));
    }
    let mut peak = 0;
    is_reached(Duration::from_secs(3), || {
        peak = peak.max(growth(&server, before).unwrap_or(0));
        false
    });
    drop(clients);
    let evidence = format!(
        "{} MB used with body_memory of 16 MiB and {connections} connections; bound {} MB",
        megabytes(peak),
        megabytes(bound)
    );
    verdict(peak <= bound && is_serving(&server), evidence)
}

fn fill(server: &LlmlbServer, filling: Filling) -> Option<Http2> {
    const STREAMS: usize = 190;
    let options = Http2Options {
        initial_window: 0,
        ..Http2Options::default()
    };
    let mut client = Http2::connect_with(server.address, &options).ok()?;
    let piece = [b' '; 16 << 10];
    let long = "x".repeat(14_000);
    for _ in 0..STREAMS {
        let sent = match filling {
            Filling::Bodies => {
                is_reached(Duration::from_millis(500), || {
                    client.connection_window() >= piece.len() as u64
                });
                let opened = client.open_post("/v1/chat/completions");
                opened.and_then(|stream| client.data(stream, &piece, false))
            }
            Filling::Headers => {
                let fields = [
                    (":method", "POST"),
                    (":scheme", "http"),
                    (":authority", "localhost"),
                    (":path", "/v1/chat/completions"),
                    ("x-long", &long),
                ];
                client.open(&fields, false).map(|_| ())
            }
            Filling::Responses => client.get("/v1/models").map(|_| ()),
        };
        // The server may close the connection to limit its memory. The attack then opens no further
        // stream on this connection.
        if sent.is_err() || client.is_closed() {
            break;
        }
    }
    Some(client)
}

/// Returns a backend with a model list of 1 MB and short responses.
fn many_models() -> io::Result<FakeLlm> {
    let models: Vec<_> = (0..8000)
        .map(|number| json!({ "id": format!("m{number}"), "owned_by": "x".repeat(80) }))
        .collect();
    let list = json!({ "data": models }).to_string();
    FakeLlm::builder(&[])
        .models_reply(move |_| Reply::json(200, &list))
        .start(|_| Reply::json(200, chat_completion("ok", 100, 50)))
}

/// A backend sends a model list of 7 MB that consists of many small objects. llmlb holds if it does
/// not need many times that memory to parse the list.
fn model_list(target: &Target) -> Outcome {
    const BYTES: usize = 7_000_000;
    const BOUND: u64 = 200 * MIB;
    let mut list = String::from("{\"data\":[{\"id\":\"m\"}");
    while list.len() < BYTES {
        list.push_str(",{\"id\":\"m\",\"a\":{\"b\":{\"c\":{}}}}");
    }
    list.push_str("]}");
    let size = list.len();
    let llm = FakeLlm::builder(&[])
        .models_reply(move |_| Reply::json(200, &list))
        .start(|_| Reply::json(200, "{}"))?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("upstream.probe_interval", "\"1s\"")
        .start()?;
    is_reached(Duration::from_secs(4), || llm.probes().len() >= 3);
    // The server has parsed at least two model lists by now. Both were in memory until the second list
    // replaced the first, so the peak includes both.
    let _ = server.send(&Request::get("/v1/models"));
    let peak = resources::peak_memory(server.pid())?;
    let evidence = format!(
        "{} MB at most for a list of {} MB",
        megabytes(peak),
        size / 1_000_000
    );
    verdict(peak <= BOUND, evidence)
}
