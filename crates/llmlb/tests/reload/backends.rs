//! Backends that a reload adds, removes, changes and adds again. (promise L12)

use std::io::Read;

use testkit::backends::{ASK, CHAT, backend, backend_of, code, count, ok, served_by};
use testkit::{Connection, FakeLlm, eventually, read_chunk, until, wire};

use crate::server::{ReloadingServer, table, tables};

/// Returns a backend with streams that stay open, and the gate by which the test ends them.
fn streaming() -> (FakeLlm, testkit::Gate) {
    let gate = testkit::Gate::new();
    let opened = gate.clone();
    let backend = backend(move |_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "first");
        opened.wait();
        wire::chunk(stream, "last");
        wire::end_stream(stream);
    });
    (backend, gate)
}

#[test]
fn added_backend_serves_requests_and_a_removed_one_gets_no_more() {
    let (a, b) = (backend(ok), backend(ok));
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    assert_eq!(served_by(&running.server.post(CHAT, ASK)), "a");
    running.reload(&tables(&[("a", a.address), ("b", b.address)], ""));
    until("both backends serve", || {
        running.server.post(CHAT, ASK);
        count(&b) > 0
    });
    running.reload(&table("b", &b, ""));
    let before = count(&a);
    for _ in 0..20 {
        let answer = running.server.post(CHAT, ASK);
        assert_eq!((answer.status(), served_by(&answer).as_str()), (200, "b"));
    }
    assert_eq!(count(&a), before);
    assert_eq!(running.backends(), ["b"]);
}

#[test]
fn models_of_an_added_backend_are_known_with_the_first_request() {
    let (a, b) = (backend_of(&["m"], ok), backend_of(&["n"], ok));
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    assert_eq!(running.server.post(CHAT, r#"{"model":"n"}"#).status(), 404);
    running.reload(&tables(&[("a", a.address), ("b", b.address)], ""));
    assert_eq!(running.server.post(CHAT, r#"{"model":"n"}"#).status(), 200);
    running.reload(&table("a", &a, ""));
    let gone = running.server.post(CHAT, r#"{"model":"n"}"#);
    assert_eq!(
        (gone.status(), code(&gone).as_str()),
        (404, "model_not_found")
    );
}

#[test]
fn stream_of_a_removed_backend_ends_in_full_and_its_connections_are_closed() {
    let (a, gate) = streaming();
    let b = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let mut client = Connection::open(running.server.address);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    let next = |client: &mut Connection| read_chunk(&mut client.reader);
    assert_eq!(next(&mut client), Some(Some(b"first".to_vec())));
    running.reload(&table("b", &b, ""));
    assert_eq!(served_by(&running.server.post(CHAT, ASK)), "b");
    gate.open();
    assert_eq!(next(&mut client), Some(Some(b"last".to_vec())));
    assert_eq!(next(&mut client), Some(None));
    until("no connection to the removed backend is open", || {
        a.open_connections() == 0
    });
    assert_eq!(count(&a), 1);
}

#[test]
fn removed_backend_gets_no_more_probes() {
    let (a, b) = (backend(ok), backend(ok));
    let often = "[upstream]\nprobe_interval = \"100ms\"\n";
    let both = tables(&[("a", a.address), ("b", b.address)], "");
    let running = ReloadingServer::start(testkit::sandbox!(), &format!("{often}{both}"));
    running.reload(&format!("{often}{}", table("b", &b, "")));
    // A probe that had begun before the reload may still arrive at the removed backend. After it,
    // the other backend must get many probes and the removed one none.
    let probes = |backend: &FakeLlm| backend.probes().len();
    let (mut of_a, of_b) = (probes(&a), probes(&b));
    let mut last = of_b;
    until("only the other backend is probed for a long time", || {
        if probes(&a) != of_a {
            (of_a, last) = (probes(&a), probes(&b));
        }
        probes(&b) >= last + 10
    });
}

#[test]
fn backend_that_is_added_again_keeps_its_counters() {
    let (a, b) = (backend(ok), backend(ok));
    let with = tables(&[("a", a.address), ("b", b.address)], "");
    let running = ReloadingServer::start(testkit::sandbox!(), &with);
    until("a has served a request", || {
        running.server.post(CHAT, ASK);
        count(&a) > 0
    });
    let requests = |name: &str| {
        let status = running.server.get("/status").json();
        let list = status["backends"].as_array().unwrap().clone();
        let found = list.into_iter().find(|one| one["name"] == name);
        found.map(|one| one["requests"].as_u64().unwrap())
    };
    let before = requests("a");
    assert_eq!(before, Some(count(&a) as u64));
    running.reload(&table("b", &b, ""));
    assert_eq!(requests("a"), None);
    // The backend is added again with another name and at another position. Its URL identifies it,
    // so its counters must continue.
    running.reload(&tables(&[("b", b.address), ("again", a.address)], ""));
    assert_eq!(running.backends(), ["b", "again"]);
    assert_eq!(requests("again"), before);
    until("the backend serves again", || {
        served_by(&running.server.post(CHAT, ASK)) == "again"
    });
}

#[test]
fn new_key_limit_and_models_of_a_backend_apply_to_the_next_request() {
    let a = backend_of(&["m", "n"], ok);
    let sandbox = testkit::sandbox!();
    sandbox.file("llmlb.toml", table("a", &a, "api_key_env = \"KEY_1\"\n"));
    let mut command = sandbox.command("serve -p 0");
    let server = sandbox.serve_with(command.env("KEY_1", "one").env("KEY_2", "two"));
    let running = ReloadingServer { sandbox, server };
    let key = || {
        let last = testkit::backends::asked(&a).pop().unwrap();
        last.head.header("authorization").unwrap_or_default()
    };
    running.server.post(CHAT, ASK);
    assert_eq!(key(), "Bearer one");
    let more = "api_key_env = \"KEY_2\"\nonly_models = [\"n\"]\nmax_concurrent = 7\n";
    running.reload(&table("a", &a, more));
    let answer = running.server.post(CHAT, ASK);
    assert_eq!(answer.status(), 404, "only_models excludes m");
    assert_eq!(running.server.post(CHAT, r#"{"model":"n"}"#).status(), 200);
    assert_eq!(key(), "Bearer two");
    let log = running.server.process.stderr();
    assert!(
        log.contains("backend a: key, max_concurrent, only_models changed"),
        "{log}"
    );
    assert!(!log.contains("two"), "a key in the log: {log}");
}

#[test]
fn weight_of_a_backend_changes_its_share() {
    let (a, b) = (backend(ok), backend(ok));
    let text = |weight: u32| {
        let heavy = table("a", &a, &format!("weight = {weight}\n"));
        format!("{heavy}{}", table("b", &b, ""))
    };
    let running = ReloadingServer::start(testkit::sandbox!(), &text(1));
    running.reload(&text(1000));
    let before = (count(&a), count(&b));
    for _ in 0..100 {
        running.server.post(CHAT, ASK);
    }
    let (of_a, of_b) = (count(&a) - before.0, count(&b) - before.1);
    assert!(of_a > 2 * of_b, "{of_a} {of_b}");
}

#[test]
fn waiting_request_moves_to_the_backend_that_replaces_its_own() {
    let busy = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        let _ = stream.read(&mut [0]);
    });
    let limit = "max_concurrent = 1\n";
    let running = ReloadingServer::start(testkit::sandbox!(), &table("busy", &busy, limit));
    let mut first = Connection::open(running.server.address);
    first.send_post(CHAT, ASK);
    assert_eq!(first.head().status(), 200);
    let mut second = Connection::open(running.server.address);
    second.send_post(CHAT, ASK);
    let waiting = || running.server.get("/status").json()["waiting"].clone();
    eventually("the request waits", || (waiting() == 1).then_some(()));
    let other = backend(ok);
    running.reload(&table("other", &other, ""));
    let answer = second.answer();
    assert_eq!(
        (answer.status(), served_by(&answer).as_str()),
        (200, "other")
    );
    assert_eq!(count(&busy), 1);
}

#[test]
fn waiting_request_gets_a_slot_when_the_limit_is_raised() {
    let busy = backend(|_, stream| {
        wire::begin_stream(stream);
        wire::chunk(stream, "1");
        let _ = stream.read(&mut [0]);
    });
    let text = |limit: u32| table("busy", &busy, &format!("max_concurrent = {limit}\n"));
    let running = ReloadingServer::start(testkit::sandbox!(), &text(1));
    let mut clients = [0, 1].map(|_| Connection::open(running.server.address));
    clients[0].send_post(CHAT, ASK);
    assert_eq!(clients[0].head().status(), 200);
    clients[1].send_post(CHAT, ASK);
    let waiting = || running.server.get("/status").json()["waiting"].clone();
    eventually("the request waits", || (waiting() == 1).then_some(()));
    running.reload(&text(2));
    assert_eq!(clients[1].head().status(), 200);
}

#[test]
fn aliases_change() {
    let a = backend(ok);
    let text = |alias: &str| format!("{}[aliases]\n{alias} = \"m\"\n", table("a", &a, ""));
    let running = ReloadingServer::start(testkit::sandbox!(), &text("old"));
    let ask = |model: &str| {
        let body = format!(r#"{{"model":"{model}"}}"#);
        running.server.post(CHAT, &body).status()
    };
    assert_eq!((ask("old"), ask("new")), (200, 404));
    running.reload(&text("new"));
    assert_eq!((ask("old"), ask("new")), (404, 200));
}
