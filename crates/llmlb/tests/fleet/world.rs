//! A data directory that several processes share, and its lease store.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use tenure::{Key, Store, Tenure};
use testkit::{Finished, Process, Sandbox};

use crate::redis_server::RedisServer;

pub(crate) struct World {
    pub(crate) redis: RedisServer,
    pub(crate) sandbox: Sandbox,
}

impl World {
    /// Returns an empty data directory with a lease store; `None` if Redis is not installed.
    pub(crate) fn new() -> Option<Self> {
        let sandbox = testkit::sandbox!();
        let redis = RedisServer::start(sandbox.root())?;
        Some(Self { redis, sandbox })
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let words = [&["usage"], words].concat();
        let mut command = self.sandbox.command_of(self.sandbox.llmlb(), &words);
        command
            .env("LLMLB_FLEET_STORE", self.redis.url())
            .env("LLMLB_FLEET_TTL", "1s");
        command
    }

    pub(crate) fn usage(&self, words: &[&str]) -> Finished {
        Finished::run(&mut self.command(words))
    }

    pub(crate) fn deliver_every(&self, to: &str, every: &str) -> Process {
        let words = ["deliver", "--to", to, "--every", every];
        self.sandbox.start(&mut self.command(&words))
    }

    /// Stages records whose field `n` counts from 1.
    pub(crate) fn stage(&self, count: usize) {
        let lines: Vec<String> = (1..=count).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        Finished::run_with(&mut self.command(&["stage"]), lines.concat()).assert_code(0);
    }

    /// Acquires the lease of the data directory, as another host would.
    pub(crate) fn acquire_lease(&self) -> Tenure {
        let id = fleet_id(&self.sandbox.data_dir());
        let key = Key::name(format!("llmlb-deliver-{id}")).unwrap();
        let store = Store::connect(&self.redis.url()).unwrap();
        let claim = store.claim(&key).ttl(Duration::from_secs(60));
        claim.field("instance", "other:1").try_acquire().unwrap()
    }
}

/// Returns the id of a data directory, which the first run writes.
fn fleet_id(data: &Path) -> String {
    let text = std::fs::read_to_string(data.join("fleet/fleet.json")).unwrap();
    let file: Value = serde_json::from_str(&text).unwrap();
    file["id"].as_str().unwrap().to_owned()
}
