//! Tests of leases on etcd with a real server, through the public API.
#![cfg(all(unix, feature = "etcd"))]
#![expect(
    clippy::unwrap_used,
    reason = "an error in a helper must fail its test"
)]

#[path = "stores/common.rs"]
mod common;
#[path = "stores/cutting_proxy.rs"]
mod cutting_proxy;

use std::time::{Duration, Instant};

use tenure::{Key, Store};
use tenure_tests::eventually;
use tenure_tests::servers::EtcdServer;

use common::{TTL, try_acquire};
use cutting_proxy::start_cutting_proxy;

#[test]
fn claims_refuse_hand_over_and_expire() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let url = server.url();
    common::check_acquire_refuse_release(&url);
    std::thread::scope(|scope| {
        scope.spawn(|| common::check_hand_over(&url, Duration::from_millis(500)));
        scope.spawn(|| common::check_expiry(&url, TTL + Duration::from_secs(1)));
        scope.spawn(|| common::check_stop_request(&url));
        scope.spawn(|| common::check_record_update(&url));
        scope.spawn(|| {
            common::check_deletion_is_noticed(&url, |name| {
                server.etcdctl(&["del", &format!("tenure/{name}/owner")]);
            });
        });
    });
    // All keys that tenure stores in etcd are attached to etcd leases, which are revoked on
    // release. Keys or leases that remained would fill the store.
    eventually("no keys and no leases are left", || {
        server.etcdctl(&["get", "--prefix", "tenure/"]).is_empty()
            && server.etcdctl(&["lease", "list"]).trim() == "found 0 leases"
    });
}

#[test]
fn overwritten_key_is_noticed() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    common::check_deletion_is_noticed(&server.url(), |name| {
        let key = format!("tenure/{name}/owner");
        server.etcdctl(&["put", "--ignore-lease", &key, "intruder"]);
        server.etcdctl(&["del", &key]);
        server.etcdctl(&["put", &key, "intruder"]);
        std::thread::sleep(TTL / 2);
        server.etcdctl(&["del", &key]);
    });
}

#[test]
fn refused_claims_create_no_leases() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let store = Store::connect(&server.url()).unwrap();
    let first = try_acquire(&store, "k").unwrap();
    for _ in 0..5 {
        assert!(try_acquire(&store, "k").unwrap_err().is_held());
    }
    assert!(
        server
            .etcdctl(&["lease", "list"])
            .starts_with("found 1 leases")
    );
    first.release().unwrap();
}

#[test]
fn lease_survives_a_restart_of_the_server() {
    let Some(mut server) = EtcdServer::start() else {
        return;
    };
    let store = Store::connect(&server.url()).unwrap();
    let ttl = Duration::from_secs(6);
    let key = Key::name("k").unwrap();
    let tenure = store.claim(&key).ttl(ttl).try_acquire().unwrap();
    server.kill9();
    server.restart();
    let restarted = Instant::now();
    // The restart closed the connection of the store. The first request after it must reconnect and
    // get a refusal, not fail with a connection error.
    assert!(try_acquire(&store, "k").unwrap_err().is_held());
    eventually("the lease is renewed", || {
        tenure.lease_state().unwrap().deadline().is_some() && restarted.elapsed() > ttl / 2
    });
    assert!(!tenure.lost());
    let token = tenure.token();
    tenure.release().unwrap();
    assert!(try_acquire(&store, "k").unwrap().token() > token);
}

#[test]
fn dead_endpoint_among_several_is_skipped() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    // Port 1 refuses connections. The listener accepts connections and never responds, so a client
    // notices only by a timeout that it is dead.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = silent.local_addr().unwrap();
    for dead in ["127.0.0.1:1".to_owned(), silent.to_string()] {
        let url = format!("etcd://{dead},127.0.0.1:{}/teams/a", server.port());
        let store = Store::connect(&url).unwrap();
        let tenure = try_acquire(&store, "k").unwrap();
        assert!(
            server
                .etcdctl(&["get", "--prefix", "--keys-only", "teams/a/name_k/"])
                .contains("owner")
        );
        tenure.release().unwrap();
    }
}

#[test]
fn lost_responses_cost_neither_the_key_nor_a_lease() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    let mut last = 0;
    for bytes in (0..900).step_by(60) {
        let proxy = start_cutting_proxy(server.port(), move |_| bytes);
        let url = format!("etcd://127.0.0.1:{proxy},127.0.0.1:{}", server.port());
        let store = Store::connect(&url).unwrap();
        // A request whose response the proxy drops is repeated on the second endpoint. The TTL is
        // long because both attempts must end within a third of it.
        let claim = store.claim(&Key::name("k").unwrap());
        let tenure = claim.ttl(Duration::from_secs(15)).try_acquire().unwrap();
        assert!(tenure.token() > last);
        last = tenure.token();
        let leases = server.etcdctl(&["lease", "list"]);
        assert!(leases.starts_with("found 1 leases"), "{bytes}: {leases}");
        tenure.release().unwrap();
        let leases = server.etcdctl(&["lease", "list"]);
        assert!(leases.starts_with("found 0 leases"), "{bytes}: {leases}");
    }
}

#[test]
fn credentials_are_required_and_checked() {
    let Some(server) = EtcdServer::start() else {
        return;
    };
    server.etcdctl(&["user", "add", "root:secret"]);
    server.etcdctl(&["user", "grant-role", "root", "root"]);
    server.etcdctl(&["auth", "enable"]);
    let claim = |url: &str| try_acquire(&Store::connect(url).unwrap(), "k");

    let error = claim(&server.url()).unwrap_err().to_string();
    assert!(error.contains("password_file"), "{error}");

    let port = server.port();
    let error = claim(&format!("etcd://root:wrong@127.0.0.1:{port}")).unwrap_err();
    assert!(!error.is_unreachable(), "{error}");
    let error = error.to_string();
    assert!(error.contains("invalid user ID or password"), "{error}");
    assert!(!error.contains("wrong"), "{error}");

    let tenure = claim(&format!("etcd://root:secret@127.0.0.1:{port}")).unwrap();
    tenure.release().unwrap();
}

#[test]
fn unreachable_server_is_reported_with_its_reason() {
    let store = Store::connect("etcd://127.0.0.1:1").unwrap();
    let error = try_acquire(&store, "k").unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    let error = error.to_string();
    assert!(error.contains("refused"), "{error}");
}
