//! Owners of leases in a Redis server of a test.

use std::path::Path;

use serde_json::Value;
use tenure_tests::servers::RedisServer;

use crate::process::{Launch, eventually};
use crate::support::{Owner, Sandbox, json, pid_in};

/// Starts a server that keeps in this directory what it acknowledged. `None` if Redis is not
/// installed.
pub(crate) fn start_in(dir: &Path) -> Option<RedisServer> {
    let dir = dir.to_str().expect("a path in UTF-8");
    let kept = ["--appendonly", "yes", "--appendfsync", "always"];
    RedisServer::start_with(&[&kept[..], &["--dir", dir]].concat())
}

pub(crate) struct LeaseSandbox {
    pub(crate) sandbox: Sandbox,
    pub(crate) redis: RedisServer,
}

impl LeaseSandbox {
    pub(crate) fn new() -> Option<Self> {
        let sandbox = Sandbox::new();
        let redis = start_in(&sandbox.path(""))?;
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

    pub(crate) fn owner_of_x(&self) -> (u32, u32) {
        eventually("the lock record names the command", || {
            let record = &self.status("x")["record"];
            Some((pid_in(&record["pid"])?, pid_in(&record["command"]["pid"])?))
        })
    }
}
