//! Items 9, 14i, 14p and 14q of docs/attacks.md: backends that any client can eject, and failures
//! that reach clients although another backend works.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use jiff::{Timestamp, ToSpan};
use testkit::{
    FakeLlm, Gate, Http1, LlmlbServer, Received, Reply, Request, Step, chat_completion, is_reached,
};

use crate::{Attack, Outcome, Target, verdict};

pub(crate) fn attacks() -> Vec<Attack> {
    vec![
        Attack::fast(
            "9-eject-by-401",
            "three GETs to which a backend responds 401 eject it for all clients",
            by_unauthorized,
        ),
        Attack::fast(
            "9-eject-by-500",
            "one client's prompt that makes the engine return 500 ejects all backends",
            by_prompt,
        ),
        Attack::fast(
            "9-eject-last-backend",
            "different prompts that make the engine return 500 eject the only backend",
            last_backend,
        ),
        Attack::fast(
            "9-eject-by-truncation",
            "one client's prompt that makes the engine end its response early ejects backends",
            by_truncation,
        ),
        Attack::fast(
            "9-eject-last-by-truncation",
            "different prompts that make the engine end its response early eject the only backend",
            last_by_truncation,
        ),
        Attack::fast(
            "9-eject-by-websocket",
            "one client's WebSockets that the backend resets eject it for all clients",
            by_websocket,
        ),
        Attack::fast(
            "14i-retry-after-date",
            "a date in Retry-After is ignored, and requests are sent within the pause",
            retry_after_date,
        ),
        Attack::fast(
            "14p-backend-key-rejected",
            "a backend's 401 and 403 to llmlb's own key reach the client",
            backend_key,
        ),
        Attack::fast(
            "14q-500-not-failed-over",
            "clients get a 500 beside a healthy backend",
            not_failed_over,
        ),
        Attack::fast(
            "14q-500-not-named",
            "neither the log nor status reports the 500 of a backend",
            not_named,
        ),
    ]
}

fn is_ejected(server: &LlmlbServer, name: &str) -> bool {
    let status = server.backend_status(name);
    status.is_ok_and(|backend| backend["ejected"] == true)
}

fn ok(_: &Received) -> Reply {
    Reply::json(200, chat_completion("ok", 100, 50))
}

fn error(status: u16) -> Reply {
    Reply::json(status, r#"{"error":{"message":"scripted error"}}"#)
}

/// Sends GET requests without a model, to which the first backend responds with 401. llmlb holds if
/// it does not eject this backend, since any client can cause such responses.
fn by_unauthorized(target: &Target) -> Outcome {
    let reply = |request: &Received| match request.path() {
        "/v1/files/f" => error(401),
        _ => ok(request),
    };
    let (one, two) = (FakeLlm::start("m", reply)?, FakeLlm::start("m", reply)?);
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&one.url(), "name = \"one\"")
        .backend_with(&two.url(), "name = \"two\"")
        .start()?;
    for _ in 0..3 {
        server.send(&Request::get("/v1/files/f"))?;
    }
    let ejected = ["one", "two"].map(|name| is_ejected(&server, name));
    let ejected = ejected.into_iter().filter(|ejected| *ejected).count();
    verdict(
        ejected == 0,
        format!("{ejected} of 2 backends ejected after 3 GETs"),
    )
}

/// True if the prompt is one that the fake engines of this module fail on. Any client can send such
/// a prompt, so the failure must not eject the backend.
fn is_poisoned(request: &Received) -> bool {
    request.text().contains("poison")
}

fn engine(request: &Received) -> Reply {
    if is_poisoned(request) {
        error(500)
    } else {
        ok(request)
    }
}

fn by_prompt(target: &Target) -> Outcome {
    const ATTEMPTS: usize = 12;
    let (one, two) = (FakeLlm::start("m", engine)?, FakeLlm::start("m", engine)?);
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&one.url(), "name = \"one\"")
        .backend_with(&two.url(), "name = \"two\"")
        .start()?;
    let mut ejected = 0;
    for _ in 0..ATTEMPTS {
        server.send(&Request::chat("m", "poison"))?;
        let now = ["one", "two"].map(|name| is_ejected(&server, name));
        ejected = ejected.max(now.into_iter().filter(|ejected| *ejected).count());
    }
    let evidence = format!("{ejected} of 2 backends ejected by {ATTEMPTS} equal prompts");
    verdict(ejected == 0, evidence)
}

fn last_backend(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", engine)?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend_with(&llm.url(), "name = \"one\"");
    let server = server.start()?;
    let mut was_ejected = false;
    for number in 0..6 {
        server.send(&Request::chat("m", &format!("poison {number}")))?;
        was_ejected |= is_ejected(&server, "one");
    }
    let victim = server.send(&Request::chat("m", "victim"))?.status();
    let word = if was_ejected {
        "ejected"
    } else {
        "not ejected"
    };
    let evidence = format!("only backend {word} by 6 different prompts, victim got {victim}");
    verdict(!was_ejected && victim == 200, evidence)
}

/// Script of a fake engine that crashes on a poisoned prompt: it ends the response after the first
/// event. Every other prompt is served.
fn crashing_engine(request: &Received) -> Reply {
    if is_poisoned(request) {
        Reply::stream().event("{}").then(Step::Close)
    } else {
        ok(request)
    }
}

/// Sends a poisoned prompt. Fails if its response is complete, because the attack needs a backend
/// that ends the response early.
fn truncate(server: &LlmlbServer, prompt: &str) -> Result<(), Box<dyn Error>> {
    let response = server.send(&Request::chat("m", prompt))?;
    if response.is_complete {
        return Err("the response did not end early".into());
    }
    Ok(())
}

fn by_truncation(target: &Target) -> Outcome {
    const ATTEMPTS: usize = 12;
    let one = FakeLlm::start("m", crashing_engine)?;
    let two = FakeLlm::start("m", crashing_engine)?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&one.url(), "name = \"one\"")
        .backend_with(&two.url(), "name = \"two\"")
        .start()?;
    let mut ejected = 0;
    for _ in 0..ATTEMPTS {
        truncate(&server, "poison")?;
        let now = ["one", "two"].map(|name| is_ejected(&server, name));
        ejected = ejected.max(now.into_iter().filter(|ejected| *ejected).count());
    }
    let evidence = format!("{ejected} of 2 backends ejected by {ATTEMPTS} equal prompts");
    verdict(ejected == 0, evidence)
}

fn last_by_truncation(target: &Target) -> Outcome {
    let llm = FakeLlm::start("m", crashing_engine)?;
    let sandbox = target.sandbox()?;
    let server = sandbox.server().backend_with(&llm.url(), "name = \"one\"");
    let server = server.start()?;
    let mut was_ejected = false;
    for number in 0..6 {
        truncate(&server, &format!("poison {number}"))?;
        was_ejected |= is_ejected(&server, "one");
    }
    let victim = server.send(&Request::chat("m", "victim"))?.status();
    let word = if was_ejected {
        "ejected"
    } else {
        "not ejected"
    };
    let evidence = format!("only backend {word} by 6 different prompts, victim got {victim}");
    verdict(!was_ejected && victim == 200, evidence)
}

/// The backend resets every WebSocket after the client has sent data. llmlb holds if it does not
/// eject the backend: any client could cause such resets.
fn by_websocket(target: &Target) -> Outcome {
    const ATTEMPTS: usize = 6;
    let gates: Vec<_> = (0..2 * ATTEMPTS).map(|_| Gate::new()).collect();
    let reply = {
        let (gates, next) = (gates.clone(), AtomicUsize::new(0));
        move |request: &Received| {
            if request.head.field("upgrade").is_none() {
                return ok(request);
            }
            let number = next.fetch_add(1, Ordering::Relaxed);
            let switched = Reply::raw(
                "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\n\
                 upgrade: websocket\r\n\r\n",
            );
            switched
                .then(Step::WaitFor(gates[number].clone()))
                .then(Step::Reset)
        }
    };
    let one = FakeLlm::start("m", reply)?;
    let two = FakeLlm::answering("m")?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&one.url(), "name = \"one\"")
        .backend_with(&two.url(), "name = \"two\"")
        .start()?;
    let mut was_ejected = false;
    for gate in gates.iter().take(ATTEMPTS) {
        let mut client = Http1::connect(server.address)?;
        // A request without a model goes to the first backend, which resets its WebSockets. A
        // request with a model could go to the other backend, which resets none.
        client.send(Request::websocket("/v1/realtime").to_bytes())?;
        let status = client.response()?.status();
        if status != 101 {
            return Err(format!("WebSocket rejected with {status}").into());
        }
        client.send("garbage")?;
        gate.open();
        let (_, is_closed) = client.read_to_end(testkit::DEADLINE);
        if !is_closed {
            return Err("the WebSocket was not closed".into());
        }
        was_ejected |= is_ejected(&server, "one");
    }
    let word = if was_ejected {
        "ejected"
    } else {
        "not ejected"
    };
    let evidence = format!("backend {word} by {ATTEMPTS} WebSockets that it reset");
    verdict(!was_ejected, evidence)
}

/// A backend responds 429 and requests a pause of 30 s by a date in `Retry-After`. llmlb holds if
/// it sends requests only to the other backend during the pause.
fn retry_after_date(target: &Target) -> Outcome {
    const REQUESTS: usize = 40;
    let limited = FakeLlm::start("m", |_| {
        let until = Timestamp::now() + 30.seconds();
        let date = until.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
        Reply::response(429, &[("retry-after", &date)], "{}")
    })?;
    let other = FakeLlm::start("m", ok)?;
    let sandbox = target.sandbox()?;
    let server = sandbox
        .server()
        .backend_with(&limited.url(), "name = \"limited\"")
        .backend_with(&other.url(), "name = \"other\"")
        .start()?;
    // Wait until the limited backend has sent its first 429, which starts the pause.
    is_reached(testkit::DEADLINE, || {
        let sent = server.send(&Request::chat("m", "first"));
        sent.is_err() || !limited.requests().is_empty()
    });
    let before = limited.requests().len();
    for number in 0..REQUESTS {
        server.send(&Request::chat("m", &format!("prompt {number}")))?;
        thread::sleep(Duration::from_millis(5));
    }
    // An ejection after failures ends after a second, the pause of the `Retry-After` date only
    // after 30 s. A server that ignores the date would by now send requests to the backend again.
    thread::sleep(Duration::from_millis(1100));
    for number in 0..REQUESTS {
        server.send(&Request::chat("m", &format!("later {number}")))?;
    }
    let after = limited.requests().len() - before;
    let evidence = format!("{after} of {} requests sent within the pause", 2 * REQUESTS);
    verdict(after == 0 && before == 1, evidence)
}

fn backend_key(target: &Target) -> Outcome {
    let mut seen = Vec::new();
    for status in [401, 403] {
        let llm = FakeLlm::start("m", move |_| error(status))?;
        let sandbox = target.sandbox()?;
        let server = sandbox
            .server()
            .backend_with(&llm.url(), "api_key_env = \"BACKEND_KEY\"")
            .variable("BACKEND_KEY", "sk-of-the-operator")
            .start()?;
        let response = server.send(&Request::chat("m", "hello"))?;
        seen.push((status, response.status(), response.error_code()));
    }
    let is_hidden =
        |(_, status, code): &(u16, u16, String)| *status == 502 && code == "backend_auth";
    let holds = seen.iter().all(is_hidden);
    let texts: Vec<_> = seen
        .iter()
        .map(|(sent, got, code)| format!("backend {sent}, client {got} {code}"))
        .collect();
    verdict(holds, texts.join("; "))
}

/// Two backends, of which one passes its probes but responds 500 to every request. Clients must get
/// responses of the other one.
struct FailingPair {
    _failing: FakeLlm,
    _healthy: FakeLlm,
    server: LlmlbServer,
}

impl FailingPair {
    fn start(sandbox: &testkit::Sandbox) -> std::io::Result<Self> {
        let failing = FakeLlm::start("m", |_| error(500))?;
        let healthy = FakeLlm::start("m", ok)?;
        let server = sandbox
            .server()
            .backend_with(&failing.url(), "name = \"failing\"")
            .backend_with(&healthy.url(), "name = \"healthy\"")
            .start()?;
        Ok(Self {
            _failing: failing,
            _healthy: healthy,
            server,
        })
    }
}

fn not_failed_over(target: &Target) -> Outcome {
    const CLIENTS: usize = 60;
    let sandbox = target.sandbox()?;
    let twins = FailingPair::start(&sandbox)?;
    let mut failed = 0;
    for number in 0..CLIENTS {
        let response = twins
            .server
            .send(&Request::chat("m", &format!("prompt {number}")))?;
        failed += usize::from(response.status() != 200);
    }
    verdict(
        failed == 0,
        format!("{failed} of {CLIENTS} clients got a 500"),
    )
}

fn not_named(target: &Target) -> Outcome {
    let sandbox = target.sandbox()?;
    let twins = FailingPair::start(&sandbox)?;
    for number in 0..20 {
        twins
            .server
            .send(&Request::chat("m", &format!("prompt {number}")))?;
    }
    let names_it = |line: &str| line.contains("failing") && line.contains("500");
    // A line of the access log does not count as a report of the backend's failure: the status in
    // that line is the status of the response to the client.
    let is_request = |line: &str| line.contains("POST /v1/");
    let in_log = is_reached(Duration::from_millis(500), || {
        let log = twins.server.log();
        log.lines().any(|line| names_it(line) && !is_request(line))
    });
    let backend = twins.server.backend_status("failing")?.to_string();
    let in_status = backend.contains("500");
    let evidence = format!("named in the log: {in_log}, in status: {in_status}");
    verdict(in_log && in_status, evidence)
}
