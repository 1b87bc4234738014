//! Clients that hold all file descriptors they can get. Requests are still recorded, and the records
//! reach their receiver. (promises L9, L11)

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use serde_json::Value;
use testkit::{
    Connection, DEADLINE, FakeLlm, Head, LlmlbServer, Sandbox,
    backends::{CHAT, backend_of},
    h2_client::{self, request, send},
    until, wire,
};

/// Maximum number of open files (`ulimit -n`) of the llmlb process under test. It is so small that
/// a test can use up all descriptors.
const LIMIT: usize = 128;

/// Returns the command `llmlb` with these arguments, two workers and a limit of open files.
fn limited(sandbox: &Sandbox, arguments: &str, limit: usize) -> Command {
    let inner = sandbox.command(arguments);
    let mut command = Command::new("sh");
    command
        .arg("-c")
        .arg(format!("ulimit -n {limit} && exec \"$0\" \"$@\""))
        .arg(sandbox.llmlb())
        .args(inner.get_args())
        .current_dir(sandbox.path(""))
        .env("LLMLB_WORKERS", "2")
        .env("LLMLB_SERVER_IDLE_TIMEOUT", "1h")
        .env("LLMLB_USAGE_EVERY", "1s");
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Returns a receiver and the ids of all records that it has received.
fn receiver() -> (FakeLlm, Arc<Mutex<BTreeSet<String>>>) {
    let ids: Arc<Mutex<BTreeSet<String>>> = Arc::default();
    let kept = Arc::clone(&ids);
    let mock = FakeLlm::handling_all(move |request, stream| {
        let batch: Value = serde_json::from_slice(&request.body).unwrap();
        let records = batch["records"].as_array().unwrap().iter();
        let of_records = records.map(|record| record["id"].as_str().unwrap().to_owned());
        kept.lock().unwrap().extend(of_records);
        // Close the connection after each response, so that every delivery needs a new descriptor.
        let _ = std::io::Write::write_all(
            stream,
            b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n",
        );
        let _ = stream.shutdown(std::net::Shutdown::Both);
    });
    (mock, ids)
}

/// Backend that holds its responses until it has received the expected number of requests.
struct Gathering {
    mock: FakeLlm,
    expected: Arc<AtomicUsize>,
}

impl Gathering {
    fn serving(model: &str) -> Self {
        let expected = Arc::new(AtomicUsize::new(1));
        let (wanted, received) = (Arc::clone(&expected), (Mutex::new(0), Condvar::new()));
        let mock = backend_of(&[model], move |_, stream| {
            let (count, all) = &received;
            let mut count = count.lock().unwrap();
            *count += 1;
            let round = (*count - 1) / wanted.load(Ordering::SeqCst);
            let is_complete = |count: &usize| *count / wanted.load(Ordering::SeqCst) > round;
            all.notify_all();
            let waited = all.wait_timeout_while(count, DEADLINE, |count| !is_complete(count));
            drop(waited);
            wire::json(
                stream,
                200,
                r#"{"usage":{"prompt_tokens":3,"completion_tokens":4}}"#,
            );
        });
        Self { mock, expected }
    }
}

/// Opens connections until one is rejected.
fn all_connections(server: &LlmlbServer) -> Vec<Connection> {
    let mut held = Vec::new();
    loop {
        let mut client = Connection::open(server.address);
        client.send_get("/healthz");
        if client.answer().status() == 503 {
            return held;
        }
        held.push(client);
        assert!(held.len() < LIMIT);
    }
}

/// Sends a request on each connection, then reads all responses and returns their statuses.
fn statuses(held: &mut [Connection], model: &str) -> Vec<u16> {
    for client in held.iter_mut() {
        client.send_post(CHAT, &format!(r#"{{"model":"{model}"}}"#));
    }
    let status = |client: &mut Connection| client.answer().status();
    held.iter_mut().map(status).collect()
}

/// Waits until the condition is true, while the client's connection makes progress.
async fn until_true(mut is_true: impl FnMut() -> bool) {
    while !is_true() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn status(client: &mut Connection) -> Value {
    client.send_get("/status");
    client.answer().json()
}

#[test]
fn requests_are_recorded_and_delivered_while_clients_hold_every_descriptor() {
    const ROUNDS: usize = 3;
    let sandbox = testkit::sandbox!();
    let (receiver, ids) = receiver();
    let backend = Gathering::serving("m");
    let arguments = format!("serve -p 0 --backend {}", backend.mock.url());
    let mut command = limited(&sandbox, &arguments, LIMIT);
    command.env("LLMLB_USAGE_URL", receiver.url());
    let server = sandbox.serve_with(&mut command);
    let mut held = all_connections(&server);
    assert!(held.len() >= 16, "{}", held.len());
    backend.expected.store(held.len(), Ordering::SeqCst);
    for round in 1..=ROUNDS {
        // The backend holds its responses until every client has sent a request, so each client occupies a
        // backend connection.
        let answered = statuses(&mut held, "m");
        assert!(answered.iter().all(|status| *status == 200), "{answered:?}");
        // Wait until delivery has sealed and consolidated the entry with the records. The next
        // round must then create a new entry file, which needs a free descriptor.
        let expected = held.len() * round;
        until("all records are delivered", || {
            ids.lock().unwrap().len() == expected
        });
    }
    let status = status(&mut held[0]);
    assert_eq!(status["usage"]["lost"], 0, "{status}");
    assert_eq!(status["usage"]["error"], Value::Null, "{status}");
    assert_eq!(status["connections"]["open"], held.len(), "{status}");
    let log = server.process.stderr();
    assert!(!log.contains("oo many open files"), "{log}");
}

#[test]
fn idle_backend_connections_are_closed_when_other_backends_need_them() {
    let sandbox = testkit::sandbox!();
    let (one, two) = (Gathering::serving("one"), Gathering::serving("two"));
    let urls = [&one, &two].map(|backend| format!("--backend {}", backend.mock.url()));
    let server = sandbox.serve_with(&mut limited(
        &sandbox,
        &format!("serve -p 0 {}", urls.join(" ")),
        LIMIT,
    ));
    let mut held = all_connections(&server);
    for backend in [&one, &two] {
        backend.expected.store(held.len(), Ordering::SeqCst);
    }
    // Each round leaves the maximum number of connections to one backend idle. The next round must
    // close them to connect to the other backend.
    for model in ["one", "two", "one", "two"] {
        let answered = statuses(&mut held, model);
        assert!(answered.iter().all(|status| *status == 200), "{answered:?}");
    }
    let status = status(&mut held[0]);
    assert_eq!(status["backend_connections"]["rejected"], 0, "{status}");
    assert_eq!(status["usage"]["lost"], 0, "{status}");
}

#[test]
fn http_2_streams_cannot_take_the_descriptors_of_the_reserve() {
    const STREAMS: usize = 200;
    let sandbox = testkit::sandbox!();
    let (receiver, ids) = receiver();
    let released = Arc::new((Mutex::new(false), Condvar::new()));
    let (gate, probes) = (Arc::clone(&released), Arc::new(AtomicUsize::new(0)));
    let probed = Arc::clone(&probes);
    let mock = FakeLlm::handling_all(move |request, stream| {
        if request.target() == "/v1/models" {
            probed.fetch_add(1, Ordering::SeqCst);
            wire::json(stream, 200, r#"{"data":[{"id":"m"}]}"#);
            return;
        }
        let (is_open, opened) = &*gate;
        let open = is_open.lock().unwrap();
        let waited = opened.wait_timeout_while(open, DEADLINE, |open| !*open);
        drop(waited);
        wire::json(stream, 200, "{}");
    });
    let arguments = format!("serve -p 0 --backend {}", mock.url());
    let mut command = limited(&sandbox, &arguments, LIMIT);
    command
        .env("LLMLB_USAGE_URL", receiver.url())
        .env("LLMLB_MAX_STREAMS", STREAMS.to_string())
        .env("LLMLB_PROBE_INTERVAL", "100ms");
    let server = sandbox.serve_with(&mut command);
    h2_client::connected(server.address, async |client| {
        let mut responses = Vec::new();
        for _ in 0..STREAMS {
            let head = request(::http::Method::POST, CHAT);
            responses.push(send(&client, head, r#"{"model":"m"}"#).await);
        }
        until_true(|| server.status()["backend_connections"]["rejected"] != 0).await;
        // Probes and the delivery of records need descriptors too, and must work while the streams
        // hold all others. Only rejected requests have ended so far, so the delivered records are
        // theirs.
        let before = probes.load(Ordering::SeqCst);
        until_true(|| probes.load(Ordering::SeqCst) > before + 1).await;
        until_true(|| !ids.lock().unwrap().is_empty()).await;
        let status = server.status();
        assert_eq!(status["backends"][0]["up"], true, "{status}");
        *released.0.lock().unwrap() = true;
        released.1.notify_all();
        let mut rejected = 0;
        for response in responses {
            let answer = h2_client::answer(response).await;
            match answer.status.as_u16() {
                200 => {}
                503 => {
                    assert!(answer.text().contains("overloaded"), "{answer:?}");
                    assert_eq!(answer.header("retry-after"), Some("1"));
                    rejected += 1;
                }
                other => panic!("{other}: {answer:?}"),
            }
        }
        assert!(rejected > 0 && rejected < STREAMS, "{rejected}");
    });
    until("every request is delivered", || {
        ids.lock().unwrap().len() == STREAMS
    });
    let status = server.status();
    assert_eq!(status["usage"]["lost"], 0, "{status}");
    let log = server.process.stderr();
    assert!(!log.contains("oo many open files"), "{log}");
}

#[test]
fn too_low_limit_of_open_files_is_an_error() {
    let sandbox = testkit::sandbox!();
    let outcome = sandbox
        .start(&mut limited(&sandbox, "serve -p 0 --demo", 40))
        .finish();
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stderr.contains("the limit of open files is 40"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("ulimit -n 1024"), "{outcome:?}");
    assert!(sandbox.lock_files().is_empty(), "{outcome:?}");
}

#[test]
fn connection_limit_beyond_the_open_files_is_reduced_with_a_warning() {
    let sandbox = testkit::sandbox!();
    let mut command = limited(&sandbox, "serve -p 0 --demo", LIMIT);
    command.env("LLMLB_MAX_CONNECTIONS", "5000");
    let server = sandbox.serve_with(&mut command);
    let max = server.status()["connections"]["max"].as_u64().unwrap();
    assert!((1..128).contains(&max), "{max}");
    let log = server.process.stderr();
    assert!(
        log.contains("server.max_connections is 5000, but the limit of open files (128) allows"),
        "{log}"
    );
    let mut client = Connection::open(server.address);
    client.send_get("/healthz");
    assert!(Head::read(&mut client.reader).is_some());
}
