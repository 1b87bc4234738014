//! Backends behind TLS. (L5)
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

/// An authority, and a certificate for localhost that it signed.
struct Authority {
    certificate: PathBuf,
    signed: (PathBuf, PathBuf),
}

/// Runs openssl; `false` if there is none.
fn openssl(place: &Sandbox, words: &str) -> bool {
    let mut command = Command::new("openssl");
    command
        .args(words.split_whitespace())
        .current_dir(place.path("."))
        .stdin(Stdio::null());
    let Ok(made) = command.output() else {
        return false;
    };
    assert!(made.status.success(), "{made:?}");
    true
}

/// `None`: there is no openssl here.
fn authority(place: &Sandbox, name: &str) -> Option<Authority> {
    let write = |file: String, text: &str| std::fs::write(place.path(&file), text).unwrap();
    write(
        format!("{name}.cnf"),
        "[req]\ndistinguished_name = n\nprompt = no\n[n]\nCN = Test\n",
    );
    write(
        format!("{name}.ext"),
        "subjectAltName = DNS:localhost\nbasicConstraints = CA:FALSE\n",
    );
    let made = openssl(
        place,
        &format!(
            "req -x509 -newkey rsa:2048 -nodes -days 2 -config {name}.cnf \
             -addext basicConstraints=critical,CA:TRUE -out {name}.pem -keyout {name}.key"
        ),
    );
    if !made {
        testkit::skip("openssl").unwrap();
        return None;
    }
    openssl(
        place,
        &format!(
            "req -new -newkey rsa:2048 -nodes -subj /CN=localhost -out {name}.csr \
             -keyout {name}-leaf.key"
        ),
    );
    openssl(
        place,
        &format!(
            "x509 -req -in {name}.csr -CA {name}.pem -CAkey {name}.key -CAcreateserial -days 2 \
             -extfile {name}.ext -out {name}-leaf.pem"
        ),
    );
    Some(Authority {
        certificate: place.path(&format!("{name}.pem")),
        signed: (
            place.path(&format!("{name}-leaf.pem")),
            place.path(&format!("{name}-leaf.key")),
        ),
    })
}

/// A backend that shows this certificate, and its port.
fn backend(place: &Sandbox, authority: &Authority) -> (Process, u16) {
    let mut command = Command::new("python3");
    command.args(["-u", "-c", BACKEND]);
    command.args([&authority.signed.0, &authority.signed.1]);
    let process = place.start(&mut command);
    let port = eventually("its port", || {
        let said = process.stdout();
        let port = said.lines().find_map(|line| line.strip_prefix("port "))?;
        said.contains('\n').then(|| port.parse().unwrap())
    });
    (process, port)
}

/// A balancer that trusts this authority alone.
fn serve(place: &Sandbox, trusted: &Authority, backends: &str) -> LlmlbServer {
    let mut command = place.command(&format!("serve -p 0 {backends}"));
    command
        .env("SSL_CERT_FILE", &trusted.certificate)
        .env("LLMLB_PROBE_INTERVAL", "200ms")
        .env_remove("SSL_CERT_DIR");
    place.serve_with(&mut command)
}

#[test]
fn a_backend_behind_tls_is_one_like_any_other() {
    let place = testkit::sandbox!();
    let Some(ours) = authority(&place, "ours") else {
        return;
    };
    let (_backend, port) = backend(&place, &ours);
    let server = serve(
        &place,
        &ours,
        &format!("--backend https://localhost:{port}"),
    );
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
fn tokens_from_behind_tls_come_one_by_one() {
    let place = testkit::sandbox!();
    let Some(ours) = authority(&place, "ours") else {
        return;
    };
    let (_backend, port) = backend(&place, &ours);
    let server = serve(
        &place,
        &ours,
        &format!("--backend https://localhost:{port}"),
    );
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    // The backend waits until it is told that this one has come.
    for number in 0..3 {
        let token = read_chunk(&mut client.reader).unwrap().unwrap();
        assert_eq!(token, format!("data: {number}\n\n").into_bytes());
        assert_eq!(
            server.post(CHAT, r#"{"model":"m","x":"go on"}"#).status(),
            200
        );
    }
    assert_eq!(read_chunk(&mut client.reader), Some(None));
}

#[test]
fn a_backend_that_cuts_its_answer_behind_tls_is_an_error_too() {
    let place = testkit::sandbox!();
    let Some(ours) = authority(&place, "ours") else {
        return;
    };
    let (_backend, port) = backend(&place, &ours);
    let server = serve(
        &place,
        &ours,
        &format!("--backend https://localhost:{port}"),
    );
    // In chunks, of known length, and until the end of a connection that nobody ended properly.
    for cut in ["cut chunks", "cut length", "cut end"] {
        let (head, _) = cut_answer(&server, &format!(r#"{{"model":"m","x":"{cut}"}}"#));
        assert_eq!(head.status(), 200, "{cut}");
    }
    server.until_in_flight(0);
}

#[test]
fn a_client_that_leaves_ends_its_request_behind_tls_too() {
    let place = testkit::sandbox!();
    let Some(ours) = authority(&place, "ours") else {
        return;
    };
    let (backend, port) = backend(&place, &ours);
    let server = serve(
        &place,
        &ours,
        &format!("--backend https://localhost:{port}"),
    );
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","x":"silent"}"#);
    until("the backend has it", || backend.stdout().contains("silent"));
    drop(client);
    until("the backend knows", || backend.stdout().contains("left"));
    server.until_in_flight(0);
}

#[test]
fn cancelled_stream_behind_tls_keeps_no_local_port() {
    let place = testkit::sandbox!();
    let Some(ours) = authority(&place, "ours") else {
        return;
    };
    let (_backend, port) = backend(&place, &ours);
    let before = testkit::resources::closed_first(port).unwrap();
    let server = serve(
        &place,
        &ours,
        &format!("--backend https://localhost:{port}"),
    );
    let mut client = Connection::open(server.address);
    client.send_post(CHAT, r#"{"model":"m","stream":true}"#);
    assert_eq!(client.head().status(), 200);
    read_chunk(&mut client.reader).unwrap().unwrap();
    drop(client);
    server.until_in_flight(0);
    // The backend waits for another request and does not read. Its close would hide the port.
    let now = testkit::resources::closed_first(port).unwrap();
    assert_eq!(now.difference(&before).next(), None);
}

#[test]
fn a_certificate_that_nobody_trusts_is_refused_and_told() {
    let place = testkit::sandbox!();
    let pair = authority(&place, "ours").zip(authority(&place, "others"));
    let Some((ours, others)) = pair else {
        return;
    };
    let (backend, port) = backend(&place, &others);
    for host in ["localhost", "127.0.0.1"] {
        let server = serve(&place, &ours, &format!("--backend https://{host}:{port}"));
        let answer = server.post(CHAT, ASK);
        assert_eq!(answer.status(), 503, "{answer:?}");
        assert_eq!(code(&answer), "all_backends_down");
        let status = server.status();
        let why = status["backends"][0]["error"].as_str().unwrap();
        assert!(why.contains("certificate"), "{why}");
        let said = server.process.stderr();
        assert!(said.contains("certificate"), "{said}");
    }
    // Of the right authority, for another name.
    let server = serve(
        &place,
        &others,
        &format!("--backend https://127.0.0.1:{port}"),
    );
    assert_eq!(server.post(CHAT, ASK).status(), 503);
    assert!(!backend.stdout().contains("asked"), "{}", backend.stdout());
}

#[test]
fn a_backend_that_does_not_speak_tls_is_told() {
    let place = testkit::sandbox!();
    let Some(ours) = authority(&place, "ours") else {
        return;
    };
    let plain = testkit::backends::backend(testkit::backends::ok);
    let good = testkit::backends::backend(testkit::backends::ok);
    let flags = format!(
        "--backend https://localhost:{} --backend {}",
        plain.address.port(),
        good.url()
    );
    let server = serve(&place, &ours, &flags);
    assert_eq!(server.post(CHAT, ASK).status(), 200);
    let status = server.status();
    assert_eq!(status["backends"][0]["up"], false);
    assert!(status["backends"][0]["error"].is_string());
}
