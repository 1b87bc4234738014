//! Many clients, some of whom leave; backends that hang up; a server that is killed again and
//! again: in the end the receiver's totals are what the backends made. (L9)

mod client;
mod reckoning;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::ask::Over;
use client::{Client, Sent};
use reckoning::Reckoning;
use testkit::{
    LlmlbServer, Sandbox, UsageReceiver,
    api_server::{Backend, Reports, Sort},
    free_port, until,
};

/// How many clients there are at a time.
const CLIENTS: usize = 8;

fn from_env(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn the_receiver_has_what_the_backends_made_for_every_whole_answer_once() {
    let requests = from_env("METERING_REQUESTS").unwrap_or(500);
    let kills = from_env("METERING_KILLS").unwrap_or(2);
    let seed = from_env("METERING_SEED").unwrap_or(1);
    let world = World::start();
    let sent = world.weather(requests, kills, seed);
    let found = Reckoning::of(&world, &sent, kills);
    println!("{found}");
    assert!(found.problems().is_empty(), "{:#?}", found.problems());
}

/// A server before three backends, and a receiver to which it delivers.
struct World {
    place: Sandbox,
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
            place: testkit::sandbox!(),
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
            .map(|one| format!("--backend {}", one.mock.url()))
            .collect();
        let mut command: Command =
            self.place
                .command(&format!("serve -p {} {}", self.port, flags.join(" ")));
        command
            .env("LLMLB_USAGE_URL", &self.receiver.url)
            .env("LLMLB_USAGE_EVERY", "1s");
        self.place.serve_with(&mut command)
    }

    /// Clients ask until they have so many answers; the server is killed so often on the way. Every
    /// request that was sent, and what its client saw.
    fn weather(&self, requests: usize, kills: usize, seed: usize) -> BTreeMap<String, Sent> {
        let mut server = self.serve();
        let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        // Something went wrong.
        let is_over = AtomicBool::new(false);
        let sent = Mutex::new(BTreeMap::new());
        thread::scope(|scope| {
            for number in 0..CLIENTS {
                let (begun, done, sent, is_over) = (&begun, &done, &sent, &is_over);
                let mut client = Client::new(server.address, number, seed);
                scope.spawn(move || {
                    while begun.fetch_add(1, Ordering::SeqCst) < requests {
                        let tries = client.ask(is_over);
                        sent.lock().unwrap().extend(tries);
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                });
            }
            let over = Over(&is_over);
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
        let stopped = self.place.run(&format!("stop -p {}", self.port));
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
        // What the last run did not get done.
        self.receiver.deliver(&self.place);
        sent.into_inner().unwrap()
    }
}

/// Waits until so many are done. They may take their time, as long as they get on.
fn until_done(done: &AtomicUsize, wanted: usize) {
    loop {
        let before = done.load(Ordering::SeqCst);
        if before >= wanted {
            return;
        }
        until("the clients get on", || {
            done.load(Ordering::SeqCst) > before
        });
    }
}
