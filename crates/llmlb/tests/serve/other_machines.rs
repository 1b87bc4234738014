//! Access and connection limits of clients on other machines. (promises L3, L11)

use std::net::SocketAddr;

use crate::network::run_in_network_namespace;
use testkit::Connection;

#[test]
fn clients_on_other_machines_may_use_a_public_server_but_not_its_status() {
    run_in_network_namespace("other_machines::serves_clients_but_not_status_on_other_machines");
}

/// Opens a connection to the server from this source address, so that the server counts it as
/// another client.
fn connect(from: &str, to: SocketAddr) -> Connection {
    let from = SocketAddr::new(from.parse().unwrap(), 0);
    let domain = socket2::Domain::for_address(from);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    Connection::over(socket.into())
}

fn get(from: &str, to: SocketAddr, path: &str) -> u16 {
    let mut client = connect(from, to);
    client.send_get(path);
    client.answer().status()
}

fn add_address(address: &str) {
    let ip = std::process::Command::new("ip")
        .args(["address", "add", address, "dev", "lo"])
        .status();
    assert!(ip.unwrap().success());
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn serves_clients_but_not_status_on_other_machines() {
    for address in ["10.9.9.1/32", "10.9.9.2/32"] {
        add_address(address);
    }
    let sandbox = testkit::sandbox!();
    let server = sandbox.serve("--demo -H 0.0.0.0 --allow-public");
    // The warning follows the line for which the start waits.
    testkit::eventually("the warning is logged", || {
        let log = server.process.stderr();
        log.contains("every client that can reach 0.0.0.0")
            .then_some(())
    });
    let own: SocketAddr = format!("10.9.9.1:{}", server.port()).parse().unwrap();
    for (from, path, expected) in [
        ("10.9.9.2", "/v1/models", 200),
        ("10.9.9.2", "/readyz", 200),
        ("10.9.9.2", "/status", 403),
        ("10.9.9.2", "/metrics", 403),
        ("10.9.9.1", "/metrics", 200),
        ("10.9.9.1", "/status", 200),
        ("127.0.0.1", "/status", 200),
    ] {
        assert_eq!(get(from, own, path), expected, "{from} {path}");
    }
    let (status, _) = sandbox.status(server.port());
    assert_eq!(status["health"], "ok");
}

#[test]
fn connections_per_address_are_limited() {
    run_in_network_namespace("other_machines::limits_connections_per_address");
}

/// Opens connections from these addresses until one is rejected. Returns the accepted connections and
/// the status of the rejection.
fn until_rejected(from: &[&str], to: SocketAddr) -> (Vec<Connection>, u16) {
    let mut held = Vec::new();
    for number in 0..100 {
        let mut client = connect(from[number % from.len()], to);
        client.send_get("/healthz");
        let response = client.answer();
        if response.status() != 200 {
            assert_eq!(response.json()["error"]["code"], "too_many_connections");
            return (held, response.status());
        }
        held.push(client);
    }
    (held, 200)
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn limits_connections_per_address() {
    for address in ["10.9.9.1/32", "10.9.9.2/32", "10.9.9.3/32"] {
        add_address(address);
    }
    for address in ["fd00::1/128", "fd00::2/128", "fd00:0:0:1::1/128"] {
        add_address(address);
    }
    let sandbox = testkit::sandbox!();
    let mut command = sandbox.command("serve -p 0 --demo -H :: --allow-public");
    command
        .env("LLMLB_MAX_CONNECTIONS", "40")
        .env("LLMLB_MAX_CONNECTIONS_PER_ADDRESS", "7");
    let server = sandbox.serve_with(&mut command);
    let v4 = SocketAddr::from(([10, 9, 9, 1], server.port()));
    let v6: SocketAddr = format!("[fd00::1]:{}", server.port()).parse().unwrap();

    let (held, status) = until_rejected(&["10.9.9.2"], v4);
    assert_eq!((held.len(), status), (7, 429));
    // A client at its limit must not affect other addresses. All IPv6 addresses of one /64 must
    // count as one client.
    let (other, status) = until_rejected(&["10.9.9.3"], v4);
    assert_eq!((other.len(), status), (7, 429));
    let (prefix, status) = until_rejected(&["fd00::1", "fd00::2"], v6);
    assert_eq!((prefix.len(), status), (7, 429));
    assert_eq!(get("fd00:0:0:1::1", v6, "/healthz"), 200);

    // Loopback clients have no limit per address. Four connections above the limit of all clients
    // are reserved for them, so that the operator can still reach the server.
    let loopback = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let (local, status) = until_rejected(&["127.0.0.1"], loopback);
    assert_eq!((local.len(), status), (40 - 3 * 7 + 4, 503));
    let counts = connection_counts(local);
    assert_eq!(counts["rejected"], 1, "{counts}");
    assert_eq!(counts["rejected_per_address"], 3, "{counts}");
    assert_eq!(counts["max_per_address"], 7, "{counts}");
    drop(other);
    testkit::until("a closed connection makes room for another", || {
        get("10.9.9.3", v4, "/healthz") == 200
    });
    let log = server.process.stderr();
    let line =
        "rejecting connections from 10.9.9.2: the address has 7 open, the limit of one address";
    assert_eq!(log.matches(line).count(), 1, "{log}");
    drop((held, prefix));
}

/// Returns the connection counts of `/status`, requested on one of these connections.
fn connection_counts(mut local: Vec<Connection>) -> serde_json::Value {
    let client = local.first_mut().unwrap();
    client.send_get("/status");
    client.answer().json()["connections"].clone()
}
