//! Requests in flight when the server is killed have a record with the outcome `interrupted` after the next
//! start. (promise L9)

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::path::PathBuf;

use serde_json::{Value, json};
use testkit::{
    Answer, Connection, FakeLlm, LlmlbServer, Sandbox,
    backends::{UNPROBED, backend, close, count, serve},
    until, wire,
};

use crate::records;
use crate::requests::{CHAT, chat, post, send};
use crate::stream::{self, DONE, STOP, USAGE, WORD};

/// Length of a row in the list of requests in flight.
const ROW: usize = 4096;

/// Starts a backend that sends these pieces and then nothing until its connection is closed.
fn pausing(pieces: &[&str]) -> FakeLlm {
    let pieces: Vec<_> = pieces.iter().map(|&piece| piece.to_owned()).collect();
    backend(move |_, stream| {
        if !pieces.is_empty() {
            wire::begin_stream(stream);
        }
        for piece in &pieces {
            wire::chunk(stream, piece);
        }
        let _ = stream.read(&mut [0]);
        close(stream);
    })
}

/// Returns the files that list the requests in flight, in the directory `in-flight`.
fn lists(sandbox: &Sandbox) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(sandbox.data_dir().join("in-flight")) else {
        return Vec::new();
    };
    let mut lists: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    lists.sort_unstable();
    lists
}

fn begin(server: &LlmlbServer, id: &str, text: &str) -> Connection {
    let mut client = Connection::open(server.address);
    send(&mut client, id, CHAT, &chat(text, true).to_string());
    assert_eq!(client.head().status(), 200);
    stream::read(&mut client, 2 * WORD.len());
    client
}

/// Returns the totals of `llmlb usage` for all time.
fn usage(sandbox: &Sandbox) -> Value {
    let report = sandbox.run("usage --json");
    assert_eq!(report.code, Some(0), "{report:?}");
    report.json()["total"].clone()
}

fn assert_balanced(sandbox: &Sandbox) -> Value {
    let verified = sandbox.run("usage verify --json");
    assert_eq!(verified.code, Some(0), "{verified:?}");
    verified.json()
}

fn stop(sandbox: &Sandbox, server: &LlmlbServer) {
    let stopped = sandbox.run(&format!("stop -p {}", server.port()));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
}

fn ok(answer: &Answer) {
    assert_eq!(answer.status(), 200, "{answer:?}");
}

#[test]
fn requests_in_flight_at_a_kill_are_recorded_at_the_next_start() {
    let sandbox = testkit::sandbox!();
    let streaming = pausing(&[WORD, WORD]);
    let server = serve(&sandbox, &[&streaming], UNPROBED);
    let clients: Vec<_> = (0..40)
        .map(|number| begin(&server, &format!("r-{number}"), "Hello there"))
        .collect();
    server.process.kill();
    drop(clients);
    assert!(records::all(&sandbox).is_empty());

    let other = pausing(&[]);
    let server = serve(&sandbox, &[&other], UNPROBED);
    // The restarted server must write the records of interrupted requests before it admits its
    // first request.
    let found = records::all(&sandbox);
    assert_eq!(found.len(), 40, "{found:#?}");
    let ids: BTreeSet<_> = found
        .iter()
        .map(|record| record["request_id"].to_string())
        .collect();
    assert_eq!(ids.len(), 40);
    for record in &found {
        assert_eq!(record["outcome"], "interrupted", "{record:#}");
        assert_eq!(record["model"], "m", "{record:#}");
        assert_eq!(record["api"], "chat", "{record:#}");
        assert_eq!(record["path"], CHAT, "{record:#}");
        assert_eq!(record["stream"], true, "{record:#}");
        assert_eq!(record["status"], 200, "{record:#}");
        assert_eq!(record["bytes"], 2 * WORD.len(), "{record:#}");
        assert!(record["backend"].is_string(), "{record:#}");
        assert!(record["first_byte_ms"].is_u64(), "{record:#}");
        assert_eq!(record["tokens_from"], "estimated", "{record:#}");
        assert!(record["prompt_tokens"].as_u64() > Some(0), "{record:#}");
        assert!(record["completion_tokens"].as_u64() > Some(0), "{record:#}");
    }
    assert_eq!(
        lists(&sandbox).len(),
        1,
        "only the list of the new server is left"
    );

    // This request waits for the head of its response when the server is killed. The backend has
    // read the prompt, so its tokens are recorded.
    let mut client = Connection::open(server.address);
    send(
        &mut client,
        "waits",
        CHAT,
        &chat("Hello", false).to_string(),
    );
    until("the backend has the request", || count(&other) > 0);
    server.process.kill();
    drop(client);
    let server = serve(&sandbox, &[&other], UNPROBED);
    let record = records::one(&sandbox, "waits");
    assert_eq!(record["outcome"], "interrupted", "{record:#}");
    assert_eq!(record["status"], Value::Null, "{record:#}");
    assert!(record["prompt_tokens"].as_u64() > Some(0), "{record:#}");
    assert_eq!(record["completion_tokens"], 0, "{record:#}");
    assert_eq!(usage(&sandbox)["outcomes"]["interrupted"], 41);
    stop(&sandbox, &server);
    assert_eq!(usage(&sandbox)["outcomes"]["interrupted"], 41);
    assert_eq!(assert_balanced(&sandbox)["staged"], 41);
    assert_eq!(records::all(&sandbox).len(), 41);
}

#[test]
fn usage_that_the_backend_reported_before_the_kill_is_recorded() {
    let sandbox = testkit::sandbox!();
    let backend = pausing(&[WORD, WORD, STOP, USAGE]);
    let server = serve(&sandbox, &[&backend], UNPROBED);
    let _client = begin(&server, "reported", "Hello");
    // The usage event is hidden from the client, so the client cannot see that it arrived. The test
    // reads it from the request's row in the list of requests in flight.
    let path = lists(&sandbox).remove(0);
    let reported = |bytes: &[u8]| bytes[ROW + 8 * 8..ROW + 9 * 8] == 12u64.to_ne_bytes();
    until("the usage has arrived", || {
        let bytes = fs::read(&path).unwrap();
        (0..31).any(|row| reported(&bytes[row * ROW..]))
    });
    server.process.kill();
    let _server = serve(&sandbox, &[&backend], UNPROBED);
    let record = records::one(&sandbox, "reported");
    assert_eq!(record["outcome"], "interrupted", "{record:#}");
    assert_eq!(record["prompt_tokens"], 9, "{record:#}");
    assert_eq!(record["completion_tokens"], 3, "{record:#}");
    assert_eq!(record["cached_tokens"], 4, "{record:#}");
    assert_eq!(record["tokens_from"], "reported", "{record:#}");
}

#[test]
fn every_request_has_one_record_after_many_kills() {
    let sandbox = testkit::sandbox!();
    let backend = pausing(&[WORD, WORD]);
    let whole = stream::streaming(&[WORD, STOP, USAGE, DONE]);
    let mut expected = BTreeSet::new();
    for kill in 0..12 {
        let ending = serve(&sandbox, &[&whole], UNPROBED);
        let server = serve(&sandbox, &[&backend], UNPROBED);
        assert_eq!(lists(&sandbox).len(), 2, "each server has its list");
        let mut clients = Vec::new();
        for number in 0..5 {
            let id = format!("{kill}-{number}-interrupted");
            clients.push(begin(&server, &id, "Hello"));
            expected.insert(id);
            let id = format!("{kill}-{number}-complete");
            ok(&post(&ending, &id, CHAT, &chat("Hello", true)));
            expected.insert(id);
        }
        ending.process.kill();
        server.process.kill();
    }
    let server = serve(&sandbox, &[&whole], UNPROBED);
    let found = records::all(&sandbox);
    assert_eq!(found.len(), expected.len());
    for record in &found {
        let id = record["request_id"].as_str().unwrap();
        assert!(expected.remove(id), "{record:#}");
        assert!(
            id.ends_with(record["outcome"].as_str().unwrap()),
            "{record:#}"
        );
        assert!(record["tokens"].as_u64() > Some(0), "{record:#}");
    }
    stop(&sandbox, &server);
    assert_eq!(
        usage(&sandbox)["outcomes"],
        json!({ "complete": 60, "interrupted": 60 })
    );
    assert_balanced(&sandbox);
}

#[test]
fn stopped_server_leaves_no_list() {
    let sandbox = testkit::sandbox!();
    let backend = pausing(&[WORD, WORD]);
    let mut command = sandbox.command(&format!("serve -p 0 --backend {}", backend.url()));
    let server = sandbox.serve_with(command.env("LLMLB_DRAIN_TIMEOUT", "1s"));
    let _client = begin(&server, "aborted", "Hello");
    assert_eq!(lists(&sandbox).len(), 1);
    server.process.terminate().unwrap();
    assert_eq!(server.process.end(), Some(1));
    assert!(lists(&sandbox).is_empty());
    assert_eq!(records::one(&sandbox, "aborted")["outcome"], "cut");
}

#[test]
fn server_survives_the_truncation_of_its_list() {
    let sandbox = testkit::sandbox!();
    let whole = stream::streaming(&[WORD, STOP, USAGE, DONE]);
    let server = serve(&sandbox, &[&whole], UNPROBED);
    ok(&post(&server, "before", CHAT, &chat("Hello", true)));
    let list = fs::File::options()
        .write(true)
        .open(&lists(&sandbox)[0])
        .unwrap();
    list.set_len(0).unwrap();
    for number in 0..50 {
        ok(&post(
            &server,
            &format!("after-{number}"),
            CHAT,
            &chat("Hello", true),
        ));
    }
    assert_eq!(records::all(&sandbox).len(), 51);
    stop(&sandbox, &server);
}

#[test]
fn server_without_a_list_serves_and_says_so() {
    let sandbox = testkit::sandbox!();
    fs::create_dir_all(sandbox.data_dir()).unwrap();
    fs::write(sandbox.data_dir().join("in-flight"), "in the way").unwrap();
    let whole = stream::streaming(&[WORD, STOP, USAGE, DONE]);
    let server = serve(&sandbox, &[&whole], UNPROBED);
    ok(&post(&server, "served", CHAT, &chat("Hello", true)));
    assert_eq!(records::one(&sandbox, "served")["outcome"], "complete");
    let log = server.process.stderr();
    assert_eq!(
        log.matches("cannot list requests in flight").count(),
        1,
        "{log}"
    );
}

#[test]
fn damaged_list_is_kept_and_reported() {
    let sandbox = testkit::sandbox!();
    let dir = sandbox.data_dir().join("in-flight");
    fs::create_dir_all(&dir).unwrap();
    let damaged = dir.join("damaged.list");
    fs::write(&damaged, "\u{1b}garbage").unwrap();
    let whole = stream::streaming(&[WORD, STOP, USAGE, DONE]);
    let server = serve(&sandbox, &[&whole], UNPROBED);
    ok(&post(&server, "served", CHAT, &chat("Hello", true)));
    assert!(damaged.exists());
    let log = server.process.stderr();
    assert_eq!(log.matches("damaged.list").count(), 1, "{log}");
    assert!(!log.contains('\u{1b}'), "{log}");
}
