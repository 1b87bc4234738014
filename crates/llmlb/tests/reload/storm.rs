//! Many reloads under load fail no request and lose no usage record. (promise L12)

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use testkit::backends::{ASK, CHAT, backend};
use testkit::{Connection, wire};

use crate::server::{ReloadingServer, tables};

const RELOADS: usize = 20;
const CLIENTS: usize = 4;

#[test]
fn no_request_fails_while_backends_come_and_go() {
    let serve = |request: &testkit::Received, stream: &mut std::net::TcpStream| {
        if request.text().contains("stream") {
            wire::begin_stream(stream);
            for _ in 0..5 {
                wire::chunk(stream, "data: {}\n\n");
            }
            wire::chunk(stream, "data: [DONE]\n\n");
            wire::end_stream(stream);
        } else {
            wire::json(stream, 200, "{}");
        }
    };
    let backends = [0, 1, 2].map(|_| backend(serve));
    let text = |round: usize| {
        // Each reload configures two of the three backends with another weight, so that backends
        // are added and removed under load.
        let named = [("a", round), ("b", round + 1)];
        let named = named.map(|(name, at)| (name, backends[at % 3].address));
        let weight = format!("weight = {}\nmax_concurrent = 64\n", round % 5 + 1);
        let tables = tables(&named, &weight);
        if round % 2 == 1 {
            format!("{tables}[server]\nqueue = false\n")
        } else {
            format!("[server]\nqueue = {}\n{tables}", 1000 + round)
        }
    };
    let running = ReloadingServer::start(testkit::sandbox!(), &text(0));
    let (stop, served) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (stop, served, address) = (&stop, &served, running.server.address);
                scope.spawn(move || {
                    let mut failed = Vec::new();
                    let mut client = Connection::open(address);
                    while !stop.load(Ordering::Relaxed) {
                        let body = if number % 2 == 0 {
                            ASK
                        } else {
                            r#"{"model":"m","stream":true}"#
                        };
                        client.send_post(CHAT, body);
                        let answer = client.answer();
                        let is_whole = number % 2 == 0 || answer.text().contains("[DONE]");
                        if answer.status() != 200 || !is_whole {
                            failed.push(answer.text());
                        }
                        served.fetch_add(1, Ordering::Relaxed);
                    }
                    failed
                })
            })
            .collect();
        for round in 1..=RELOADS {
            let before = served.load(Ordering::Relaxed);
            running.replace(&text(round));
            if round % 2 == 1 {
                running.until_refused();
            } else {
                running.until_reloads(round as u64 / 2);
            }
            testkit::until("requests are served meanwhile", || {
                served.load(Ordering::Relaxed) > before + 10
            });
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            assert_eq!(client.join().unwrap(), [""; 0]);
        }
    });
    assert_eq!(running.reloads(), RELOADS as u64 / 2);
}
