//! Tests of leases on Redis with a real server, through the public API.
#![cfg(all(unix, feature = "redis"))]
#![expect(
    clippy::unwrap_used,
    reason = "an error in a helper must fail its test"
)]

#[path = "stores/common.rs"]
mod common;

use std::thread;
use std::time::Duration;

use tenure::Store;
use tenure_tests::servers::RedisServer;

use common::{TTL, try_acquire};

#[test]
fn claims_refuse_hand_over_and_expire() {
    let Some(server) = RedisServer::start() else {
        return;
    };
    let url = server.url();
    common::check_acquire_refuse_release(&url);
    thread::scope(|scope| {
        scope.spawn(|| common::check_hand_over(&url, Duration::from_millis(100)));
        scope.spawn(|| common::check_expiry(&url, TTL + Duration::from_secs(1)));
        scope.spawn(|| common::check_stop_request(&url));
        scope.spawn(|| common::check_record_update(&url));
        scope.spawn(|| {
            common::check_deletion_is_noticed(&url, |name| {
                let deleted = server.command(&["DEL", &format!("tenure:{{{name}}}:lease")]);
                assert_eq!(deleted, ":1\r\n");
            });
        });
    });
}

#[test]
fn lease_survives_a_restart_of_the_server() {
    let Some(mut server) = RedisServer::start() else {
        return;
    };
    let store = Store::connect(&server.url()).unwrap();
    let tenure = try_acquire(&store, "k").unwrap();
    server.kill9();
    server.restart();
    assert!(try_acquire(&store, "k").unwrap_err().is_held());
    thread::sleep(TTL);
    assert!(!tenure.lost());
    let token = tenure.token();
    tenure.release().unwrap();
    assert!(try_acquire(&store, "k").unwrap().token() > token);
}

#[test]
fn password_is_required_and_checked() {
    let Some(server) = RedisServer::start_with(&["--requirepass", "secret"]) else {
        return;
    };
    let port = server.port();
    let claim = |user: &str| {
        let store = Store::connect(&format!("redis://{user}127.0.0.1:{port}")).unwrap();
        try_acquire(&store, "k")
    };
    for wrong in ["", ":wrong@"] {
        let error = claim(wrong).unwrap_err();
        assert!(!error.is_unreachable(), "{error}");
        assert!(!error.to_string().contains("wrong@"), "{error}");
    }
    claim(":secret@").unwrap().release().unwrap();
}

#[test]
fn user_without_channels_can_release_and_hand_over() {
    let Some(server) = RedisServer::start() else {
        return;
    };
    let rules = ["on", ">pw", "resetchannels", "~tenure:*", "+@all"];
    let words: Vec<&str> = ["ACL", "SETUSER", "joe"].into_iter().chain(rules).collect();
    assert_eq!(server.command(&words), "+OK\r\n");
    let url = format!("redis://joe:pw@127.0.0.1:{}", server.port());
    let store = Store::connect(&url).unwrap();
    let tenure = try_acquire(&store, "k").unwrap();
    thread::scope(|scope| {
        let claim = store.claim(&tenure::Key::name("k").unwrap()).ttl(TTL);
        let waiting = scope.spawn(|| claim.acquire(|_| {}).map(drop));
        tenure.release().unwrap();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn lease_without_expiry_and_with_an_invalid_ttl_expires() {
    let Some(server) = RedisServer::start() else {
        return;
    };
    let store = Store::connect(&server.url()).unwrap();
    for ttl in ["1e400", "nan", "-5", "x"] {
        let fields = ["owner", "another", "token", "1", "record", "", "ttl", ttl];
        let words: Vec<&str> = ["HSET", "tenure:{name_k}:lease"]
            .into_iter()
            .chain(fields)
            .collect();
        server.command(&words);
        assert!(try_acquire(&store, "k").unwrap_err().is_held(), "ttl {ttl}");
        let left = server.command(&["PTTL", "tenure:{name_k}:lease"]);
        let left: i64 = left.trim().trim_start_matches(':').parse().unwrap();
        assert!((1..=86_400_000).contains(&left), "ttl {ttl}: {left}");
        server.command(&["DEL", "tenure:{name_k}:lease"]);
    }
}
