//! A receiver of usage records that responds as a script says.

use std::io;

use serde_json::Value;

use crate::server::{Received, Reply, ScriptedServer};

/// Scriptable receiver of usage batches.
pub struct UsageReceiver(ScriptedServer);

impl UsageReceiver {
    /// Starts a receiver that accepts every batch.
    pub fn accepting() -> io::Result<Self> {
        Self::start(|_| Reply::response(200, &[], ""))
    }

    /// Starts a receiver that responds to each batch as the script says.
    pub fn start(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        ScriptedServer::start(script).map(Self)
    }

    /// URL to configure as `usage.url`.
    pub fn url(&self) -> String {
        format!("{}/usage", self.0.url())
    }

    /// Batches received so far, accepted or not.
    pub fn batches(&self) -> Vec<Received> {
        self.0.executed()
    }

    /// Records of all batches received so far. A batch that was sent twice counts twice.
    pub fn records(&self) -> Vec<Value> {
        let records = |batch: &Received| batch.json()["records"].as_array().cloned();
        let batches = self.batches();
        batches.iter().filter_map(records).flatten().collect()
    }
}
