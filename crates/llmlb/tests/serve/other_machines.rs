//! What clients on other machines may see. (L3, L11)

use std::net::SocketAddr;

use crate::http::Connection;
use crate::network::in_its_own;
use crate::support::Place;

#[test]
fn others_may_use_a_public_server_but_not_ask_how_it_is() {
    in_its_own("other_machines::others_may_not_ask");
}

/// A request that comes from this address.
fn get(from: &str, to: SocketAddr, path: &str) -> u16 {
    let from: SocketAddr = format!("{from}:0").parse().unwrap();
    let kind = (socket2::Domain::IPV4, socket2::Type::STREAM);
    let socket = socket2::Socket::new(kind.0, kind.1, None).unwrap();
    socket.bind(&from.into()).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut client = Connection::over(socket.into());
    client.send_get(path);
    client.answer().status()
}

#[test]
#[ignore = "another test runs it in a network of its own"]
fn others_may_not_ask() {
    for address in ["10.9.9.1/32", "10.9.9.2/32"] {
        let ip = std::process::Command::new("ip")
            .args(["address", "add", address, "dev", "lo"])
            .status();
        assert!(ip.unwrap().success());
    }
    let place = Place::new();
    let server = place.serve("--demo -H 0.0.0.0 --allow-public");
    assert!(
        server.process.err().contains("anyone who reaches 0.0.0.0"),
        "{}",
        server.process.err()
    );
    let own: SocketAddr = format!("10.9.9.1:{}", server.port()).parse().unwrap();
    for (from, path, expected) in [
        ("10.9.9.2", "/v1/models", 200),
        ("10.9.9.2", "/readyz", 200),
        ("10.9.9.2", "/status", 403),
        ("10.9.9.1", "/status", 200),
        ("127.0.0.1", "/status", 200),
    ] {
        assert_eq!(get(from, own, path), expected, "{from} {path}");
    }
    let (status, _) = place.status(server.port());
    assert_eq!(status["health"], "ok");
}
