use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use tenure::{Key, Proof};

use super::server::{Health, RunningServer, ServerState};
use super::*;
use crate::cli::status_client::tests::{Manner, fake, reply};
use crate::lock::{LockInfo, ServerFields, ServerLock};
use crate::sys::PortOwner;

pub(super) fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_769_774_400 + 600)
}

pub(super) fn info() -> LockInfo {
    serde_json::from_value(json!({
        "pid": 1234, "started_at": "2026-01-30T12:00:00.25Z", "port": 32768, "host": "box",
        "user": "ann", "program": "llmlb", "verb": "serve", "llmlb_version": "0.1.0",
        "address": "127.0.0.1:32768", "drain_timeout_ms": 30_000
    }))
    .unwrap()
}

pub(super) fn health(status: &str) -> Health {
    let response = serde_json::from_value(json!({
        "status": status, "version": "0.1.1", "pid": 1234, "uptime_ms": 599_999, "in_flight": 3, "waiting": 1,
        "requests": 1000, "dropped_headers": { "x-team": 2, "*": 1 },
        "connections": { "open": 12, "max": 448, "max_per_address": 112, "rejected": 38,
            "rejected_per_address": 2 },
        "backend_connections": { "open": 3, "max": 452, "max_per_address": 113, "rejected": 0,
            "rejected_per_address": 0 },
        "keys": { "required": true, "count": 3, "error": null }, "refused": { "invalid_api_key": 7 },
        "limits": { "mode": "enforce", "fleet": null, "keys": {} },
        "backends": [
            { "name": "gpu1", "url": "http://10.0.0.5:8000", "kind": "vllm", "up": true,
              "ejected": false, "drained": null, "models": 3,
              "in_flight": 1, "requests": 500, "error": null, "last_error":
              { "status": 500, "error": "Internal Server Error", "at": "2026-01-30T12:09:30Z" } },
            { "name": "big-gpu", "url": "http://10.0.0.6:8000", "kind": null, "up": false,
              "ejected": false, "drained": null, "models": 0,
              "in_flight": 0, "requests": 2, "error": "connection\nrefused", "last_error":
              { "status": null, "error": "connection refused", "at": "2026-01-30T12:09:30Z" } }],
        "usage": { "to": "https://b.example/u", "last_run": "2026-01-30T12:09:50Z",
            "last_delivery": "2026-01-30T12:09:48Z", "delivered": 120, "waiting": 0, "failed": 0,
            "recorded": 130, "lost": 0, "instance": "box:32768", "deliverer": null, "error": null,
            "kept": { "archive": { "files": 2, "bytes": 9 },
                "failed": { "files": 0, "bytes": 0 }, "large": [] } },
        "config": { "path": "llmlb.toml", "hash": "0123456789ab", "since": "2026-01-30T12:05:00Z",
            "reloads": 2, "after_restart": ["server.workers 4 -> 8"], "refused":
            { "at": "2026-01-30T12:09:00Z", "problems": 3, "error": "llmlb.toml:2: x" } },
        "tls": { "names": ["localhost"], "not_after": "2026-02-01T12:00:00Z",
            "client_certificates": false, "handshakes": 5, "failed_handshakes": 1 }
    }));
    Health::Responded(Box::new(response.unwrap()))
}

pub(super) fn healthy() -> RunningServer {
    RunningServer {
        proof: Proof::Verified,
        pid: Some(1234),
        info: Some(info()),
        user: Some("ann".to_owned()),
        suspended: false,
        file_gone: false,
        health: health("ok"),
    }
}

pub(super) fn server(port: u16, state: ServerState) -> ServerReport {
    ServerReport {
        port,
        lock_path: PathBuf::from(format!("/l/serve_{port}.lock")),
        state,
        port_in_use_by: None,
    }
}

pub(super) fn running(port: u16, running: RunningServer) -> ServerReport {
    server(port, ServerState::Running(Box::new(running)))
}

pub(super) fn nginx() -> PortOwner {
    PortOwner {
        pid: Some(7),
        program: Some("nginx".to_owned()),
        listening: true,
    }
}

fn as_json(found: &[ServerReport]) -> Value {
    serde_json::from_str(&json::render(found, now()).unwrap()).unwrap()
}

#[test]
fn json_of_a_running_server_has_the_documented_fields() {
    let mut report = as_json(&[running(32768, healthy())]);
    // Compare some fields separately: one `json!` with all fields would exceed the recursion limit
    // of macros.
    let server = report["servers"][0].as_object_mut().unwrap();
    let expected = json!({ "mode": "enforce", "fleet": null, "keys": {} });
    assert_eq!(server.remove("limits"), Some(expected));
    assert_eq!(server.remove("traces"), Some(Value::Null));
    let expected = json!({ "x-team": 2, "*": 1 });
    assert_eq!(server.remove("dropped_headers"), Some(expected));
    let expected = json!({ "to": "https://b.example/u", "last_run": "2026-01-30T12:09:50Z",
        "last_delivery": "2026-01-30T12:09:48Z", "delivered": 120, "waiting": 0, "failed": 0,
        "recorded": 130, "lost": 0, "instance": "box:32768", "deliverer": null, "error": null,
        "kept": { "archive": { "files": 2, "bytes": 9 },
            "failed": { "files": 0, "bytes": 0 }, "large": [] } });
    assert_eq!(server.remove("usage"), Some(expected));
    assert_eq!(
        report,
        json!({ "version": 1, "servers": [{
            "port": 32768, "state": "running", "reason": null, "proof": "verified", "pid": 1234,
            "started_at": "2026-01-30T12:00:00.25Z", "uptime_s": 599, "llmlb_version": "0.1.1",
            "address": "127.0.0.1:32768", "user": "ann", "host": "box",
            "health": "ok", "health_detail": null,
            "backends": { "up": 1, "total": 2, "list": [
                { "name": "gpu1", "url": "http://10.0.0.5:8000", "kind": "vllm", "up": true,
              "ejected": false, "drained": null, "models": 3,
                  "in_flight": 1, "requests": 500, "error": null, "last_error":
                  { "status": 500, "error": "Internal Server Error",
                    "at": "2026-01-30T12:09:30Z" } },
                { "name": "big-gpu", "url": "http://10.0.0.6:8000", "kind": null, "up": false,
              "ejected": false, "drained": null, "models": 0,
                  "in_flight": 0, "requests": 2, "error": "connection\nrefused", "last_error":
                  { "status": null, "error": "connection refused",
                    "at": "2026-01-30T12:09:30Z" } }] },
            "in_flight": 3, "waiting": 1, "requests": 1000,
            "connections": { "open": 12, "max": 448, "max_per_address": 112, "rejected": 38,
                "rejected_per_address": 2 },
            "backend_connections": { "open": 3, "max": 452, "max_per_address": 113, "rejected": 0,
                "rejected_per_address": 0 },
            "keys": { "required": true, "count": 3, "error": null },
            "refused": { "invalid_api_key": 7 },
            "config": { "path": "llmlb.toml", "hash": "0123456789ab",
                "since": "2026-01-30T12:05:00Z", "reloads": 2,
                "after_restart": ["server.workers 4 -> 8"], "refused":
                { "at": "2026-01-30T12:09:00Z", "problems": 3, "error": "llmlb.toml:2: x" } },
            "tls": { "names": ["localhost"], "not_before": null,
                "not_after": "2026-02-01T12:00:00Z", "loaded_at": null, "error": null,
                "client_certificates": false, "handshakes": 5, "failed_handshakes": 1,
                "plain_http": null },
            "suspended": false, "lock_file_gone": false,
            "lock_path": "/l/serve_32768.lock", "port_in_use_by": null
        }] })
    );
    assert_eq!(as_json(&[]), json!({ "version": 1, "servers": [] }));
}

#[test]
fn json_has_the_reason_when_the_server_does_not_respond() {
    let silent = |health| {
        let mut server = running(
            8000,
            RunningServer {
                health,
                ..healthy()
            },
        );
        server.port_in_use_by = Some(nginx());
        as_json(&[server])["servers"][0].take()
    };
    let none = silent(Health::NoResponse("timed out".to_owned()));
    assert_eq!(none["health"], "no_answer");
    assert_eq!(none["health_detail"], "timed out");
    assert_eq!(none["uptime_s"], 599);
    assert_eq!(none["llmlb_version"], "0.1.0");
    for field in [
        "backends",
        "in_flight",
        "waiting",
        "requests",
        "dropped_headers",
        "connections",
        "backend_connections",
        "keys",
        "refused",
        "limits",
        "usage",
        "tls",
        "traces",
    ] {
        assert_eq!(none[field], Value::Null, "{field}");
    }
    let wrong = silent(Health::WrongProcess { pid: 7 });
    assert_eq!(wrong["health"], "wrong_process");
    assert_eq!(wrong["health_detail"], "another process responded, pid 7");
    assert_eq!(
        wrong["port_in_use_by"],
        json!({ "pid": 7, "program": "nginx", "listening": true })
    );
    assert_eq!(silent(health("draining"))["health"], "draining");
}

#[test]
fn json_of_every_other_state_has_the_same_fields() {
    let full = as_json(&[running(1, healthy())])["servers"][0].take();
    let names =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let cases = [
        (
            ServerState::NotRunning,
            "not_running",
            Value::Null,
            Value::Null,
        ),
        (
            ServerState::Stale(Some(Box::new(info()))),
            "stale",
            Value::Null,
            Value::Null,
        ),
        (
            ServerState::Unreadable("it is empty".into()),
            "unreadable",
            json!("it is empty"),
            Value::Null,
        ),
        (
            ServerState::Unusable("it is a directory".into()),
            "unusable",
            json!("it is a directory"),
            Value::Null,
        ),
        (
            ServerState::OtherUser("bob".into()),
            "other_user",
            Value::Null,
            json!("bob"),
        ),
        (
            ServerState::Unknown {
                user: "bob".into(),
                why: "it cannot be seen".into(),
            },
            "unknown",
            json!("it cannot be seen"),
            json!("bob"),
        ),
    ];
    for (state, word, reason, user) in cases {
        let entry = as_json(&[server(8000, state)])["servers"][0].take();
        assert_eq!(names(&entry), names(&full), "{word}");
        assert_eq!(entry["state"], word);
        assert_eq!((&entry["reason"], &entry["user"]), (&reason, &user));
        assert_eq!(entry["pid"], Value::Null);
    }
}

#[test]
fn response_is_not_attributed_to_an_unreadable_owner() {
    let unread = RunningServer {
        proof: Proof::OtherUser,
        pid: None,
        info: None,
        ..healthy()
    };
    let entry = as_json(&[running(8000, unread)])["servers"][0].take();
    assert_eq!(entry["proof"], "other_user");
    assert_eq!(entry["health"], "ok");
    assert_eq!(
        entry["health_detail"],
        "the process that responded is not proven to hold the lock"
    );
}

/// Acquires the lock of a port, as a running server does.
fn held(store: &Store, address: SocketAddr) -> ServerLock {
    let fields = ServerFields {
        address,
        drain_timeout: Duration::from_secs(30),
    };
    ServerLock::acquire_in(store, address.port(), Some(fields)).unwrap()
}

fn fresh() -> (TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::in_dir(dir.path());
    (dir, store)
}

fn ask(store: &Store, port: Option<u16>) -> (Value, u8) {
    let (text, code) = status_in(store, &Status { port, json: true }).unwrap();
    (serde_json::from_str(&text).unwrap(), code)
}

#[test]
fn status_is_requested_from_the_address_in_the_lock_record() {
    let (_dir, store) = fresh();
    let me = std::process::id();
    for (manner, health, detail) in [
        (Manner::Close(reply("ok", me)), "ok", Value::Null),
        (Manner::Keep(reply("draining", me)), "draining", Value::Null),
        (
            Manner::Close(reply("ok", 1)),
            "wrong_process",
            json!("another process responded, pid 1"),
        ),
        (
            Manner::Close(b"garbage".to_vec()),
            "no_answer",
            json!("the response is not HTTP"),
        ),
        (Manner::Keep(Vec::new()), "no_answer", json!("timed out")),
    ] {
        let address = fake(manner);
        let lock = held(&store, address);
        let (document, code) = ask(&store, Some(address.port()));
        let entry = &document["servers"][0];
        assert_eq!(code, exit::DONE);
        assert_eq!(entry["state"], "running");
        assert_eq!(entry["proof"], "verified");
        assert_eq!(entry["pid"], me);
        assert_eq!(entry["address"], address.to_string());
        assert_eq!(entry["lock_path"], lock.path().to_str().unwrap());
        assert_eq!(
            (&entry["health"], &entry["health_detail"]),
            (&json!(health), &detail)
        );
        let responded = health == "ok" || health == "draining";
        assert_eq!(entry["backends"]["up"] == 1, responded, "{health}");
        // The test process listens on the port and also holds the port's lock, so `port_in_use_by`
        // reports no other process.
        assert_eq!(entry["port_in_use_by"], Value::Null);
    }
}

#[test]
fn status_lists_every_server_once_and_no_other_locks() {
    let (dir, store) = fresh();
    let me = std::process::id();
    let addresses = [(); 2].map(|()| fake(Manner::Close(reply("ok", me))));
    let locks = addresses.map(|address| held(&store, address));
    let other = store.claim(&Key::port(80)).try_acquire().unwrap();
    let named = store
        .claim(&Key::name("serve_81").unwrap())
        .try_acquire()
        .unwrap();
    fs::write(dir.path().join("serve_99999.lock"), "x").unwrap();
    fs::write(dir.path().join("serve_.lock"), "x").unwrap();

    let (document, code) = ask(&store, None);
    let mut expected = addresses.map(|address| address.port());
    expected.sort_unstable();
    let ports: Vec<&Value> = document["servers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|server| &server["port"])
        .collect();
    assert_eq!(ports, expected);
    assert_eq!(code, exit::DONE);
    let args = Status {
        port: None,
        json: false,
    };
    let (text, _) = status_in(&store, &args).unwrap();
    assert!(text.starts_with("PORT"), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
    drop((locks, other, named));
}

#[test]
fn status_without_servers_fails_only_for_a_given_port() {
    let (dir, store) = fresh();
    // Nothing listens on port 1 of a test machine, so no program is reported for the port.
    let port = 1;
    let text = |port, json| status_in(&store, &Status { port, json }).unwrap();
    assert_eq!(
        text(None, false),
        ("No servers running".to_owned(), exit::DONE)
    );
    assert_eq!(
        text(Some(port), false),
        ("No server running on port 1".to_owned(), exit::NOT_RUNNING)
    );
    let (document, code) = ask(&store, Some(port));
    assert_eq!(code, exit::NOT_RUNNING);
    assert_eq!(document["servers"][0]["state"], "not_running");

    let path = dir.path().join("serve_1.lock");
    fs::write(
        &path,
        r#"{"pid":2147483000,"started_at":"2026-01-30T12:00:00Z","port":1}"#,
    )
    .unwrap();
    let stale = format!(
        "{} is the stale lock file of PID 2147483000 (started 2026-01-30T12:00:00Z), which no \
         longer runs; it is harmless: the next server takes it over",
        path.display()
    );
    assert_eq!(
        text(None, false),
        (format!("No servers running\nPort 1: {stale}"), exit::DONE)
    );
    assert_eq!(
        text(Some(port), false),
        (
            format!("No server running on port 1\n{stale}"),
            exit::NOT_RUNNING
        )
    );
    assert_eq!(ask(&store, None).0["servers"][0]["state"], "stale");
    assert!(path.exists(), "status removes no files");
}

#[test]
fn status_reports_another_program_on_the_port() {
    let (_dir, store) = fresh();
    let port = fake(Manner::Close(Vec::new())).port();
    let args = Status {
        port: Some(port),
        json: false,
    };
    let (text, code) = status_in(&store, &args).unwrap();
    assert_eq!(code, exit::NOT_RUNNING);
    assert!(
        text.starts_with(&format!(
            "No server running on port {port}\nAnother program listens on port {port}"
        )),
        "{text}"
    );
}
