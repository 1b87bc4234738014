//! Settings that a reload changes, and settings that need a restart. (promise L12)

use testkit::backends::{ASK, CHAT, asked, backend, code, ok};
use testkit::{Connection, until};

use crate::server::{ReloadingServer, table};

#[test]
fn limit_on_bodies_and_forwarded_headers_change() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let ask = || {
        let mut client = Connection::open(running.server.address);
        client.send_post_with(CHAT, "x-team: blue\r\n", ASK);
        client.answer().status()
    };
    let team = || asked(&a).pop().unwrap().head.header("x-team");
    assert_eq!((ask(), team()), (200, None));
    let text = "[upstream]\nforward_headers = [\"x-team\"]\n";
    running.reload(&format!("{text}{}", table("a", &a, "")));
    assert_eq!((ask(), team()), (200, Some("blue".to_owned())));
    let text = "[server]\nmax_body = \"5\"\n";
    let text = text.replace("\"5\"", "5");
    running.reload(&format!("{text}{}", table("a", &a, "")));
    assert_eq!(ask(), 413);
}

#[test]
fn unknown_endpoints_and_access_log_change() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    assert_eq!(running.server.post("/v1/new-thing", "{}").status(), 200);
    let text = "[server]\nunknown_endpoints = \"reject\"\n[log]\nrequests = false\n";
    running.reload(&format!("{text}{}", table("a", &a, "")));
    let answer = running.server.post("/v1/new-thing-2", "{}");
    assert_eq!(code(&answer), "unknown_endpoint");
    running.reload(&table("a", &a, ""));
    assert_eq!(running.server.post("/v1/new-thing-3", "{}").status(), 200);
    // Lines of the access log are written in order. So once the line of the last request is there,
    // the missing line of the request before shows that logging was off.
    until("the last request is logged", || {
        running.server.process.stderr().contains("/v1/new-thing-3")
    });
    let log = running.server.process.stderr();
    assert!(!log.contains("/v1/new-thing-2"), "{log}");
}

#[test]
fn queue_is_limited_anew() {
    let a = backend(|_, stream| {
        testkit::wire::begin_stream(stream);
        testkit::wire::chunk(stream, "1");
        let _ = std::io::Read::read(stream, &mut [0]);
    });
    let text = |queue: u32| {
        let table = table("a", &a, "max_concurrent = 1\n");
        format!("[server]\nqueue = {queue}\n{table}")
    };
    let running = ReloadingServer::start(testkit::sandbox!(), &text(5));
    let mut first = Connection::open(running.server.address);
    first.send_post(CHAT, ASK);
    assert_eq!(first.head().status(), 200);
    running.reload(&text(0));
    let answer = running.server.post(CHAT, ASK);
    assert_eq!(
        (answer.status(), code(&answer).as_str()),
        (429, "queue_full")
    );
}

#[test]
fn settings_that_need_a_restart_are_named_and_keep_their_value() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let text = "[server]\nworkers = 3\nqueue = 9\n[usage]\nevery = \"2m\"\n";
    running.reload(&format!("{text}{}", table("a", &a, "")));
    let log = running.server.process.stderr();
    for change in ["server.workers ", "usage.every 1m -> 2m"] {
        assert!(log.contains(&format!("configuration: {change}")), "{log}");
    }
    assert!(log.contains("takes effect after restart"), "{log}");
    assert!(log.contains("server.queue 1000 -> 9"), "{log}");
    let waiting = running.config()["after_restart"].clone();
    assert_eq!(waiting.as_array().unwrap().len(), 2, "{waiting}");
    let shown = running.sandbox.run("status").stdout;
    assert!(
        shown.contains("after restart: usage.every 1m -> 2m"),
        "{shown}"
    );
    assert!(
        shown.contains("llmlb.toml") && shown.contains("1 reload"),
        "{shown}"
    );
    // Another reload must not end the warning: the file's value still differs from the running
    // value, which only a restart changes.
    running.reload(&format!("{}{}", text.replace('9', "8"), table("a", &a, "")));
    assert_eq!(running.config()["after_restart"], waiting);
}

#[test]
fn drain_timeout_reaches_the_lock_record() {
    let a = backend(ok);
    let running = ReloadingServer::start(testkit::sandbox!(), &table("a", &a, ""));
    let text = "[server]\ndrain_timeout = \"77s\"\n";
    running.reload(&format!("{text}{}", table("a", &a, "")));
    let port = running.server.address.port();
    until("the lock record has the new drain timeout", || {
        let record = std::fs::read_to_string(running.sandbox.lock_file(port)).unwrap_or_default();
        record.contains("77000")
    });
}
