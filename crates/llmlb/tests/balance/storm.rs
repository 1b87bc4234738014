//! Clients that never stop asking, while backends come and go. (L8)

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::real::Real;
use testkit::{
    Answer, Connection, LlmlbServer, Sandbox,
    backends::{CHAT, PROBED_OFTEN},
    eventually, until,
};

const CLIENTS: usize = 16;
/// How long backends are killed as fast as they can be started.
const FAST_STORM: Duration = Duration::from_secs(4);

/// Questions of different sizes, each with a number of its own; their backends send them back.
fn question(client: usize, number: usize) -> String {
    let filler = "words ".repeat(number % 7 * 1500);
    format!(r#"{{"model":"m","client":{client},"number":{number},"text":"{filler}"}}"#)
}

/// How many answers there were.
#[derive(Default)]
struct Answered {
    served: AtomicUsize,
    refused: AtomicUsize,
}

impl Answered {
    fn note(&self, status: u16) {
        let count = if status == 200 {
            &self.served
        } else {
            &self.refused
        };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// What may be answered.
type Judge = fn(&LlmlbServer, &Answer);

/// Nobody is refused.
fn is_served(server: &LlmlbServer, answer: &Answer) {
    assert_eq!(answer.status(), 200, "{answer:?}\n{}", history(server));
}

/// Nobody is refused but who was tried on two that were gone just then: a request that may have
/// crashed two backends is not sent to a third.
fn is_served_if_it_can_be(server: &LlmlbServer, answer: &Answer) {
    if answer.status() == 200 {
        return;
    }
    let id = answer.head.header("x-request-id").unwrap();
    let told = format!(" id={id}");
    let line = eventually("it is in the log", || {
        let said = server.process.stderr();
        let line = said.lines().find(|line| line.ends_with(&told));
        line.map(str::to_owned)
    });
    let tried = line.matches(" failed=").count();
    assert!(tried >= 2, "{answer:?}\n{line}\n{}", history(server));
}

/// Asks until it is over. Every answer must be there, whole, and the client's own.
fn ask(server: &LlmlbServer, judge: Judge, client: usize, over: &AtomicBool, answered: &Answered) {
    let mut connection = Connection::open(server.address);
    let mut number = 0;
    while !over.load(Ordering::Relaxed) {
        number += 1;
        let question = question(client, number);
        connection.send_post(CHAT, &question);
        let answer = connection.answer();
        judge(server, &answer);
        let is_its_own = answer.status() != 200 || answer.text() == question;
        assert!(is_its_own, "another one's answer");
        if answer.head.header("connection").as_deref() == Some("close") {
            connection = Connection::open(server.address);
        }
        answered.note(answer.status());
    }
}

/// Ends the storm also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What the balancer said about its backends lately.
fn history(server: &LlmlbServer) -> String {
    let said = server.process.stderr();
    let about_backends: Vec<_> = said
        .lines()
        .filter(|line| !line.contains("status=200"))
        .collect();
    let from = about_backends.len().saturating_sub(40);
    about_backends[from..].join("\n")
}

/// Asks for streams until it is over. They may be cut, but what ends well is whole.
fn ask_for_streams(server: &LlmlbServer, judge: Judge, over: &AtomicBool, answered: &Answered) {
    let whole: Vec<_> = (0..10)
        .map(|number| format!("data: {number}\n\n"))
        .collect();
    while !over.load(Ordering::Relaxed) {
        let answer = server.post(CHAT, r#"{"model":"m","stream":true}"#);
        judge(server, &answer);
        let status = answer.status();
        if let (200, Ok(body)) = (status, answer.body) {
            assert_eq!(String::from_utf8_lossy(&body), whole.concat());
        }
        answered.note(status);
    }
}

/// Lets clients ask while things happen to the backends.
#[expect(clippy::print_stderr, reason = "how much was asked")]
fn storm(server: &LlmlbServer, judge: Judge, happen: impl FnOnce()) {
    let (over, answered) = (AtomicBool::new(false), Answered::default());
    thread::scope(|scope| {
        let _over = Over(&over);
        for client in 0..CLIENTS {
            let (over, answered) = (&over, &answered);
            scope.spawn(move || {
                // One that fails ends it for all.
                let guard = Over(over);
                if client % 4 == 0 {
                    ask_for_streams(server, judge, over, answered);
                } else {
                    ask(server, judge, client, over, answered);
                }
                drop(guard);
            });
        }
        happen();
    });
    let (served, refused) = (answered.served.into_inner(), answered.refused.into_inner());
    eprintln!("{served} requests served, {refused} refused");
    assert!(served >= CLIENTS);
    server.until_in_flight(0);
}

fn serve(place: &Sandbox, backends: &[Real]) -> LlmlbServer {
    let flags: Vec<_> = backends.iter().map(Real::flag).collect();
    let mut command = place.command(&format!("serve -p 0 {}", flags.join(" ")));
    command.env("LLMLB_LOG_REQUESTS", "true");
    place.serve_with(command.envs(PROBED_OFTEN.iter().copied()))
}

/// Waits until this backend has a good deal of the work again: what was learnt of it while it was
/// away is then forgotten.
fn until_it_works(server: &LlmlbServer, backend: &Real) {
    let name = backend.address.to_string();
    let before = server.status();
    until("it works again", || {
        let now = server.status();
        let requests = |status: &Value| of(status, &name)["requests"].as_u64().unwrap();
        of(&now, &name)["up"] == true && requests(&now) > requests(&before) + 50
    });
}

/// Waits until it is known that they are all there.
fn until_all_are_up(server: &LlmlbServer) {
    until("all are up", || {
        let status = server.status();
        let backends = status["backends"].as_array().unwrap();
        backends.iter().all(|one| one["up"] == true)
    });
}

/// What the status says about one backend.
fn of<'a>(status: &'a Value, name: &str) -> &'a Value {
    let backends = status["backends"].as_array().unwrap();
    backends.iter().find(|one| one["name"] == name).unwrap()
}

#[test]
fn no_client_sees_that_backends_are_killed_and_started_anew() {
    let place = testkit::sandbox!();
    let mut backends = [Real::start(), Real::start(), Real::start()];
    let server = serve(&place, &backends);
    storm(&server, is_served, || {
        for round in 0..9 {
            let victim = &mut backends[round % 3];
            until_all_are_up(&server);
            victim.restart();
            until_it_works(&server, victim);
        }
    });
}

/// Two of three are there at any time, but one that is back is killed again before the balancer has
/// heard of it, more often than not.
#[test]
fn nobody_is_refused_untried_however_fast_backends_are_killed() {
    let place = testkit::sandbox!();
    let mut backends = [Real::start(), Real::start(), Real::start()];
    let server = serve(&place, &backends);
    let begun = Instant::now();
    storm(&server, is_served_if_it_can_be, || {
        for victim in (0..3).cycle() {
            if begun.elapsed() > FAST_STORM {
                return;
            }
            backends[victim].restart();
        }
    });
}

#[test]
fn one_backend_that_lives_is_enough() {
    let place = testkit::sandbox!();
    let mut backends = [Real::start(), Real::start(), Real::start()];
    let server = serve(&place, &backends);
    storm(&server, is_served_if_it_can_be, || {
        for round in 0..4 {
            // Two at a time.
            let [first, second] = [round % 3, (round + 1) % 3];
            until_all_are_up(&server);
            backends[first].kill();
            backends[second].kill();
            for victim in [first, second] {
                backends[victim] = Real::start_at(backends[victim].address);
                until_it_works(&server, &backends[victim]);
            }
        }
    });
}

#[test]
fn no_client_sees_that_backends_hang_and_go_on() {
    let place = testkit::sandbox!();
    let backends = [Real::start(), Real::start(), Real::start()];
    let server = serve(&place, &backends);
    storm(&server, is_served, || {
        for round in 0..4 {
            let victim = &backends[round % 3];
            until_all_are_up(&server);
            victim.hang();
            until("it is found out", || {
                let status = server.status();
                let backends = status["backends"].as_array().unwrap();
                backends.iter().any(|one| one["up"] == false)
            });
            victim.go_on();
            until_it_works(&server, victim);
        }
    });
}
