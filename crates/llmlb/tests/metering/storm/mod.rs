//! Many clients of which some disconnect, backends that cut responses, and a server that is killed
//! several times: in the end the receiver's totals are the tokens that the backends produced.
//! (promise L9)

mod client;
mod report;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::requests::SetOnDrop;
use client::{Client, Sent};
use report::Report;
use testkit::{
    LlmlbServer, Sandbox, UsageReceiver,
    api_server::{Backend, Reports, Sort},
    free_port, until,
};

/// Number of concurrent clients.
const CLIENTS: usize = 8;

fn from_env(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn receiver_has_the_tokens_of_every_complete_response_once() {
    let requests = from_env("METERING_REQUESTS").unwrap_or(500);
    let kills = from_env("METERING_KILLS").unwrap_or(2);
    let seed = from_env("METERING_SEED").unwrap_or(1);
    let world = World::start();
    let sent = world.storm(requests, kills, seed);
    let found = Report::of(&world, &sent, kills);
    println!("{found}");
    assert!(found.problems().is_empty(), "{:#?}", found.problems());
}

/// Three backends, the port of the server in front of them, and a receiver of usage records.
struct World {
    sandbox: Sandbox,
    port: u16,
    backends: Vec<Backend>,
    receiver: UsageReceiver,
}

impl World {
    fn start() -> Self {
        let sort = |name| Sort {
            name,
            models: &["m"],
            reports: Reports::IfAsked,
            key: None,
        };
        Self {
            sandbox: testkit::sandbox!(),
            port: free_port(),
            backends: ["a", "b", "c"]
                .map(sort)
                .into_iter()
                .map(Backend::start)
                .collect(),
            receiver: UsageReceiver::accepting().unwrap(),
        }
    }

    fn serve(&self) -> LlmlbServer {
        let flags: Vec<_> = self
            .backends
            .iter()
            .map(|backend| format!("--backend {}", backend.mock.url()))
            .collect();
        let mut command: Command =
            self.sandbox
                .command(&format!("serve -p {} {}", self.port, flags.join(" ")));
        command
            .env("LLMLB_USAGE_URL", &self.receiver.url)
            .env("LLMLB_USAGE_EVERY", "1s");
        self.sandbox.serve_with(&mut command)
    }

    /// Runs clients until this number of requests has ended as intended, and kills the server this
    /// number of times meanwhile. Returns every request that was sent, by its id.
    fn storm(&self, requests: usize, kills: usize, seed: usize) -> BTreeMap<String, Sent> {
        let mut server = self.serve();
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // Set when all requests have ended, or when the test fails. Clients then stop repeating
        // requests; otherwise the scope that joins their threads could block forever.
        let is_over = AtomicBool::new(false);
        let sent = Mutex::new(BTreeMap::new());
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                let (begun, done, sent, is_over) = (&begun, &done, &sent, &is_over);
                let mut client = Client::new(server.address, number, seed);
                scope.spawn(move || {
                    while begun.fetch_add(1, Ordering::SeqCst) < requests {
                        let tries = client.run(is_over);
                        sent.lock().unwrap().extend(tries);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let over = SetOnDrop(&is_over);
            for kill in 1..=kills {
                let when = requests * kill / (kills + 1);
                until_done(&done, when);
                server.process.kill();
                server = self.serve();
            }
            until_done(&done, requests);
            drop(over);
        });
        server.until_in_flight(0);
        let stopped = self.sandbox.run(&format!("stop -p {}", self.port));
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
        // The stopped server may have left records in its data directory. Deliver them, so that the
        // receiver's totals can be compared.
        self.receiver.deliver(&self.sandbox);
        sent.into_inner().unwrap()
    }
}

/// Waits until this number of requests has ended. The deadline restarts with each of them.
fn until_done(done: &AtomicUsize, wanted: usize) {
    loop {
        let before = done.load(Ordering::SeqCst);
        if before >= wanted {
            return;
        }
        until("another request has ended", || {
            done.load(Ordering::SeqCst) > before
        });
    }
}
