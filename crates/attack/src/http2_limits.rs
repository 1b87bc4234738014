//! Items 10 and 14d of docs/attacks.md: HTTP/2 frames and HTTP/1.1 heads that cost the server more than the
//! client.

use std::collections::VecDeque;
use std::error::Error;
use std::fmt::Write;
use std::thread;
use std::time::{Duration, Instant};

use testkit::{
    FakeLlm, Frame, FrameKind, Gate, Http1, Http2, Received, Reply, Step, chat_completion,
    is_reached, resources,
};

use crate::{Attack, Outcome, Target, is_serving, megabytes, verdict};

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::slow(
            "10-paced-resets",
            "HTTP/2 resets 0.5 ms apart open thousands of backend requests",
            paced_resets,
        ),
        Attack::fast(
            "10-resets-after-head",
            "streams that are reset after the head of their response open backend requests without end",
            resets_after_head,
        ),
        Attack::fast(
            "14d-http1-header-bytes",
            "a head of 300 kB is buffered",
            header_bytes,
        ),
        Attack::fast(
            "14d-http2-rapid-resets",
            "resets without a pause open thousands of backend requests",
            rapid_resets,
        ),
        Attack::fast(
            "14d-http2-continuation-flood",
            "header frames without an end fill the memory",
            continuations,
        ),
        Attack::fast(
            "14d-http2-settings",
            "the server announces no limit on streams and header bytes",
            settings,
        ),
    ]
}

fn slow_backend() -> Result<(FakeLlm, Gate), Box<dyn Error>> {
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |_: &Received| Reply::json(200, chat_completion("ok", 1, 1)).after_gate(&gate)
    };
    Ok((FakeLlm::start("m", script)?, gate))
}

/// Opens a stream every 0.5 ms and resets each stream after 20 ms, when llmlb has forwarded its
/// request. llmlb holds if at most a quarter of the streams cause requests to the backend.
fn paced_resets(target: &Target) -> Outcome {
    const STREAMS: usize = 2000;
    const PACE: Duration = Duration::from_micros(500);
    const OPEN: usize = 40;
    let (llm, gate) = slow_backend()?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut client = Http2::connect(server.address)?;
    let began = Instant::now();
    let mut open = VecDeque::new();
    let mut sent = 0;
    while sent < STREAMS && !client.is_closed() {
        let Ok(stream) = client.post("/v1/chat/completions", br#"{"model":"m"}"#) else {
            break;
        };
        open.push_back(stream);
        thread::sleep(PACE);
        if open.len() > OPEN
            && let Some(stream) = open.pop_front()
        {
            if client.reset(stream, 8).is_err() {
                break;
            }
            sent += 1;
        }
    }
    let took = began.elapsed().as_secs_f32();
    thread::sleep(Duration::from_millis(200));
    gate.open();
    let opened = llm.requests().len();
    let end = match client.goaway() {
        Some(code) => format!("GOAWAY {code}"),
        None => "no GOAWAY".to_owned(),
    };
    let evidence = format!("{sent} resets in {took:.1} s opened {opened} backend requests; {end}");
    verdict(opened <= STREAMS / 4 && is_serving(&server), evidence)
}

/// Resets each stream as soon as the head of its response arrives, while the backend still streams.
/// llmlb holds if it closes the connection after few backend requests, as `server.max_resets`
/// demands.
fn resets_after_head(target: &Target) -> Outcome {
    const STREAMS: usize = 300;
    // Value of `server.max_resets`. A limit of 60 per minute permits 6 resets at once and then one
    // per second.
    const PER_MINUTE: &str = "60";
    // Maximum number of backend requests that the attack may open. The limit permits so many only
    // if the attack takes 94 s, and even a slow machine needs far less time.
    const ALLOWED: usize = 100;
    let llm = FakeLlm::start("m", |_| {
        let event = b"a\r\ndata: {}\n\n\r\n".to_vec();
        let pause = Duration::from_millis(500);
        Reply::stream().then(Step::SendForever(event, pause))
    })?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend(&llm.url())
        .setting("server.max_resets", PER_MINUTE)
        .start()?;
    let mut client = Http2::connect(server.address)?;
    let began = Instant::now();
    let mut sent = 0;
    while sent < STREAMS && !client.is_closed() {
        let Ok(stream) = client.post("/v1/chat/completions", br#"{"model":"m"}"#) else {
            break;
        };
        let has_head = is_reached(Duration::from_secs(5), || {
            client.is_closed() || client.status(stream).is_some()
        });
        if !has_head || client.reset(stream, 8).is_err() {
            break;
        }
        sent += 1;
    }
    let took = began.elapsed().as_secs_f32();
    is_reached(Duration::from_millis(500), || client.is_closed());
    let opened = llm.requests().len();
    let end = match client.goaway() {
        Some(code) => format!("GOAWAY {code}"),
        None => "no GOAWAY".to_owned(),
    };
    let evidence = format!("{sent} resets in {took:.1} s opened {opened} backend requests; {end}");
    let holds = (1..=ALLOWED).contains(&opened) && client.is_closed();
    verdict(holds && is_serving(&server), evidence)
}

/// Resets streams without a pause, so that llmlb reads each reset together with its request. llmlb
/// holds if it closes the connection and at most a quarter of the streams cause requests to the
/// backend.
fn rapid_resets(target: &Target) -> Outcome {
    const STREAMS: usize = 2000;
    let (llm, gate) = slow_backend()?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut client = Http2::connect(server.address)?;
    let mut bytes = Vec::new();
    for _ in 0..STREAMS {
        let fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":authority", "localhost"),
            (":path", "/v1/chat/completions"),
        ];
        let (stream, opening) = client.opening(&fields, false);
        let body = br#"{"model":"m"}"#;
        bytes.extend(opening);
        bytes.extend(Frame::new(FrameKind::Data, Frame::END_STREAM, stream, body).to_bytes());
        bytes.extend(Frame::new(FrameKind::Reset, 0, stream, 8_u32.to_be_bytes()).to_bytes());
    }
    // Ignore a write error: llmlb is expected to close the connection during the attack.
    let _ = client.send_bytes(&bytes);
    is_reached(Duration::from_secs(1), || client.is_closed());
    gate.open();
    let opened = llm.requests().len();
    let is_closed = client.is_closed();
    let evidence = format!("{opened} backend requests opened, connection closed: {is_closed}");
    let holds = opened <= STREAMS / 4 && is_closed && is_serving(&server);
    verdict(holds, evidence)
}

/// Sends CONTINUATION frames of a header block that never ends. llmlb holds if it closes the
/// connection before the header block uses 16 MiB of memory.
fn continuations(target: &Target) -> Outcome {
    const FRAMES: usize = 4000;
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let before = resources::resident_memory(server.pid())?;
    let client = Http2::connect(server.address)?;
    let block = testkit::hpack::encode(&[("x-field", &"x".repeat(8000))]);
    client.send(&Frame::new(FrameKind::Headers, 0, 1, []))?;
    let frame = Frame::new(FrameKind::Continuation, 0, 1, block);
    let mut sent = 0;
    for _ in 0..FRAMES {
        if client.send(&frame).is_err() || client.is_closed() {
            break;
        }
        sent += 1;
    }
    let is_closed = is_reached(Duration::from_secs(1), || client.is_closed());
    let used = resources::resident_memory(server.pid())?.saturating_sub(before);
    let evidence = format!(
        "{sent} of {FRAMES} frames accepted, {} MB used, connection closed: {is_closed}",
        megabytes(used)
    );
    verdict(
        is_closed && used < 16 << 20 && is_serving(&server),
        evidence,
    )
}

/// Compares the limits that the server announces in its SETTINGS frame with maximum values. Larger
/// limits would let a client use more memory than the other attacks assume.
fn settings(target: &Target) -> Outcome {
    const MAX_CONCURRENT_STREAMS: u16 = 3;
    const MAX_HEADER_LIST_SIZE: u16 = 6;
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let client = Http2::connect(server.address)?;
    let settings = testkit::try_eventually("the server announces its settings", || {
        let frames = client.control_frames();
        let is_first = |frame: &Frame| frame.kind == FrameKind::Settings && frame.flags == 0;
        frames.into_iter().find(is_first)
    })?;
    let value = |wanted: u16| {
        settings.payload.chunks_exact(6).find_map(|setting| {
            let (name, value) = setting.split_first_chunk::<2>()?;
            let value = value.first_chunk::<4>()?;
            (u16::from_be_bytes(*name) == wanted).then(|| u32::from_be_bytes(*value))
        })
    };
    let (streams, headers) = (value(MAX_CONCURRENT_STREAMS), value(MAX_HEADER_LIST_SIZE));
    let evidence = format!("streams {streams:?}, header bytes {headers:?}");
    let holds = streams.is_some_and(|count| count <= 1000)
        && headers.is_some_and(|bytes| bytes <= 128 << 10);
    verdict(holds, evidence)
}

fn header_bytes(target: &Target) -> Outcome {
    let llm = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend(&llm.url()).start()?;
    let mut client = Http1::connect(server.address)?;
    let mut head = String::from("GET /healthz HTTP/1.1\r\nhost: localhost\r\n");
    for number in 0..30 {
        let value = "x".repeat(10_000);
        let _ = write!(head, "x-field-{number}: {value}\r\n");
    }
    head.push_str("\r\n");
    // Ignore a write error: the server may respond and close the connection before it has read the
    // whole head.
    let _ = client.send(&head);
    let status = client.response().map_or(0, |response| response.status());
    let evidence = format!("client got {status} for a head of {} kB", head.len() / 1000);
    // Closing the connection without a response also counts as a rejection.
    verdict(status != 200 && is_serving(&server), evidence)
}
