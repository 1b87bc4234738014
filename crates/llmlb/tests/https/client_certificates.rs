//! `server.tls_client_ca`: requests need a client certificate. (promise L11)

use testkit::backends::{ASK, CHAT, code};
use testkit::certificates::{Authority, Issued};
use testkit::{Connection, Sandbox, until};

use crate::tunnel::{H1, H2, Options};
use crate::world::{self, World};

/// Starts a server that requires certificates of the authority `clients`.
fn start(sandbox: &Sandbox) -> Option<(World, Authority)> {
    let clients = Authority::create(sandbox.root(), "clients")?;
    let path = format!("\"{}\"", clients.certificate.display());
    let world = world::start(sandbox, &[("server.tls_client_ca", &path)])?;
    Some((world, clients))
}

#[test]
fn client_with_a_certificate_is_served() {
    let sandbox = testkit::sandbox!();
    let Some((world, clients)) = start(&sandbox) else {
        return;
    };
    let client = clients.issue("client", "DNS:client", 2);
    let options = Options {
        certificate: Some(&client),
        ..H1
    };
    let tunnel = world::open(&world.authority, &world.server, &options);
    // Each of the three connections presents the certificate. The server must not resume sessions
    // here, because a resumed session is not checked against the authorities again.
    for _ in 0..3 {
        assert_eq!(testkit::post(tunnel, CHAT, ASK).status(), 200);
    }
    let options = Options {
        certificate: Some(&client),
        ..H2
    };
    let tunnel = world::open(&world.authority, &world.server, &options);
    testkit::h2_client::connected(tunnel, async |client| {
        let answer = testkit::h2_client::post(&client, CHAT, ASK).await;
        assert_eq!(answer.status, 200);
    });
}

/// Without extensions openssl makes certificates of version 1, which no handshake accepts.
#[cfg(unix)]
#[test]
fn commands_of_the_page_make_certificates_that_are_accepted() {
    let page = include_str!("../../../../docs/production.md");
    let begin = page.find("openssl req -x509").unwrap();
    let end = begin + page[begin..].find("curl --cert").unwrap();
    let sandbox = testkit::sandbox!();
    let mut shell = sandbox.command_of("sh", &["-ec", &page[begin..end]]);
    if !testkit::has_tool("openssl").unwrap() {
        return;
    }
    assert!(
        shell
            .current_dir(sandbox.root())
            .status()
            .unwrap()
            .success()
    );
    let ca = format!("\"{}\"", sandbox.path("clients.pem").display());
    let world = world::start(&sandbox, &[("server.tls_client_ca", &ca)]).unwrap();
    let client = Issued {
        cert: sandbox.path("team-a.pem"),
        key: sandbox.path("team-a.key"),
    };
    let options = Options {
        certificate: Some(&client),
        ..H1
    };
    let tunnel = world::open(&world.authority, &world.server, &options);
    assert_eq!(testkit::post(tunnel, CHAT, ASK).status(), 200);
}

#[test]
fn client_without_a_certificate_gets_only_health_checks() {
    let sandbox = testkit::sandbox!();
    let Some((world, _clients)) = start(&sandbox) else {
        return;
    };
    let mut client = Connection::open(world.tunnel);
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/status", 200),
        ("/metrics", 200),
        ("/v1/models", 403),
        ("/", 403),
        ("/v1/files", 403),
        ("/healthz/..", 403),
        ("/no-such-page", 403),
    ] {
        client.send_get(path);
        let answer = client.answer();
        assert_eq!(answer.status(), status, "{path}: {answer:?}");
        if status == 403 {
            assert_eq!(code(&answer), "client_certificate_required");
        }
    }
    // `/status` is only for programs on this machine. A port that serves health checks without a
    // certificate must not reveal it to others.
    client.send("GET /status HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: 10.0.0.1\r\n\r\n");
    assert_eq!(client.answer().status(), 403);
    let refused = world.post(ASK);
    assert_eq!(refused.status(), 403);
    let (status, _) = sandbox.status(world.server.port());
    assert_eq!(status["health"], "ok", "{status}");
    assert_eq!(status["tls"]["client_certificates"], true);
    let text = sandbox.run(&format!("status -p {}", world.server.port()));
    assert!(text.stdout.contains("client certificates required"));
}

#[test]
fn key_for_admins_does_not_replace_the_certificate() {
    let sandbox = testkit::sandbox!();
    let Some((world, clients)) = start(&sandbox) else {
        return;
    };
    let added = sandbox.run("key add root --admin");
    added.assert_code(0);
    let request = format!(
        "GET /status HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: 10.0.0.1\r\n\
         authorization: Bearer {}\r\n\r\n",
        added.stdout.trim_end()
    );
    let certificate = clients.issue("client", "DNS:client", 2);
    let options = Options {
        certificate: Some(&certificate),
        ..H1
    };
    let tunnel = world::open(&world.authority, &world.server, &options);
    until("the key is known", || {
        let mut client = Connection::open(tunnel);
        client.send(&request);
        client.answer().status() == 200
    });
    let mut client = Connection::open(world.tunnel);
    client.send(&request);
    let answer = client.answer();
    assert_eq!(answer.status(), 403, "{answer:?}");
    assert_eq!(code(&answer), "client_certificate_required");
}

#[test]
fn client_with_an_invalid_certificate_fails_the_handshake() {
    let sandbox = testkit::sandbox!();
    let Some((world, clients)) = start(&sandbox) else {
        return;
    };
    let foreign = world.authority.issue("foreign", "DNS:client", 2);
    let expired = clients.issue("expired", "DNS:client", -1);
    for certificate in [&foreign, &expired] {
        let options = Options {
            certificate: Some(certificate),
            ..H1
        };
        let tunnel = world::open(&world.authority, &world.server, &options);
        let mut client = Connection::open(tunnel);
        client.send_get("/healthz");
        assert!(client.is_closed());
    }
    until("the failures are counted", || {
        world.failed_handshakes() == 2
    });
}
