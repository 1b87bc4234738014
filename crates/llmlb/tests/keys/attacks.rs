//! Hostile clients: huge, malformed, repeated and guessed API keys. (promise L11)

use testkit::backends::{ASK, CHAT, asked};
use testkit::{Connection, LlmlbServer};

use crate::support::{add, bearer, chat, send, serve};

#[test]
fn huge_malformed_and_repeated_credentials_are_rejected() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice");
    let (backend, server) = serve(&sandbox, "");
    for (fields, allowed) in [
        // The header exceeds `server.max_header`, so it may be rejected in front of the check of
        // the key.
        (bearer(&"x".repeat(1 << 20)), &[400, 431][..]),
        (bearer(&"x".repeat(20_000)), &[401]),
        (bearer(&good.repeat(100)), &[401]),
        (bearer(&format!("{good}\0")), &[400, 401]),
        (format!("x-api-key: \0{good}\r\n"), &[400, 401]),
        (bearer("\u{e9}\u{e9}\u{e9}\u{e9}"), &[401]),
        (format!("{}{}", bearer(&good), bearer(&good)), &[401]),
        (format!("{}{}", bearer("other"), bearer(&good)), &[401]),
        (format!("x-api-key: a\r\nx-api-key: {good}\r\n"), &[401]),
        (format!("Authorization : Bearer {good}\r\n"), &[400]),
        (format!("authorization: Bearer\r\n {good}\r\n"), &[400]),
    ] {
        let status = status(&server, &fields);
        let shown: String = fields.chars().take(80).collect();
        assert!(allowed.contains(&status), "{shown}: {status}");
    }
    assert_eq!(asked(&backend).len(), 0);
    assert_eq!(chat(&server, &good), 200);
}

/// Sends a chat request and returns the status. The server may close the connection before all of it
/// is sent.
fn status(server: &LlmlbServer, fields: &str) -> u16 {
    let mut client = Connection::open(server.address);
    let request = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\n{fields}content-length: {}\r\n\r\n{ASK}",
        ASK.len()
    );
    let bytes: Vec<u8> = request.chars().map(|char| char as u8).collect();
    let _ = testkit::Http1::send(&mut client, bytes);
    client.head().status()
}

#[test]
fn key_in_the_query_does_not_authenticate() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice");
    let (backend, server) = serve(&sandbox, "");
    for name in ["key", "api_key", "api-key", "access_token", "Authorization"] {
        let path = format!("{CHAT}?{name}={good}");
        assert_eq!(
            send(&server, "POST", &path, "", ASK).status(),
            401,
            "{name}"
        );
        let answer = send(&server, "POST", &path, &bearer(&good), ASK);
        assert_eq!(answer.status(), 200, "{name}");
    }
    for request in asked(&backend) {
        assert!(!format!("{request:?}").contains(&good));
    }
}

/// Wrong keys must leave neither records nor memory per key behind, otherwise a client that guesses
/// keys could exhaust memory or disk.
#[cfg(target_os = "linux")]
#[test]
fn many_wrong_keys_do_not_grow_the_server() {
    let sandbox = testkit::sandbox!();
    let good = add(&sandbox, "alice");
    let (_backend, server) = serve(&sandbox, "");
    let guess = |count: usize| {
        let mut client = Connection::open(server.address);
        for number in 0..count {
            client.send(format!(
                "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer llmlb-{number:043}\r\n\r\n"
            ));
            assert_eq!(client.answer().status(), 401);
        }
    };
    guess(3000);
    let before = testkit::resources::resident_memory(server.pid()).unwrap();
    guess(12_000);
    let after = testkit::resources::resident_memory(server.pid()).unwrap();
    assert!(after < before + (4 << 20), "{before} -> {after} bytes");
    assert_eq!(server.status()["refused"]["invalid_api_key"], 15_000);
    assert_eq!(chat(&server, &good), 200);
}
