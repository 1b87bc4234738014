//! Clients that send requests all the time while backends are killed, restarted or hang. (promise L8)

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::backend_process::BackendProcess;
use testkit::{
    Answer, Connection, LlmlbServer, Sandbox,
    backends::{CHAT, PROBED_OFTEN},
    eventually, until,
};

const CLIENTS: usize = 16;
/// Duration of the storm in which backends are killed as fast as they start.
const FAST_STORM: Duration = Duration::from_secs(4);

/// Returns a request body with a unique number, in different sizes. Backends echo it.
fn unique_body(client: usize, number: usize) -> String {
    let filler = "words ".repeat(number % 7 * 1500);
    format!(r#"{{"model":"m","client":{client},"number":{number},"text":"{filler}"}}"#)
}

#[derive(Default)]
struct Counts {
    served: AtomicUsize,
    failed: AtomicUsize,
}

impl Counts {
    fn count(&self, status: u16) {
        let count = if status == 200 {
            &self.served
        } else {
            &self.failed
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Checks a response.
type Check = fn(&LlmlbServer, &Answer);

fn assert_served(server: &LlmlbServer, answer: &Answer) {
    assert_eq!(answer.status(), 200, "{answer:?}\n{}", history(server));
}

/// Asserts that a request was served, or failed on two backends. A request that may have crashed two
/// backends is not sent to a third.
fn assert_served_or_retried(server: &LlmlbServer, answer: &Answer) {
    if answer.status() == 200 {
        return;
    }
    let id = answer.head.header("x-request-id").unwrap();
    let suffix = format!(" id={id}");
    let line = eventually("the request is logged", || {
        let log = server.process.stderr();
        let line = log.lines().find(|line| line.ends_with(&suffix));
        line.map(str::to_owned)
    });
    let tried = line.matches(" failed=").count();
    assert!(tried >= 2, "{answer:?}\n{line}\n{}", history(server));
}

/// Sends requests until the storm is over. Every response must be complete and echo its request.
fn send_requests(
    server: &LlmlbServer,
    check: Check,
    client: usize,
    over: &AtomicBool,
    counts: &Counts,
) {
    let mut connection = Connection::open(server.address);
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let body = unique_body(client, number);
        connection.send_post(CHAT, &body);
        let answer = connection.answer();
        check(server, &answer);
        let is_echo = answer.status() != 200 || answer.text() == body;
        assert!(is_echo, "response of another request");
        if answer.head.header("connection").as_deref() == Some("close") {
            connection = Connection::open(server.address);
        }
        counts.count(answer.status());
    }
}

/// Guard that ends the storm when it is dropped, also if the test fails.
struct EndStorm<'a>(&'a AtomicBool);

impl Drop for EndStorm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the last 40 log lines that do not report a success, to show them when the test fails.
fn history(server: &LlmlbServer) -> String {
    let log = server.process.stderr();
    let about_backends: Vec<_> = log
        .lines()
        .filter(|line| !line.contains("status=200"))
        .collect();
    let from = about_backends.len().saturating_sub(40);
    about_backends[from..].join("\n")
}

/// Sends streaming requests until the storm is over. A stream may be cut, but not shortened silently.
fn send_streaming_requests(server: &LlmlbServer, check: Check, over: &AtomicBool, counts: &Counts) {
    let whole: Vec<_> = (0..10)
        .map(|number| format!("data: {number}\n\n"))
        .collect();
    while !over.load(Ordering::Relaxed) {
        let answer = server.post(CHAT, r#"{"model":"m","stream":true}"#);
        check(server, &answer);
        let status = answer.status();
        if let (200, Ok(body)) = (status, answer.body) {
            assert_eq!(String::from_utf8_lossy(&body), whole.concat());
        }
        counts.count(status);
    }
}

/// Runs `disturb` while clients send requests. When `disturb` returns, or any client fails, all
/// clients stop.
#[expect(clippy::print_stderr, reason = "reports the number of requests")]
fn storm(server: &LlmlbServer, check: Check, disturb: impl FnOnce()) {
    let (over, counts) = (AtomicBool::new(false), Counts::default());
    thread::scope(|scope| {
        let _over = EndStorm(&over);
        for client in 0..CLIENTS {
            let (over, counts) = (&over, &counts);
            scope.spawn(move || {
                let guard = EndStorm(over);
                if client % 4 == 0 {
                    send_streaming_requests(server, check, over, counts);
                } else {
                    send_requests(server, check, client, over, counts);
                }
                drop(guard);
            });
        }
        disturb();
    });
    let (served, failed) = (counts.served.into_inner(), counts.failed.into_inner());
    eprintln!("{served} requests served, {failed} failed");
    assert!(served >= CLIENTS);
    server.until_in_flight(0);
}

fn serve(sandbox: &Sandbox, backends: &[BackendProcess]) -> LlmlbServer {
    let flags: Vec<_> = backends.iter().map(BackendProcess::flag).collect();
    let mut command = sandbox.command(&format!("serve -p 0 {}", flags.join(" ")));
    command.env("LLMLB_LOG_REQUESTS", "true");
    sandbox.serve_with(command.envs(PROBED_OFTEN.iter().copied()))
}

/// Waits until this backend has served 50 more requests, so that its failures from earlier kills no
/// longer count against it.
fn until_serving(server: &LlmlbServer, backend: &BackendProcess) {
    let name = backend.address.to_string();
    let before = server.status();
    until("the backend serves requests again", || {
        let now = server.status();
        let requests = |status: &Value| backend_status(status, &name)["requests"].as_u64().unwrap();
        backend_status(&now, &name)["up"] == true && requests(&now) > requests(&before) + 50
    });
}

fn until_all_are_up(server: &LlmlbServer) {
    until("all backends are up", || {
        let status = server.status();
        let backends = status["backends"].as_array().unwrap();
        backends.iter().all(|backend| backend["up"] == true)
    });
}

fn backend_status<'a>(status: &'a Value, name: &str) -> &'a Value {
    let backends = status["backends"].as_array().unwrap();
    backends
        .iter()
        .find(|backend| backend["name"] == name)
        .unwrap()
}

#[test]
fn every_request_is_served_while_backends_are_restarted() {
    let sandbox = testkit::sandbox!();
    let mut backends = [
        BackendProcess::start(),
        BackendProcess::start(),
        BackendProcess::start(),
    ];
    let server = serve(&sandbox, &backends);
    storm(&server, assert_served, || {
        for round in 0..9 {
            let victim = &mut backends[round % 3];
            until_all_are_up(&server);
            victim.restart();
            until_serving(&server, victim);
        }
    });
}

/// At any time two of three backends run. Most of them are killed again before the server has
/// noticed that they had come back.
#[test]
fn requests_fail_only_after_two_attempts_while_backends_are_killed_fast() {
    let sandbox = testkit::sandbox!();
    let mut backends = [
        BackendProcess::start(),
        BackendProcess::start(),
        BackendProcess::start(),
    ];
    let server = serve(&sandbox, &backends);
    let begun = Instant::now();
    storm(&server, assert_served_or_retried, || {
        for victim in (0..3).cycle() {
            if begun.elapsed() > FAST_STORM {
                return;
            }
            backends[victim].restart();
        }
    });
}

#[test]
fn requests_fail_only_after_two_attempts_while_one_backend_is_left() {
    let sandbox = testkit::sandbox!();
    let mut backends = [
        BackendProcess::start(),
        BackendProcess::start(),
        BackendProcess::start(),
    ];
    let server = serve(&sandbox, &backends);
    storm(&server, assert_served_or_retried, || {
        for round in 0..4 {
            // Kill two of three backends, so that one is left.
            let [first, second] = [round % 3, (round + 1) % 3];
            until_all_are_up(&server);
            backends[first].kill();
            backends[second].kill();
            for victim in [first, second] {
                backends[victim] = BackendProcess::start_at(backends[victim].address);
                until_serving(&server, &backends[victim]);
            }
        }
    });
}

#[test]
fn every_request_is_served_while_backends_hang_and_resume() {
    let sandbox = testkit::sandbox!();
    let backends = [
        BackendProcess::start(),
        BackendProcess::start(),
        BackendProcess::start(),
    ];
    let server = serve(&sandbox, &backends);
    storm(&server, assert_served, || {
        for round in 0..4 {
            let victim = &backends[round % 3];
            until_all_are_up(&server);
            victim.hang();
            until("a backend is marked down", || {
                let status = server.status();
                let backends = status["backends"].as_array().unwrap();
                backends.iter().any(|backend| backend["up"] == false)
            });
            victim.resume();
            until_serving(&server, victim);
        }
    });
}
