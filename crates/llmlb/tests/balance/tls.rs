//! Backends behind TLS. (promise L5)
#![cfg(target_os = "linux")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use testkit::{
    Connection, LlmlbServer, Process, Sandbox,
    backends::{CHAT, code, cut_answer},
    eventually, read_chunk, until,
};

const ASK: &str = r#"{"model":"m"}"#;

const BACKEND: &str = include_str!("tls_backend.py");

/// Certificate authority, and a certificate and key for `localhost` that it signed.
struct Authority {
    certificate: PathBuf,
    signed: (PathBuf, PathBuf),
}

/// Runs openssl. Returns false if there is no such program.
fn openssl(sandbox: &Sandbox, arguments: &str) -> bool {
    let mut command = Command::new("openssl");
    command
        .args(arguments.split_whitespace())
        .current_dir(sandbox.path("."))
        .stdin(Stdio::null());
    let Ok(outcome) = command.output() else {
        return false;
    };
    assert!(outcome.status.success(), "{outcome:?}");
    true
}

/// Creates an authority. Returns `None` if there is no openssl.
fn authority(sandbox: &Sandbox, name: &str) -> Option<Authority> {
    let write = |file: String, text: &str| std::fs::write(sandbox.path(&file), text).unwrap();
    write(
        format!("{name}.cnf"),
        "[req]\ndistinguished_name = n\nprompt = no\n[n]\nCN = Test\n",
    );
    write(
        format!("{name}.ext"),
        "subjectAltName = DNS:localhost\nbasicConstraints = CA:FALSE\n",
    );
    let is_created = openssl(
        sandbox,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -config {name}.cnf \
             -addext basicConstraints=critical,CA:TRUE -out {name}.pem -keyout {name}.key"
        ),
    );
    if !is_created {
        testkit::skip("openssl").unwrap();
        return None;
    }
    openssl(
        sandbox,
        &format!(
            "req -new -newkey rsa:2048 -nodes -subj /CN=localhost -out {name}.csr \
             -keyout {name}-leaf.key"
        ),
    );
    openssl(
        sandbox,
        &format!(
            "x509 -req -in {name}.csr -CA {name}.pem -CAkey {name}.key -CAcreateserial -days 2 \
             -extfile {name}.ext -out {name}-leaf.pem"
        ),
    );
    Some(Authority {
        certificate: sandbox.path(&format!("{name}.pem")),
        signed: (
            sandbox.path(&format!("{name}-leaf.pem")),
            sandbox.path(&format!("{name}-leaf.key")),
        ),
    })
}

/// Starts a TLS backend with the `localhost` certificate that the authority signed. Returns the
/// process and the port of the backend.
fn backend(sandbox: &Sandbox, authority: &Authority) -> (Process, u16) {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", BACKEND]);
    command.args([&authority.signed.0, &authority.signed.1]);
    let process = sandbox.start(&mut command);
    let port = eventually("the backend prints its port", || {
        let output = process.stdout();
        let port = output.lines().find_map(|line| line.strip_prefix("port "))?;
        output.contains('\n').then(|| port.parse().unwrap())
    });
    (process, port)
}

fn serve(sandbox: &Sandbox, trusted: &Authority, backends: &str) -> LlmlbServer {
    let mut command = sandbox.command(&format!("serve -p 0 {backends}"));
    command
        .env("SSL_CERT_FILE", &trusted.certificate)
        .env("LLMLB_PROBE_INTERVAL", "200ms")
        .env_remove("SSL_CERT_DIR");
    sandbox.serve_with(&mut command)
}

/// Creates an authority and starts a TLS backend with a certificate that the authority signed.
/// Returns `None` if there is no openssl.
fn trusted_backend(sandbox: &Sandbox) -> Option<(Authority, Process, u16)> {
    let ours = authority(sandbox, "ours")?;
    let (process, port) = backend(sandbox, &ours);
    Some((ours, process, port))
}

/// Starts an llmlb server in front of the backend at this port of `localhost`.
fn serve_localhost(sandbox: &Sandbox, trusted: &Authority, port: u16) -> LlmlbServer {
    let backend = format!("--backend https://localhost:{port}");
    serve(sandbox, trusted, &backend)
}

#[test]
fn request_is_forwarded_over_tls() {
    let sandbox = testkit::sandbox!();
    let Some((ours, _backend, port)) = trusted_backend(&sandbox) else {
        return;
    };
    let server = serve_localhost(&sandbox, &ours, port);
    let mut client = Connection::open(server.address);
    for size in [0, 1000, 300_000] {
        let body = format!(r#"{{"model":"m","x":"{}"}}"#, "y".repeat(size));
        client.send_post(CHAT, &body);
        let answer = client.answer();
        assert_eq!(answer.status(), 200, "{answer:?}");
        assert!(answer.text() == body);
    }
}

#[test]
fn each_event_is_forwarded_over_tls_before_the_next_one_is_sent() {
    let sandbox = testkit::sandbox!();
    let Some((ours, _backend, port)) = trusted_backend(&sandbox) else {
        return;
    };
    let server = serve_localhost(&sandbox, &ours, port);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    // The backend holds each further event until it receives another request.
    for number in 0..3 {
        let event = read_chunk(&mut client.reader).unwrap().unwrap();
        assert_eq!(event, format!("data: {number}\n\n").into_bytes());
        assert_eq!(
            server
                .post(CHAT, r#"{"model":"m","x":"next event"}"#)
                .status(),
            200
        );
    }
    assert_eq!(read_chunk(&mut client.reader), Some(None));
}

#[test]
fn response_cut_over_tls_is_cut_for_the_client() {
    let sandbox = testkit::sandbox!();
    let Some((ours, _backend, port)) = trusted_backend(&sandbox) else {
        return;
    };
    let server = serve_localhost(&sandbox, &ours, port);
    // The backend cuts a chunked body, a body with a length, and a body that ends with the connection but
    // without a TLS close.
    for cut in ["cut chunks", "cut length", "cut end"] {
        let (head, _) = cut_answer(&server, &format!(r#"{{"model":"m","x":"{cut}"}}"#));
        assert_eq!(head.status(), 200, "{cut}");
    }
    server.until_in_flight(0);
}

#[test]
fn client_disconnect_cancels_the_request_over_tls() {
    let sandbox = testkit::sandbox!();
    let Some((ours, backend, port)) = trusted_backend(&sandbox) else {
        return;
    };
    let server = serve_localhost(&sandbox, &ours, port);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","x":"silent"}"#);
    until("the backend has the request", || {
        backend.stdout().contains("silent")
    });
    drop(client);
    until("the backend sees the disconnect", || {
        backend.stdout().contains("disconnected")
    });
    server.until_in_flight(0);
}

#[test]
fn cancelled_stream_over_tls_keeps_no_local_port() {
    let sandbox = testkit::sandbox!();
    let Some((ours, _backend, port)) = trusted_backend(&sandbox) else {
        return;
    };
    let before = testkit::resources::closed_first(port).unwrap();
    let server = serve_localhost(&sandbox, &ours, port);
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    read_chunk(&mut client.reader).unwrap().unwrap();
    drop(client);
    server.until_in_flight(0);
    // The backend waits for another request, so it has not closed its side. A close by the backend would hide
    // a local port that the server still keeps.
    let now = testkit::resources::closed_first(port).unwrap();
    assert_eq!(now.difference(&before).next(), None);
}

#[test]
fn untrusted_certificate_is_rejected_and_reported() {
    let sandbox = testkit::sandbox!();
    let pair = authority(&sandbox, "ours").zip(authority(&sandbox, "others"));
    let Some((ours, others)) = pair else {
        return;
    };
    let (backend, port) = backend(&sandbox, &others);
    for host in ["localhost", "127.0.0.1"] {
        let server = serve(&sandbox, &ours, &format!("--backend https://{host}:{port}"));
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 503, "{answer:?}");
        assert_eq!(code(&answer), "all_backends_down");
        let status = server.status();
        let error = status["backends"][0]["error"].as_str().unwrap();
        assert!(error.contains("certificate"), "{error}");
        let log = server.process.stderr();
        assert!(log.contains("certificate"), "{log}");
    }
    // In this second case the server trusts the authority, but the certificate is for `localhost`
    // and the backend's URL has `127.0.0.1`. The name must be checked too.
    let server = serve(
        &sandbox,
        &others,
        &format!("--backend https://127.0.0.1:{port}"),
    );
    assert_eq!(server.post(CHAT, ASK).status(), 503);
    assert!(
        !backend.stdout().contains("received"),
        "{}",
        backend.stdout()
    );
}

#[test]
fn backend_without_tls_is_reported_as_down() {
    let sandbox = testkit::sandbox!();
    let Some(ours) = authority(&sandbox, "ours") else {
        return;
    };
    let plain = testkit::backends::backend(testkit::backends::ok);
    let good = testkit::backends::backend(testkit::backends::ok);
    let flags = format!(
        "--backend https://localhost:{} --backend {}",
        plain.address.port(),
        good.url()
    );
    let server = serve(&sandbox, &ours, &flags);
    assert_eq!(server.post(CHAT, ASK).status(), 200);
    let status = server.status();
    assert_eq!(status["backends"][0]["up"], false);
    assert!(status["backends"][0]["error"].is_string());
}
