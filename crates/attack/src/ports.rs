//! Item 4 of docs/attacks.md: clients that use up the local ports of the server, so that no backend can be
//! reached.
//!
//! The side that closes a TCP connection first keeps its port in TIME_WAIT for a minute. A connection
//! that is reset leaves no port behind.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use testkit::{
    FakeLlm, Http1, LlmlbServer, Received, Reply, Request, Step, chat_completion, resources,
    try_eventually,
};

use crate::{Attack, Outcome, Target, Verdict, verdict};

const EXHAUSTED: &str = "4-cancelled-streams-exhaust-ports";
const ONE_BACKEND: &str = "4-ports-of-one-backend-exhausted";

/// Range of local ports in the network namespace of the attack. The range is small, so that leaked
/// ports soon make backend connections fail.
const PORTS: u16 = 200;
const FIRST_PORT: u16 = 40_000;

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "4-ports-in-time-wait",
            "exchanges that a client cancels or a backend rejects leave ports in TIME_WAIT",
            time_wait,
        ),
        Attack::fast(
            EXHAUSTED,
            "a client cancels streams until no local port is left, and others get 503",
            exhausted,
        ),
        Attack::fast(
            ONE_BACKEND,
            "no local port is left for one backend, and the other backend is not tried",
            one_backend,
        ),
    ]
}

fn engine(request: &Received) -> Reply {
    let text = request.text();
    let error = |status| Reply::json(status, r#"{"error":{"message":"scripted error"}}"#);
    if text.contains("endless") {
        return Reply::stream().event("{}").then(Step::ReadToEnd);
    }
    if text.contains("silent") {
        return Reply::nothing().then(Step::ReadToEnd);
    }
    if text.contains("reject options") && text.contains("stream_options") {
        return Reply::json(
            400,
            r#"{"error":{"message":"unknown field stream_options"}}"#,
        );
    }
    for status in [401, 500, 503] {
        if text.contains(&format!("respond {status}")) {
            return error(status);
        }
    }
    Reply::json(200, chat_completion("ok", 100, 50))
}

fn streamed(prompt: &str) -> Request {
    let body = serde_json::json!({
        "model": "m",
        "stream": true,
        "messages": [{ "role": "user", "content": prompt }],
    });
    Request::post("/v1/chat/completions", body.to_string())
}

/// Waits until no request is in flight at a backend. llmlb has then closed the backend connections
/// of cancelled requests, so their ports can be counted.
fn wait_until_idle(server: &LlmlbServer) -> Result<(), Box<dyn Error>> {
    try_eventually("no request is in flight", || {
        let status = server.try_status().ok()?;
        let mut backends = status["backends"].as_array()?.iter();
        let is_idle = backends.all(|backend| backend["in_flight"] == 0);
        is_idle.then_some(())
    })?;
    Ok(())
}

/// Waits until a request is in flight at a backend, so that a disconnect of the client afterwards
/// cancels a backend connection in use.
fn wait_until_busy(server: &LlmlbServer) -> Result<(), Box<dyn Error>> {
    try_eventually("a request is in flight", || {
        let status = server.try_status().ok()?;
        let mut backends = status["backends"].as_array()?.iter();
        backends.any(|one| one["in_flight"] != 0).then_some(())
    })?;
    Ok(())
}

/// Function that sends a request through a server to a backend, such that the server cannot reuse
/// the backend connection afterwards.
type UnreusableExchange = fn(&LlmlbServer) -> Result<(), Box<dyn Error>>;

fn time_wait(target: &Target) -> Outcome {
    let (one, two) = (FakeLlm::start("m", engine)?, FakeLlm::start("m", engine)?);
    let kept = || -> Result<BTreeSet<String>, Box<dyn Error>> {
        let mut kept = resources::closed_first(one.address.port())?;
        kept.append(&mut resources::closed_first(two.address.port())?);
        Ok(kept)
    };
    let mut before = kept()?;
    let sandbox = target.sandbox()?;
    let key = "api_key_env = \"BACKEND_KEY\"";
    let server = sandbox
        .server()
        .backend_with(&one.url(), key)
        .backend_with(&two.url(), key)
        .variable("BACKEND_KEY", "sk-of-the-operator")
        .start()?;
    let mut left = Vec::new();
    let exchanges: [(&str, UnreusableExchange); 7] = [
        ("cancelled stream", |server| cancel(server, "endless")),
        ("cancelled request", |server| cancel(server, "silent")),
        ("cancelled upload", cancel_upload),
        ("401", |server| complete(server, "respond 401")),
        ("500", |server| complete(server, "respond 500")),
        ("503", |server| complete(server, "respond 503")),
        ("rejected option", |server| {
            complete(server, "reject options")
        }),
    ];
    for (name, exchange) in exchanges {
        for _ in 0..3 {
            exchange(&server)?;
        }
        wait_until_idle(&server)?;
        let now = kept()?;
        match now.difference(&before).count() {
            0 => {}
            count => left.push(format!("{name}: {count}")),
        }
        before.extend(now);
    }
    let evidence = if left.is_empty() {
        format!("no port kept after {} kinds of exchanges", exchanges.len())
    } else {
        format!("ports kept after {}", left.join(", "))
    };
    verdict(left.is_empty(), evidence)
}

/// Sends a request and disconnects during its response, or before it. llmlb then has to close the
/// backend connection, which must not leave a port in TIME_WAIT.
fn cancel(server: &LlmlbServer, prompt: &str) -> Result<(), Box<dyn Error>> {
    let mut client = Http1::connect(server.address)?;
    client.send(streamed(prompt).to_bytes())?;
    if prompt == "endless" {
        client.response_head()?;
    } else {
        wait_until_busy(server)?;
    }
    // Reset the client connection instead of closing it, so that the client itself leaves no port
    // in TIME_WAIT. The attack is about ports that the server's backend connections leave.
    client.reset()?;
    wait_until_idle(server)
}

/// Disconnects during an upload that is streamed to the backend. llmlb then has to close the
/// backend connection, which must not leave a port in TIME_WAIT.
fn cancel_upload(server: &LlmlbServer) -> Result<(), Box<dyn Error>> {
    let mut client = Http1::connect(server.address)?;
    client.send(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/octet-stream\r\ncontent-length: 1000000\r\n\r\nx",
    )?;
    wait_until_busy(server)?;
    client.reset()?;
    wait_until_idle(server)
}

fn complete(server: &LlmlbServer, prompt: &str) -> Result<(), Box<dyn Error>> {
    server.send(&streamed(prompt))?;
    Ok(())
}

/// Runs an attack in a network namespace with few local ports, so that it can exhaust them in a
/// short time.
fn with_few_ports(target: &Target, name: &str, attack: fn(&Target) -> Outcome) -> Outcome {
    if !rustix::process::geteuid().is_root() {
        let reason = "needs root for a network namespace";
        return Ok(Verdict::Skipped(reason.to_owned()));
    }
    if !target.is_isolated() {
        return target.run_isolated(name);
    }
    let range = format!("{FIRST_PORT} {}", FIRST_PORT + PORTS - 1);
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", range)?;
    // Forbid the reuse of ports in TIME_WAIT. By default Linux reuses them on loopback after a
    // second, and the attack would not run out of ports.
    fs::write("/proc/sys/net/ipv4/tcp_tw_reuse", "0")?;
    attack(target)
}

/// Returns one of many loopback addresses. Each has local ports of its own, so that the few ports
/// of the namespace suffice for the clients of the attack.
fn source(number: usize) -> IpAddr {
    let last = u8::try_from(2 + number % 200).unwrap_or(2);
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))
}

fn exhausted(target: &Target) -> Outcome {
    with_few_ports(target, EXHAUSTED, |target| {
        let llm = FakeLlm::start("m", engine)?;
        let sandbox = target.sandbox()?;
        let server = sandbox.server().backend(&llm.url()).start()?;
        let attempts = usize::from(PORTS) * 3 / 2;
        let mut rejected = 0;
        for number in 0..attempts {
            let mut client = Http1::connect_from(source(number), server.address)?;
            client.send(streamed("endless").to_bytes())?;
            rejected += usize::from(client.response_head()?.status() != 200);
            client.reset()?;
        }
        let mut victim = Http1::connect_from(source(0), server.address)?;
        victim.send(Request::chat("m", "victim").to_bytes())?;
        let victim = victim.response()?.status();
        let evidence = format!(
            "victim got {victim} after {attempts} cancelled streams and {PORTS} ports; {rejected} \
             streams rejected"
        );
        verdict(victim == 200 && rejected == 0, evidence)
    })
}

fn one_backend(target: &Target) -> Outcome {
    with_few_ports(target, ONE_BACKEND, |target| {
        let busy = FakeLlm::builder(&["a", "m"]).start(|request| {
            if request.path() == "/v1/files/f" {
                return Reply::json(200, "{}");
            }
            Reply::stream().event("{}").then(Step::ReadToEnd)
        })?;
        let free = FakeLlm::start("m", |_| Reply::json(200, "{}"))?;
        let sandbox = target.sandbox()?;
        let server = sandbox
            .server()
            .backend_with(&busy.url(), "name = \"busy\"")
            .backend_with(&free.url(), "name = \"free\"")
            .start()?;
        let mut held = Vec::new();
        let is_full = (0..usize::from(PORTS) + 50).any(|number| {
            let Ok(mut client) = Http1::connect_from(source(number), server.address) else {
                return false;
            };
            let is_sent = client.send(Request::chat("a", "hold").to_bytes()).is_ok();
            let head = client.response_head();
            let is_rejected = head.is_ok_and(|head| head.status() == 503);
            held.push(client);
            is_sent && is_rejected
        });
        if !is_full {
            return Err("the ports were not exhausted".into());
        }
        // The victim's request names no model, so it goes to the first backend that can serve it.
        let mut victim = Http1::connect_from(source(0), server.address)?;
        victim.send(Request::get("/v1/files/f").to_bytes())?;
        let status = victim.response()?.status();
        let served = free.requests().len();
        let held = held.len();
        let evidence = format!(
            "victim got {status}, {served} request served by the other backend; {held} held"
        );
        verdict(status == 200 && served == 1, evidence)
    })
}
