//! A server with one API key, `alice`.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use testkit::{FakeLlm, LlmlbServer, Request, Response, Sandbox, until};

pub(crate) const SECRET: &str = "llmlb-alice-0123456789012345678901234567";
pub(crate) const CHAT: &str = "/v1/chat/completions";

/// Options of a server with the key `alice`.
pub(crate) struct World<'a> {
    pub(crate) sandbox: &'a Sandbox,
    pub(crate) backends: Vec<String>,
    /// Lines of the table `[[key]]`, such as `rpm = 3`.
    pub(crate) key: &'a str,
    /// Lines of the section `[server]`.
    pub(crate) server: &'a str,
    pub(crate) variables: Vec<(&'a str, String)>,
}

impl<'a> World<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox, backends: &[&FakeLlm], key: &'a str) -> Self {
        Self {
            sandbox,
            backends: backends.iter().map(|backend| backend.url()).collect(),
            key,
            server: "",
            variables: Vec::new(),
        }
    }

    pub(crate) fn start(&self) -> LlmlbServer {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = self.sandbox.path(&format!("server-{number}"));
        fs::create_dir_all(&dir).unwrap();
        let backends = self.backends.iter();
        let backends = backends.map(|url| format!("[[backend]]\nurl = \"{url}\"\n"));
        let text = format!(
            "[server]\nworkers = 4\n{}\n{}[[key]]\nname = \"alice\"\nkey_env = \"ALICE\"\n{}\n",
            self.server,
            backends.collect::<String>(),
            self.key
        );
        fs::write(dir.join("llmlb.toml"), text).unwrap();
        let mut builder = self.sandbox.server().in_directory(&dir);
        builder = builder.variable("ALICE", SECRET);
        for (name, value) in &self.variables {
            builder = builder.variable(name, value);
        }
        builder.start().unwrap()
    }
}

/// Returns a chat request of `alice` with further fields of the body, such as `,"max_tokens":5`.
pub(crate) fn chat(fields: &str) -> Request {
    let body = format!(r#"{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{fields}}}"#);
    authorized(Request::post(CHAT, body))
}

pub(crate) fn authorized(request: Request) -> Request {
    request.field("authorization", format!("Bearer {SECRET}"))
}

/// Sends a chat request. A connection that fails is an error of the test.
pub(crate) fn send(server: &LlmlbServer, request: &Request) -> Response {
    server.send(request).unwrap()
}

pub(crate) fn limits(server: &LlmlbServer) -> Value {
    server.status()["limits"]["keys"]["alice"].clone()
}

/// Tokens that `alice` has used as the report of all records shows them.
pub(crate) fn tokens_in_report(sandbox: &Sandbox) -> u64 {
    let report = sandbox.run("usage --by key --json").json();
    assert_eq!(
        report["problems"].as_array().map(Vec::len),
        Some(0),
        "{report}"
    );
    let rows = report["rows"].as_array().unwrap().clone();
    let of_alice = rows.iter().find(|row| row["key"] == "alice");
    of_alice.map_or(0, |row| row["tokens"].as_u64().unwrap())
}

/// Waits until no request of `alice` is in flight. A response can reach its client before the server
/// has dropped the request.
pub(crate) fn until_idle(server: &LlmlbServer) {
    until("no request of the key is in flight", || {
        limits(server)["concurrency"]["used"] == 0
    });
}
