//! The certificate is replaced while the server runs. (promises L11, L12)

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;
use testkit::backends::ASK;
use testkit::certificates::{Issued, LOCAL};
use testkit::{Connection, DEADLINE, Process, until};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::tunnel::{self, H1};
use crate::world::{self, World};

/// Replaces a file in one step, as certbot does, so that no reader sees a part of it.
fn replace(path: &Path, from: &Path) {
    let new = path.with_extension("new");
    fs::copy(from, &new).unwrap();
    fs::rename(&new, path).unwrap();
}

fn is_logged(server: &Process, text: &str) -> bool {
    server.stderr().contains(text)
}

/// Starts a server whose files are `live.pem` and `live.key`.
fn start(sandbox: &testkit::Sandbox) -> Option<(World, Issued)> {
    let world = world::start(sandbox, &[])?;
    let live = Issued {
        cert: sandbox.path("server.pem"),
        key: sandbox.path("server.key"),
    };
    Some((world, live))
}

#[test]
fn new_certificate_is_used_without_a_restart() {
    let sandbox = testkit::sandbox!();
    let Some((world, live)) = start(&sandbox) else {
        return;
    };
    let before = world.tls_status();
    let mut open = Connection::open(world.tunnel);
    open.send_get("/healthz");
    assert_eq!(open.answer().status(), 200);
    let renewed = world
        .authority
        .issue("renewed", "DNS:localhost,DNS:new.example", 2);
    replace(&live.cert, &renewed.cert);
    replace(&live.key, &renewed.key);
    until("the new certificate is loaded", || {
        world.tls_status()["names"][1] == "new.example"
    });
    let after = world.tls_status();
    assert_ne!(before["loaded_at"], after["loaded_at"]);
    assert_eq!(after["error"], Value::Null);
    // A new certificate must not end connections that are already open.
    open.send_get("/healthz");
    assert_eq!(open.answer().status(), 200);
    assert_eq!(world.post(ASK).status(), 200);
    assert!(is_logged(
        &world.server.process,
        "loaded the new certificate"
    ));
}

#[test]
fn invalid_files_keep_the_old_certificate_until_they_are_fixed() {
    let sandbox = testkit::sandbox!();
    let Some((world, live)) = start(&sandbox) else {
        return;
    };
    let renewed = world.authority.issue("renewed", LOCAL, 2);
    let expired = world.authority.issue("expired", LOCAL, -1);
    let garbage = sandbox.file("garbage.pem", "garbage");
    let cases = [
        (&renewed.cert, &live.key, "does not belong to"),
        (&garbage, &live.key, "not PEM"),
        (
            &expired.cert,
            &expired.key,
            "the new certificate expired at",
        ),
    ];
    let server = &world.server.process;
    let (old_cert, old_key) = (sandbox.path("old.pem"), sandbox.path("old.key"));
    fs::copy(&live.cert, &old_cert).unwrap();
    fs::copy(&live.key, &old_key).unwrap();
    for (number, (cert, key, why)) in cases.into_iter().enumerate() {
        replace(&live.key, key);
        replace(&live.cert, cert);
        until("the problem is shown", || {
            let error = world.tls_status()["error"].clone();
            error.as_str().is_some_and(|error| error.contains(why))
        });
        until("the problem is logged", || {
            let log = server.stderr();
            log.matches("cannot load the new certificate, the old")
                .count()
                == number + 1
        });
        assert!(is_logged(server, why), "{}", server.stderr());
        let (status, _) = sandbox.status(world.server.port());
        assert_eq!(status["health"], "ok");
        assert!(status["tls"]["error"].as_str().unwrap().contains(why));
        assert_eq!(world.post(ASK).status(), 200);

        replace(&live.key, &old_key);
        replace(&live.cert, &old_cert);
        until("the problem is over", || {
            world.tls_status()["error"].is_null()
        });
    }
    assert_eq!(
        server.stderr().matches("can be used again").count(),
        cases.len()
    );
}

/// Opens connections, each with a full handshake and one request, until the flag `stop` is set.
async fn connect_again_and_again(
    world: &World,
    config: Arc<ClientConfig>,
    stop: &AtomicBool,
    done: &AtomicU64,
) {
    let connector = TlsConnector::from(config);
    while !stop.load(Ordering::Relaxed) {
        let stream = TcpStream::connect(world.server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector.connect(name, stream).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        stream.write_all(request).await.unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).await.unwrap();
        assert!(response.starts_with(b"HTTP/1.1 200 OK\r\n"));
        done.fetch_add(1, Ordering::Relaxed);
        // 20 clients with this pause open 200 connections per second, if the machine is fast enough.
        sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[test]
fn no_handshake_fails_while_the_certificate_is_replaced() {
    const CLIENTS: usize = 20;
    const RENEWALS: usize = 20;
    let sandbox = testkit::sandbox!();
    let Some((world, live)) = start(&sandbox) else {
        return;
    };
    let renewed: Vec<_> = (0..RENEWALS)
        .map(|number| {
            let names = format!("{LOCAL},DNS:number-{number}");
            world
                .authority
                .issue(&format!("renewed-{number}"), &names, 2)
        })
        .collect();
    let config = tunnel::client_config(&world.authority.certificate, &H1);
    let mut config = ClientConfig::clone(&config);
    config.resumption = Resumption::disabled();
    let config = Arc::new(config);
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    std::thread::scope(|scope| {
        let clients = scope.spawn(|| {
            runtime.block_on(async {
                let clients = (0..CLIENTS)
                    .map(|_| connect_again_and_again(&world, Arc::clone(&config), &stop, &done));
                let all = futures_all(clients.collect());
                timeout(4 * DEADLINE, all).await.expect("the clients end");
            });
        });
        for (number, one) in renewed.iter().enumerate() {
            replace(&live.cert, &one.cert);
            // For every second certificate, keep the new certificate with the old key for longer
            // than one check of the files. The server must go on with its previous pair.
            if number % 2 == 0 {
                until("the mismatch is noticed", || {
                    !world.tls_status()["error"].is_null()
                });
                let before = done.load(Ordering::Relaxed);
                until("clients connect meanwhile", || {
                    done.load(Ordering::Relaxed) >= before + 20
                });
            }
            replace(&live.key, &one.key);
            until("the new certificate is loaded", || {
                world.tls_status()["names"][2] == format!("number-{number}")
            });
        }
        stop.store(true, Ordering::Relaxed);
        clients.join().unwrap();
    });
    assert_eq!(world.tls_status()["failed_handshakes"], 0);
    assert!(done.load(Ordering::Relaxed) > 400);
}

/// Polls all futures on this thread until each has ended.
async fn futures_all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut waiting: Vec<_> = futures.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        waiting.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if waiting.is_empty() {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}
