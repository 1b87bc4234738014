//! Clients behind a reverse proxy: their addresses, and that none of them counts as local.
//! (promises L7, L11)

use std::sync::mpsc::channel;
use testkit::{
    Connection, DEADLINE, LlmlbServer,
    backends::{CHAT, backend, serve},
    until, wire,
};

fn status(server: &LlmlbServer, fields: &str) -> u16 {
    let mut client = Connection::open(server.address);
    client.send(format!(
        "GET /status HTTP/1.1\r\nhost: localhost\r\n{fields}\r\n"
    ));
    client.answer().status()
}

#[test]
fn request_with_proxy_headers_is_not_local() {
    let sandbox = testkit::sandbox!();
    for settings in [&[][..], &[("LLMLB_TRUSTED_PROXIES", "127.0.0.1")]] {
        let server = serve(&sandbox, &[&backend(testkit::backends::ok)], settings);
        assert_eq!(status(&server, ""), 200);
        assert_eq!(status(&server, "x-request-id: 1\r\n"), 200);
        for field in [
            "x-forwarded-for: 127.0.0.1",
            "X-Forwarded-For:",
            "x-forwarded-proto: https",
            "x-forwarded-anything: 1",
            "x-real-ip: 127.0.0.1",
            "forwarded: for=127.0.0.1",
            "forwarded: proto=http",
            "via: 1.1 nginx",
        ] {
            assert_eq!(status(&server, &format!("{field}\r\n")), 403, "{field}");
        }
        let (own, code) = sandbox.status(server.port());
        assert_eq!((own["health"].as_str(), code), (Some("ok"), Some(0)));
    }
}

/// Returns the order in which a backend with one slot gets requests. The first client sends three
/// requests, then the second client sends one. Each client is identified by a header field.
fn order(settings: &[(&str, &str)], first: &str, second: &str) -> String {
    let sandbox = testkit::sandbox!();
    let (sender, arrived) = channel();
    let sender = std::sync::Mutex::new(sender);
    let (release, wait) = channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let mock = backend(move |request, stream| {
        let name = request.text();
        let name = name.split('"').nth(7).unwrap_or_default().to_owned();
        sender.lock().unwrap().send(name).unwrap();
        let _ = wait.lock().unwrap().recv_timeout(DEADLINE);
        wire::json(stream, 200, "{}");
    });
    let url = mock.url();
    let file = format!("[[backend]]\nurl = \"{url}\"\nmax_concurrent = 1\n");
    std::fs::write(sandbox.path("llmlb.toml"), file).unwrap();
    let mut command = sandbox.command("serve -p 0");
    let server = sandbox.serve_with(command.envs(settings.iter().copied()));
    let mut clients = Vec::new();
    let next = || arrived.recv_timeout(DEADLINE).unwrap();
    let mut order = Vec::new();
    for (name, field) in [("0", first), ("1", first), ("2", first), ("3", second)] {
        let mut client = Connection::open(server.address);
        let body = format!(r#"{{"model":"m","x":"{name}"}}"#);
        client.send_post_with(CHAT, field, &body);
        clients.push(client);
        if name == "0" {
            order.push(next());
        } else {
            let waiting = clients.len() as u64 - 1;
            until("the request waits", || {
                server.status()["waiting"] == waiting
            });
        }
    }
    for _ in 0..3 {
        release.send(()).unwrap();
        order.push(next());
    }
    release.send(()).unwrap();
    for client in &mut clients {
        assert_eq!(client.answer().status(), 200);
    }
    order.concat()
}

#[test]
fn clients_behind_a_trusted_proxy_share_by_their_reported_addresses() {
    let trusted = [("LLMLB_TRUSTED_PROXIES", "127.0.0.1, 10.0.0.0/8")];
    for (first, second) in [
        (
            "x-forwarded-for: 1.1.1.1\r\n",
            "x-forwarded-for: 2.2.2.2\r\n",
        ),
        // A client may forge addresses, which are left of those that the proxies add. They must not
        // identify the client.
        (
            "x-forwarded-for: 9.9.9.9, 1.1.1.1\r\n",
            "x-forwarded-for: 9.9.9.9\r\nx-forwarded-for: 2.2.2.2, 10.1.2.3\r\n",
        ),
        (
            "forwarded: for=1.1.1.1;proto=https\r\n",
            "forwarded: for=\"[2001:db8::2]:4711\", for=10.7.7.7\r\n",
        ),
    ] {
        assert_eq!(order(&trusted, first, second), "0132", "{first}{second}");
    }
}

#[test]
fn address_reported_by_an_untrusted_proxy_is_ignored() {
    let (first, second) = (
        "x-forwarded-for: 1.1.1.1\r\n",
        "x-forwarded-for: 2.2.2.2\r\n",
    );
    assert_eq!(order(&[], first, second), "0123");
    let elsewhere = [("LLMLB_TRUSTED_PROXIES", "10.0.0.0/8")];
    assert_eq!(order(&elsewhere, first, second), "0123");
    // Only the rightmost address comes from the trusted proxy. The addresses left of it may be
    // forged, so both requests are of one client.
    let trusted = [("LLMLB_TRUSTED_PROXIES", "127.0.0.1")];
    let (first, second) = (
        "x-forwarded-for: 8.8.8.8, 1.1.1.1\r\n",
        "x-forwarded-for: 9.9.9.9, 1.1.1.1\r\n",
    );
    assert_eq!(order(&trusted, first, second), "0123");
}
