//! Item 8 and the limits of 14j in docs/attacks.md: clients whose requests delay those of other clients in
//! the queue.
//!
//! The verdict does not depend on time. It counts the attacker's requests that the backend executes after the
//! victim's arrival and before the victim's request.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use testkit::{
    FakeLlm, Gate, Http1, LlmlbServer, Received, Reply, Request, chat_completion, try_eventually,
};

use crate::{Attack, Outcome, Target, verdict};

/// Number of requests of the attacker.
const FLOOD: usize = 60;
/// Maximum number of the attacker's requests that may be executed before the victim's: the request in flight,
/// and one round of the queue.
const ALLOWED: usize = 3;
const SERVICE: Duration = Duration::from_millis(20);

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "8-invented-credentials",
            "each invented credential counts as a client, and a victim waits for all of them",
            invented,
        ),
        Attack::fast(
            "8-one-client-fills-queue",
            "one client fills the queue, and other clients are rejected",
            full_queue,
        ),
        Attack::fast(
            "8-one-credential-fills-queue",
            "one client fills the queue, and other clients of its address are rejected",
            full_of_one_credential,
        ),
        Attack::fast(
            "14j-clients-behind-proxy-share-a-turn",
            "all clients behind a reverse proxy share one position in the fair queue",
            behind_proxy,
        ),
    ]
}

/// Address of the victim, which the server treats as a machine other than the attacker's.
const VICTIM: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const ATTACKER: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A backend with one slot, which is in use until the gate is open.
struct BusyBackend {
    llm: FakeLlm,
    gate: Gate,
}

impl BusyBackend {
    fn start() -> Result<Self, Box<dyn Error>> {
        let gate = Gate::new();
        let script = {
            let gate = gate.clone();
            move |_: &Received| {
                let reply = Reply::json(200, chat_completion("ok", 100, 50));
                reply.after(SERVICE).after_gate(&gate)
            }
        };
        let llm = FakeLlm::start("m", script)?;
        Ok(Self { llm, gate })
    }
}

fn begin(address: SocketAddr, source: IpAddr, request: &Request) -> Result<Http1, Box<dyn Error>> {
    let mut client = Http1::connect_from(source, address)?;
    client.send(request.to_bytes())?;
    Ok(client)
}

fn wait_until_queued(server: &LlmlbServer, count: usize) -> Result<(), Box<dyn Error>> {
    try_eventually("the requests wait in the queue", || {
        let status = server.try_status().ok()?;
        (status["waiting"].as_u64()? >= count as u64).then_some(())
    })?;
    Ok(())
}

/// Floods the queue, adds a victim's request, and counts the attacker's requests that are served before it.
fn overtaken(
    server: &LlmlbServer,
    busy: &BusyBackend,
    flood: impl Fn(usize) -> Request,
    (source, victim): (IpAddr, &Request),
) -> Outcome {
    let address = server.address;
    let first = begin(address, ATTACKER, &flood(0))?;
    try_eventually("the slot is in use", || busy.llm.requests().pop())?;
    let mut attackers = vec![first];
    for number in 1..FLOOD {
        attackers.push(begin(address, ATTACKER, &flood(number))?);
    }
    wait_until_queued(server, FLOOD - 1)?;
    let mut waiting = begin(address, source, victim)?;
    wait_until_queued(server, FLOOD)?;
    let began = Instant::now();
    busy.gate.open();
    let status = waiting.response()?.status();
    let took = began.elapsed().as_millis();
    let requests = busy.llm.requests();
    let position = requests
        .iter()
        .position(|one| one.text().contains("victim"));
    let ahead = position.unwrap_or(requests.len());
    let evidence = format!(
        "victim got {status} after {took} ms, behind {ahead} of {FLOOD} requests of the attacker"
    );
    verdict(status == 200 && ahead <= ALLOWED, evidence)
}

fn invented(target: &Target) -> Outcome {
    let busy = BusyBackend::start()?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&busy.llm.url(), "max_concurrent = 1")
        .start()?;
    let flood = |number| {
        let credential = format!("Bearer invented-{number}");
        Request::chat("m", "flood").field("authorization", credential)
    };
    let victim = Request::chat("m", "victim").field("authorization", "Bearer real");
    overtaken(&server, &busy, flood, (VICTIM, &victim))
}

fn behind_proxy(target: &Target) -> Outcome {
    let busy = BusyBackend::start()?;
    let sandbox = target.sandbox()?;
    let mut server = sandbox
        .server()
        .backend_with(&busy.llm.url(), "max_concurrent = 1");
    let trusted = ("server.trusted_proxies", "[\"127.0.0.1\"]");
    if sandbox.accepts_setting(trusted.0, trusted.1)? {
        server = server.setting(trusted.0, trusted.1);
    }
    let server = server.start()?;
    let flood = |_| Request::chat("m", "flood").field("x-forwarded-for", "203.0.113.1");
    let victim = Request::chat("m", "victim").field("x-forwarded-for", "203.0.113.2");
    overtaken(&server, &busy, flood, (ATTACKER, &victim))
}

fn full_queue(target: &Target) -> Outcome {
    const QUEUE: usize = 10;
    let busy = BusyBackend::start()?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&busy.llm.url(), "max_concurrent = 1")
        .setting("server.queue", &QUEUE.to_string())
        .start()?;
    let flood = Request::chat("m", "flood");
    let mut attackers = vec![begin(server.address, ATTACKER, &flood)?];
    try_eventually("the slot is in use", || busy.llm.requests().pop())?;
    for _ in 0..QUEUE {
        attackers.push(begin(server.address, ATTACKER, &flood)?);
    }
    wait_until_queued(&server, QUEUE)?;
    let mut waiting = begin(server.address, VICTIM, &Request::chat("m", "victim"))?;
    // Wait until the victim's request has reached the queue. llmlb must serve the victim when the
    // slot is free, and reject a request of the attacker instead.
    thread::sleep(Duration::from_millis(50));
    busy.gate.open();
    let victim = waiting.response()?.status();
    let mut rejected = Vec::new();
    for mut attacker in attackers {
        let response = attacker.response()?;
        if response.status() == 429 {
            rejected.push(response.head.field("retry-after").is_some());
        }
    }
    let evidence = format!(
        "victim got {victim}, {} requests of the attacker got 429, {} of them with Retry-After",
        rejected.len(),
        rejected.iter().filter(|has_field| **has_field).count()
    );
    let holds = victim == 200 && rejected == [true];
    verdict(holds, evidence)
}

/// Fills the queue with requests of one credential. Victims have the attacker's address and other
/// credentials. llmlb holds if it serves all victims, and rejects one of the attacker's requests
/// for each of them.
fn full_of_one_credential(target: &Target) -> Outcome {
    const QUEUE: usize = 10;
    const VICTIMS: usize = 3;
    let busy = BusyBackend::start()?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&busy.llm.url(), "max_concurrent = 1")
        .setting("server.queue", &QUEUE.to_string())
        .start()?;
    let flood = Request::chat("m", "flood").field("authorization", "Bearer heavy");
    let mut attackers = vec![begin(server.address, ATTACKER, &flood)?];
    try_eventually("the slot is in use", || busy.llm.requests().pop())?;
    for _ in 0..QUEUE {
        attackers.push(begin(server.address, ATTACKER, &flood)?);
    }
    wait_until_queued(&server, QUEUE)?;
    let mut victims = Vec::new();
    for number in 0..VICTIMS {
        let credential = format!("Bearer light-{number}");
        let victim = Request::chat("m", "victim").field("authorization", credential);
        victims.push(begin(server.address, ATTACKER, &victim)?);
    }
    // The queue rejects one request for each victim that arrives. The gate opens after the last
    // rejection. Until then the slot is in use and no request is served, so the order of arrival
    // cannot change the verdict.
    let clients = attackers.iter_mut().chain(&mut victims);
    let clients: Vec<&mut Http1> = clients.collect();
    let statuses = rejected_then_served(clients, VICTIMS, &busy.gate)?;
    let (flood, victims) = statuses.split_at(QUEUE + 1);
    let count = |statuses: &[u16], status| statuses.iter().filter(|one| **one == status).count();
    let evidence = format!(
        "{} of {VICTIMS} victims served, {} of {} requests of the attacker got 429",
        count(victims, 200),
        count(flood, 429),
        flood.len()
    );
    let holds = count(victims, 200) == VICTIMS && count(flood, 429) == VICTIMS;
    verdict(holds, evidence)
}

/// Waits until `rejected` clients have a response, then opens the gate. Returns all statuses.
fn rejected_then_served(
    clients: Vec<&mut Http1>,
    rejected: usize,
    gate: &Gate,
) -> Result<Vec<u16>, Box<dyn Error>> {
    let mut statuses = vec![None; clients.len()];
    let mut waiting: Vec<(usize, &mut Http1)> = clients.into_iter().enumerate().collect();
    let began = Instant::now();
    while statuses.iter().flatten().count() < rejected && began.elapsed() < testkit::DEADLINE {
        for (number, client) in &mut waiting {
            if statuses[*number].is_none() {
                let response = client.response_within(Duration::from_millis(5));
                statuses[*number] = response.ok().map(|response| response.status());
            }
        }
    }
    gate.open();
    for (number, client) in waiting {
        if statuses[number].is_none() {
            statuses[number] = Some(client.response()?.status());
        }
    }
    Ok(statuses.into_iter().flatten().collect())
}
