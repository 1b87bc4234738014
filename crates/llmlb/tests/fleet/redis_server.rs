//! Redis server that a test starts on a free loopback port, kills and starts again.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use testkit::{free_port, until};

/// A running Redis server. Dropping it kills the server.
pub(crate) struct RedisServer {
    pub(crate) port: u16,
    process: Child,
}

impl RedisServer {
    /// Starts a server with its files in a directory; `None` if Redis is not installed.
    pub(crate) fn start(dir: &Path) -> Option<Self> {
        if !testkit::has_tool("redis-server").unwrap() {
            return None;
        }
        let port = free_port();
        let server = Self {
            port,
            process: Self::process(dir, port),
        };
        server.until_ready();
        Some(server)
    }

    /// Kills the server, which loses its data.
    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts the server again on the same port, without data.
    pub(crate) fn start_again(&mut self, dir: &Path) {
        self.process = Self::process(dir, self.port);
        self.until_ready();
    }

    fn until_ready(&self) {
        until("Redis responds", || {
            redis::Client::open(self.url())
                .and_then(|client| client.get_connection())
                .is_ok()
        });
    }

    fn process(dir: &Path, port: u16) -> Child {
        Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args([
                "--save",
                "",
                "--appendonly",
                "no",
                "--requirepass",
                "hunter2",
            ])
            .current_dir(dir)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://:hunter2@127.0.0.1:{}", self.port)
    }

    /// Returns the URL of the Redis server without credentials: messages must show it in this form.
    pub(crate) fn shown(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
