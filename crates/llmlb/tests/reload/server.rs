//! A server whose configuration file a test changes.

use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde_json::Value;
use testkit::{FakeLlm, LlmlbServer, Sandbox, eventually};

/// A server, and its file `llmlb.toml`.
pub(crate) struct ReloadingServer {
    pub(crate) sandbox: Sandbox,
    pub(crate) server: LlmlbServer,
}

impl ReloadingServer {
    #[track_caller]
    pub(crate) fn start(sandbox: Sandbox, text: &str) -> Self {
        sandbox.file("llmlb.toml", text);
        let server = sandbox.serve("");
        Self { sandbox, server }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.sandbox.path("llmlb.toml")
    }

    /// Replaces the file by renaming another one, as editors do.
    #[track_caller]
    pub(crate) fn replace(&self, text: &str) {
        let new = self.sandbox.file("new.toml", text);
        std::fs::rename(new, self.file()).unwrap();
    }

    /// Replaces the file, and waits until the server has reloaded it.
    #[track_caller]
    pub(crate) fn reload(&self, text: &str) {
        let before = self.reloads();
        self.replace(text);
        self.until_reloads(before + 1);
    }

    /// The object `config` of `/status`.
    #[track_caller]
    pub(crate) fn config(&self) -> Value {
        self.server.get("/status").json()["config"].clone()
    }

    #[track_caller]
    pub(crate) fn reloads(&self) -> u64 {
        self.config()["reloads"].as_u64().unwrap()
    }

    #[track_caller]
    pub(crate) fn until_reloads(&self, count: u64) {
        eventually("the configuration is reloaded", || {
            (self.reloads() >= count).then_some(())
        });
    }

    /// Waits until the server has refused a file. Returns the object `refused` of `/status`, which
    /// describes the problems.
    #[track_caller]
    pub(crate) fn until_refused(&self) -> Value {
        eventually("the file is refused", || {
            let refused = self.config()["refused"].clone();
            refused.is_object().then_some(refused)
        })
    }

    /// Names of the backends in `/status`.
    #[track_caller]
    pub(crate) fn backends(&self) -> Vec<String> {
        let status = self.server.get("/status").json();
        let list = status["backends"].as_array().unwrap();
        let name = |one: &Value| one["name"].as_str().unwrap().to_owned();
        list.iter().map(name).collect()
    }
}

/// Returns the `[[backend]]` tables of backends with these names and addresses. `more` is appended
/// to each table.
pub(crate) fn tables(backends: &[(&str, SocketAddr)], more: &str) -> String {
    let mut text = String::new();
    for (name, address) in backends {
        writeln!(
            text,
            "[[backend]]\nname = \"{name}\"\nurl = \"http://{address}\"\n{more}"
        )
        .unwrap();
    }
    text
}

/// Returns the `[[backend]]` table of one backend.
pub(crate) fn table(name: &str, backend: &FakeLlm, more: &str) -> String {
    tables(&[(name, backend.address)], more)
}
