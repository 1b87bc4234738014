//! Keys, and requests that send them.

use std::process::Command;

use testkit::backends::{ASK, CHAT, backend, ok};
use testkit::{Answer, Connection, FakeLlm, Finished, LlmlbServer, Sandbox};

#[track_caller]
pub(crate) fn key(sandbox: &Sandbox, words: &str) -> Finished {
    Finished::run(&mut sandbox.command(&format!("key {words}")))
}

#[track_caller]
pub(crate) fn add(sandbox: &Sandbox, words: &str) -> String {
    secret(&key(sandbox, &format!("add {words}")))
}

/// Returns the secret that a command printed: the only line of its output.
#[track_caller]
pub(crate) fn secret(done: &Finished) -> String {
    done.assert_code(0);
    let secret = done.stdout.trim_end().to_owned();
    assert!(secret.starts_with("llmlb-"), "{done:?}");
    assert_eq!(secret.len(), 49, "{done:?}");
    assert!(!done.stderr.contains(&secret), "{done:?}");
    secret
}

/// Starts a backend for the model `m`, and a server in front of it with this further configuration.
#[track_caller]
pub(crate) fn serve(sandbox: &Sandbox, config: &str) -> (FakeLlm, LlmlbServer) {
    let backend = backend(ok);
    let server = serve_with(sandbox, config, &backend, |command| command);
    (backend, server)
}

/// Starts a server in front of this backend with this further configuration.
#[track_caller]
pub(crate) fn serve_with(
    sandbox: &Sandbox,
    config: &str,
    backend: &FakeLlm,
    edit: impl FnOnce(&mut Command) -> &mut Command,
) -> LlmlbServer {
    let address = backend.address;
    let file = format!("{config}\n[[backend]]\nname = \"b\"\nurl = \"http://{address}\"\n");
    sandbox.file("llmlb.toml", file);
    sandbox.serve_with(edit(&mut sandbox.command("serve -p 0")))
}

/// Sends a request with these header lines and returns its response. Each line must end in `\r
/// `.
#[track_caller]
pub(crate) fn send(
    server: &LlmlbServer,
    method: &str,
    path: &str,
    fields: &str,
    body: &str,
) -> Answer {
    let mut client = Connection::open(server.address);
    let length = if body.is_empty() {
        String::new()
    } else {
        format!(
            "content-type: application/json\r\ncontent-length: {}\r\n",
            body.len()
        )
    };
    client.send(format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{length}{fields}\r\n{body}"
    ));
    client.answer()
}

pub(crate) fn bearer(secret: &str) -> String {
    format!("authorization: Bearer {secret}\r\n")
}

/// Sends a chat request for the model `m` and returns the status of the response.
#[track_caller]
pub(crate) fn chat(server: &LlmlbServer, secret: &str) -> u16 {
    send(server, "POST", CHAT, &bearer(secret), ASK).status()
}
