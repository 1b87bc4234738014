//! Items 7 and 14h of docs/attacks.md: clients that hold a slot of a backend without making progress.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use testkit::{
    FakeLlm, Http1, Http2, Http2Options, LlmlbServer, Reply, Request, Sandbox, Step,
    chat_completion, try_eventually,
};

use crate::{Attack, Outcome, Target, verdict};

/// Maximum time after which another client must get the slot. After a longer wait the attack counts
/// as successful. All limits of the server are far below it.
const HELD_FOR: Duration = Duration::from_secs(10);

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::slow(
            "7-slow-upload-holds-slot",
            "an upload of a few bytes per second holds the only slot",
            slow_upload,
        ),
        Attack::slow(
            "7-silent-websocket-holds-slot",
            "a WebSocket without traffic holds the only slot",
            silent_websocket,
        ),
        Attack::slow(
            "7-stalled-upload-holds-slot",
            "an upload that never begins holds the only slot until waiting requests time out",
            stalled_upload,
        ),
        Attack::slow(
            "7-window-0-holds-slot",
            "a response that the client does not read holds the only slot until waiting requests time out",
            window_0,
        ),
        Attack::slow(
            "14h-short-body-timeout",
            "body_timeout under 1 s disables the minimum rate",
            short_timeout,
        ),
    ]
}

/// Sends a request of another client and waits until it is served, while `keep` lets the attacker
/// hold the slot. Returns the waiting time; `None` if the attacker kept the slot.
fn time_to_slot(
    server: &LlmlbServer,
    mut keep: impl FnMut(),
) -> Result<Option<Duration>, Box<dyn Error>> {
    let began = Instant::now();
    let mut other = Http1::connect(server.address)?;
    other.send(Request::chat("m", "other").to_bytes())?;
    while began.elapsed() < HELD_FOR {
        keep();
        match other.response_within(Duration::from_millis(200)) {
            Ok(response) if response.status() == 200 => return Ok(Some(began.elapsed())),
            Ok(response) => return Err(format!("other client got {}", response.status()).into()),
            Err(_) => {}
        }
    }
    Ok(None)
}

fn report(freed: Option<Duration>, limit: &str) -> Outcome {
    let evidence = match freed {
        Some(took) => format!("slot free after {:.1} s ({limit})", took.as_secs_f32()),
        None => format!("slot still held after {} s ({limit})", HELD_FOR.as_secs()),
    };
    verdict(freed.is_some(), evidence)
}

fn slow_upload(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&llm.url(), "max_concurrent = 1")
        .setting("server.body_timeout", "\"2s\"")
        .start()?;
    let mut upload = Http1::connect(server.address)?;
    let head = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/octet-stream\r\ncontent-length: 1000000\r\n\r\nx";
    upload.send(head)?;
    try_eventually("the upload has the slot", || {
        let connections = llm.received_bytes();
        let text = connections
            .iter()
            .map(|bytes| String::from_utf8_lossy(bytes));
        text.into_iter()
            .find(|text| text.contains("/v1/files"))
            .map(|_| ())
    })?;
    let freed = time_to_slot(&server, || {
        let _ = upload.send("x");
    })?;
    report(freed, "5 bytes/s, body_timeout 2s")
}

/// Starts llmlb in front of a backend with one slot. A client that stalls loses its slot after a second
/// while other requests wait. All other limits have their defaults.
fn serve_one_slot(sandbox: &Sandbox, llm: &FakeLlm) -> Result<LlmlbServer, Box<dyn Error>> {
    let mut server = sandbox
        .server()
        .backend_with(&llm.url(), "max_concurrent = 1");
    if sandbox.accepts_setting("server.stall_timeout", "\"1s\"")? {
        server = server.setting("server.stall_timeout", "\"1s\"");
    }
    Ok(server.start()?)
}

fn stalled_upload(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = serve_one_slot(&sandbox, &llm)?;
    let mut upload = Http1::connect(server.address)?;
    let head = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/octet-stream\r\ncontent-length: 1000000\r\n\r\n";
    upload.send(head)?;
    has_slot(&server)?;
    let freed = time_to_slot(&server, || {})?;
    report(freed, "no bytes, body_timeout 30s, stall_timeout 1s")
}

fn window_0(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |request| {
        if String::from_utf8_lossy(&request.body).contains("stream") {
            let word = r#"{"choices":[{"index":0,"delta":{"content":"word "}}]}"#;
            let mut reply = Reply::stream();
            for _ in 0..2000 {
                reply = reply.event(word);
            }
            return reply.event("[DONE]").end();
        }
        Reply::json(200, chat_completion("ok", 100, 50))
    })?;
    let sandbox = target.sandbox()?;
    let server = serve_one_slot(&sandbox, &llm)?;
    let options = Http2Options {
        initial_window: 0,
        ..Http2Options::default()
    };
    let mut client = Http2::connect_with(server.address, &options)?;
    let body = r#"{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}"#;
    client.post("/v1/chat/completions", body.as_bytes())?;
    has_slot(&server)?;
    let freed = time_to_slot(&server, || {})?;
    report(freed, "window 0, send_timeout 1m, stall_timeout 1s")
}

/// Waits until one request is in flight: the attacker's request, which has the slot then.
fn has_slot(server: &LlmlbServer) -> Result<(), Box<dyn Error>> {
    try_eventually("the attacker has the slot", || {
        let status = server.try_status().ok()?;
        (status["in_flight"].as_u64()? > 0).then_some(())
    })?;
    Ok(())
}

fn silent_websocket(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", |request| {
        if request.head.field("upgrade").is_none() {
            return Reply::json(200, chat_completion("ok", 100, 50));
        }
        let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                    upgrade: websocket\r\n\r\n";
        Reply::raw(head).then(Step::ReadToEnd).then(Step::Close)
    })?;
    let sandbox = target.sandbox()?;
    let mut server = sandbox
        .server()
        .backend_with(&llm.url(), "max_concurrent = 1");
    let mut limit = "no tunnel_idle setting";
    for name in ["server.tunnel_idle", "upstream.tunnel_idle"] {
        if sandbox.accepts_setting(name, "\"2s\"")? {
            server = server.setting(name, "\"2s\"");
            limit = "tunnel_idle 2s";
        }
    }
    let server = server.start()?;
    let mut websocket = Http1::connect(server.address)?;
    let upgrade = Request::websocket("/v1/realtime?model=m");
    websocket.send(upgrade.to_bytes())?;
    let status = websocket.response()?.status();
    if status != 101 {
        return Err(format!("WebSocket rejected with {status}").into());
    }
    let freed = time_to_slot(&server, || {})?;
    report(freed, limit)
}

/// Sends a body at 1 byte every 200 ms, with `body_timeout` of 500 ms. llmlb holds if it rejects
/// the body with 408, because the minimum rate of bodies also applies if the timeout is under a
/// second.
fn short_timeout(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.body_timeout", "\"500ms\"")
        .start()?;
    let mut client = Http1::connect(server.address)?;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\ncontent-length: 1000000\r\n\r\n{";
    client.send(head)?;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        // A write error is ignored: the server has then closed the connection, and its response,
        // which is read next, shows why.
        let _ = client.send(" ");
        if let Ok(response) = client.response_within(Duration::from_millis(200)) {
            let (status, took) = (response.status(), began.elapsed().as_secs_f32());
            return verdict(
                status == 408,
                format!("client got {status} after {took:.1} s"),
            );
        }
        thread::sleep(Duration::from_millis(1));
    }
    verdict(
        false,
        "still read after 5 s at 5 bytes/s (body_timeout 500ms)",
    )
}
