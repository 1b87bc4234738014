//! A Redis server of a test, and owners of leases in it.

use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::process::{Launch, eventually, until};
use crate::support::{Owner, Sandbox, json, pid_in, skip};

/// A `redis-server` that keeps what it acknowledged, killed when dropped.
pub(crate) struct Redis {
    child: Child,
    port: u16,
}

impl Redis {
    /// Starts a server whose files are in a directory. `None` if Redis is not installed.
    pub(crate) fn start(dir: &Path) -> Option<Self> {
        Self::start_with(dir, &[])
    }

    pub(crate) fn start_with(dir: &Path, arguments: &[&str]) -> Option<Self> {
        if Command::new("redis-server")
            .arg("--version")
            .stdout(Stdio::null())
            .status()
            .is_err()
        {
            skip("redis-server");
            return None;
        }
        let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("an address").port();
        drop(free);
        let child = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "yes"])
            .args(["--appendfsync", "always", "--dir"])
            .arg(dir)
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        until("Redis accepts connections", || {
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        Some(Self { child, port })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// URL with a password.
    pub(crate) fn url_with(&self, password: &str) -> String {
        format!("redis://:{password}@127.0.0.1:{}", self.port)
    }

    /// Kills the server, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("Redis is killed");
        self.child.wait().expect("Redis is waited for");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A test's directory with a Redis server in it.
pub(crate) struct LeaseSandbox {
    pub(crate) sandbox: Sandbox,
    pub(crate) redis: Redis,
}

impl LeaseSandbox {
    /// `None` if Redis is not installed: the test is skipped.
    pub(crate) fn new() -> Option<Self> {
        let sandbox = Sandbox::new();
        let redis = Redis::start(&sandbox.path(""))?;
        Some(Self { sandbox, redis })
    }

    /// Prepares `tenure VERB --store URL WORDS`.
    pub(crate) fn tenure(&self, verb: &str, words: &str) -> Launch {
        let store = self.redis.url();
        self.sandbox
            .tenure(verb)
            .arg("--store")
            .arg(store)
            .words(words)
    }

    /// Output of `status --json` for a name.
    pub(crate) fn status(&self, name: &str) -> Value {
        let outcome = self.tenure("status", "--json").arg(name).finish();
        json(&outcome)["locks"][0].clone()
    }

    /// Starts an owner of the key `x` and waits until its lock record names the command.
    pub(crate) fn hold(&self, launch: Launch) -> Owner {
        let process = launch.start();
        let (wrapper, command) = self.owner_of_x();
        Owner {
            process,
            wrapper,
            command,
        }
    }

    /// Pids of the wrapper and the command that hold the key `x`.
    pub(crate) fn owner_of_x(&self) -> (u32, u32) {
        eventually("the lock record names the command", || {
            let record = &self.status("x")["record"];
            Some((pid_in(&record["pid"])?, pid_in(&record["command"]["pid"])?))
        })
    }
}
