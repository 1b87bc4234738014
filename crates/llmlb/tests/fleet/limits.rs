//! Limits that two servers enforce together in Redis. (promise L11)

use std::sync::Mutex;
use std::thread;

use serde_json::Value;
use testkit::{FakeLlm, Gate, LlmlbServer, Reply, Request, Sandbox, chat_completion, until};

use crate::redis_server::RedisServer;

const SECRET: &str = "llmlb-alice-0123456789012345678901234567";

/// Starts a server with the key `alice`, whose limits these lines set.
fn start(
    sandbox: &Sandbox,
    redis: &RedisServer,
    backend: &FakeLlm,
    name: &str,
    key: &str,
) -> LlmlbServer {
    let dir = sandbox.path("config");
    std::fs::create_dir_all(&dir).unwrap();
    let text = format!(
        "[server]\ninstance = \"{name}\"\nworkers = 2\n[[backend]]\nurl = \"{}\"\n[[key]]\n\
         name = \"alice\"\nkey_env = \"ALICE\"\n{key}\n",
        backend.url()
    );
    std::fs::write(dir.join("llmlb.toml"), text).unwrap();
    let server = sandbox
        .server()
        .in_directory(&dir)
        .variable("ALICE", SECRET);
    let server = server.variable("LLMLB_FLEET_STORE", &redis.url()).start();
    server.unwrap()
}

fn start_two(
    sandboxes: &[Sandbox; 2],
    redis: &RedisServer,
    backend: &FakeLlm,
    key: &str,
) -> [LlmlbServer; 2] {
    let names = ["a:1", "b:1"];
    let servers = [0, 1].map(|at| start(&sandboxes[at], redis, backend, names[at], key));
    until("the servers know each other", || {
        servers.iter().all(|server| fleet(server)["servers"] == 2)
    });
    servers
}

fn fleet(server: &LlmlbServer) -> Value {
    server.status()["limits"]["fleet"].clone()
}

fn spent(server: &LlmlbServer) -> u64 {
    let status = server.status();
    status["limits"]["keys"]["alice"]["spent"]["day"]
        .as_u64()
        .unwrap()
}

fn chat(server: &LlmlbServer) -> u16 {
    let body = r#"{"model":"m","max_tokens":50,"messages":[{"role":"user","content":"hi"}]}"#;
    let request = Request::post("/v1/chat/completions", body);
    let request = request.field("authorization", format!("Bearer {SECRET}"));
    server.send(&request).unwrap().status()
}

/// Sends `each` requests to each of the two servers from 16 clients, and returns how many each
/// server admitted.
fn admitted(servers: &[LlmlbServer; 2], each: usize) -> [usize; 2] {
    let counts = [Mutex::new(0), Mutex::new(0)];
    thread::scope(|scope| {
        for _ in 0..16 {
            for (server, count) in servers.iter().zip(&counts) {
                scope.spawn(move || {
                    for _ in 0..each / 16 {
                        let status = chat(server);
                        assert!(matches!(status, 200 | 429), "{status}");
                        *count.lock().unwrap() += usize::from(status == 200);
                    }
                });
            }
        }
    });
    counts.map(|count| count.into_inner().unwrap())
}

/// Waits until both servers share limits over Redis. A slow response of Redis on a busy machine
/// makes a server pause sharing, and then its decisions are its own.
fn until_reachable(servers: &[LlmlbServer; 2]) {
    until("both servers reach Redis", || {
        servers
            .iter()
            .all(|server| fleet(server)["reachable"] == true)
    });
}

#[test]
fn two_servers_enforce_requests_per_minute_and_concurrency_together() {
    let sandboxes = [testkit::sandbox!(), testkit::sandbox!()];
    let Some(redis) = RedisServer::start(sandboxes[0].root()) else {
        return;
    };
    let backend = FakeLlm::answering("m").unwrap();
    let servers = start_two(&sandboxes, &redis, &backend, "rpm = 30");
    until_reachable(&servers);
    let counts = admitted(&servers, 32);
    // A server waits 50 ms at most for Redis. On a slow machine a decision may take longer; the
    // server then decides alone and both together may admit more than 30.
    let all: usize = counts.iter().sum();
    let paused = servers
        .iter()
        .any(|server| server.log().contains("cannot share limits"));
    assert!(all == 30 || paused && all <= 60, "{counts:?}");
}

#[test]
fn concurrency_is_shared_by_two_servers() {
    let sandboxes = [testkit::sandbox!(), testkit::sandbox!()];
    let Some(redis) = RedisServer::start(sandboxes[0].root()) else {
        return;
    };
    let gate = Gate::new();
    let script = {
        let gate = gate.clone();
        move |_: &_| Reply::json(200, chat_completion("ok", 1, 1)).after_gate(&gate)
    };
    let backend = FakeLlm::start("m", script).unwrap();
    let servers = start_two(&sandboxes, &redis, &backend, "concurrency = 2");
    until_reachable(&servers);
    let statuses = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for at in 0..12 {
            let (servers, statuses) = (&servers, &statuses);
            scope.spawn(move || {
                let status = chat(&servers[at % 2]);
                statuses.lock().unwrap().push(status);
            });
        }
        until("ten are refused", || statuses.lock().unwrap().len() == 10);
        assert_eq!(backend.count(), 2);
        gate.open();
    });
    let statuses = statuses.into_inner().unwrap();
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 2);
    // Servers release the slots of ended requests in Redis in the background. Afterwards both
    // servers must admit requests again.
    for server in &servers {
        until("a request is admitted", || chat(server) == 200);
    }
}

#[test]
fn no_request_fails_while_redis_is_down_and_the_spend_is_refilled() {
    let sandboxes = [testkit::sandbox!(), testkit::sandbox!()];
    let Some(mut redis) = RedisServer::start(sandboxes[0].root()) else {
        return;
    };
    let backend = FakeLlm::answering("m").unwrap();
    let key = "rpm = 40\nbudget_tokens = 100000\nper = \"day\"";
    let servers = start_two(&sandboxes, &redis, &backend, key);
    until_reachable(&servers);
    assert_eq!(chat(&servers[0]), 200);
    redis.kill();
    until("the loss is noticed", || {
        servers
            .iter()
            .all(|server| fleet(server)["reachable"] == false)
    });
    // One of 40 requests is used. Without Redis each server may admit half of the 39 that are left,
    // so that both together stay within the limit.
    let counts = admitted(&servers, 32);
    let is_kept = counts.iter().sum::<usize>() <= 39;
    assert!(
        is_kept && counts.iter().all(|count| *count >= 19),
        "{counts:?}"
    );
    let log = servers[1].log();
    assert!(
        log.contains("cannot share limits of keys in redis://127.0.0.1:"),
        "{log}"
    );
    assert!(
        log.contains("its share of each limit, of 2 servers"),
        "{log}"
    );
    assert!(!log.contains("hunter2") && !log.contains(SECRET), "{log}");
    redis.start_again(sandboxes[0].root());
    // The restarted Redis is empty. Each server must publish its own spend again, otherwise the
    // budgets of all keys would start anew.
    until("the spend is known everywhere", || {
        chat(&servers[0]);
        chat(&servers[1]);
        let spent = [spent(&servers[0]), spent(&servers[1])];
        spent[0] == spent[1] && spent[0] >= 38 * 150
    });
    let requests = backend.count() as u64;
    assert!(spent(&servers[0]) <= requests * 150, "nothing counts twice");
}

/// A Redis that lost its data keeps its connections, as after `FLUSHALL`: idle servers publish their spend again.
#[test]
fn redis_that_was_emptied_has_the_spend_of_idle_servers_again() {
    let sandboxes = [testkit::sandbox!(), testkit::sandbox!()];
    let Some(redis) = RedisServer::start(sandboxes[0].root()) else {
        return;
    };
    let backend = FakeLlm::answering("m").unwrap();
    let key = "budget_tokens = 100000\nper = \"day\"";
    let servers = start_two(&sandboxes, &redis, &backend, key);
    until_reachable(&servers);
    assert_eq!(servers.each_ref().map(chat), [200, 200]);
    let client = redis::Client::open(redis.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut run = |words: &[&str]| -> redis::Value {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query(&mut connection).unwrap()
    };
    let two = redis::Value::Int(2);
    let key = "return redis.call('KEYS', 'llmlb:limits:{alice}:spend:*')[1]";
    let mut spend = String::new();
    until("both servers have published their spend", || {
        if let redis::Value::BulkString(name) = run(&["EVAL", key, "0"]) {
            spend = String::from_utf8(name).unwrap();
        }
        !spend.is_empty() && run(&["HLEN", &spend]) == two
    });
    // Each round takes one beat of each server; the second one begins after the first beat has ended.
    let two_beats = |run: &mut dyn FnMut(&[&str]) -> redis::Value| {
        for _ in 0..2 {
            run(&["DEL", "llmlb:limits:servers"]);
            until("both servers are registered", || {
                run(&["ZCARD", "llmlb:limits:servers"]) == two
            });
        }
    };
    // Afterwards nothing changes that a server would publish.
    two_beats(&mut run);
    run(&["FLUSHALL"]);
    two_beats(&mut run);
    assert_eq!(run(&["HLEN", &spend]), two);
}
