//! Fake receiver of usage batches, whose responses are given by a script of the test.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;

use serde_json::Value;

use crate::sandbox::Sandbox;
use crate::server::{Received, Reply, ScriptedServer};

/// Scriptable receiver of usage batches.
pub struct UsageReceiver {
    /// URL to configure as `usage.url`.
    pub url: String,
    server: ScriptedServer,
}

impl UsageReceiver {
    /// Starts a receiver that accepts every batch.
    pub fn accepting() -> io::Result<Self> {
        Self::start(|_| Reply::response(200, &[], ""))
    }

    /// Starts a receiver that responds to every batch with this status.
    #[track_caller]
    pub fn always(status: u16) -> Self {
        Self::judging(move |_| Reply::response(status, &[], ""))
    }

    /// Starts a receiver that responds to each batch as the script says.
    pub fn start(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        let server = ScriptedServer::start(script)?;
        let url = format!("{}/usage", server.url());
        Ok(Self { url, server })
    }

    /// Starts a receiver that responds to each batch as the script says, like
    /// [`UsageReceiver::start`]. Panics if the receiver cannot be started.
    #[track_caller]
    pub fn judging(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        Self::start(script).expect("a free port")
    }

    /// Batches received so far, accepted or not.
    pub fn batches(&self) -> Vec<Arc<Received>> {
        self.server.executed()
    }

    /// Records of all batches received so far. A batch that was sent twice counts twice.
    pub fn records(&self) -> Vec<Value> {
        let batches = self.batches();
        batches.iter().flat_map(|batch| records(batch)).collect()
    }

    /// Records received so far, one for each id. A batch that was sent several times counts once,
    /// by its idempotency key, and must have the same bytes each time.
    #[track_caller]
    pub fn distinct_records(&self) -> Vec<Value> {
        self.distinct().0
    }

    /// Number of records that came in more than one batch.
    #[track_caller]
    pub fn repeated_records(&self) -> usize {
        self.distinct().1
    }

    /// Values of the field `n` of all records received so far, sorted. Tests number their records
    /// in `n`, so a missing or repeated number shows a lost or repeated record.
    pub fn numbers(&self) -> Vec<u64> {
        let records = self.records();
        let mut numbers: Vec<_> = records.iter().filter_map(|one| one["n"].as_u64()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Delivers all records in the data directory of a sandbox to this receiver, with `llmlb usage
    /// deliver`.
    #[track_caller]
    pub fn deliver(&self, sandbox: &Sandbox) {
        let finished = sandbox.run(&format!("usage deliver --now --to {}", self.url));
        assert_eq!(finished.code, Some(0), "{finished:?}");
    }

    #[track_caller]
    fn distinct(&self) -> (Vec<Value>, usize) {
        let mut batches = HashMap::new();
        let mut distinct = BTreeMap::new();
        let mut repeated = 0;
        for batch in self.batches() {
            let key = batch.json()["idempotency_key"].clone();
            let key = key.as_str().expect("an idempotency key").to_owned();
            assert_eq!(batch.head.field("idempotency-key"), Some(key.as_str()));
            if let Some(before) = batches.insert(key, batch.body.clone()) {
                assert!(before == batch.body, "a batch came again with other bytes");
                continue;
            }
            for record in records(&batch) {
                let id = record["id"].as_str().expect("an id").to_owned();
                repeated += usize::from(distinct.insert(id, record).is_some());
            }
        }
        (distinct.into_values().collect(), repeated)
    }
}

fn records(batch: &Received) -> Vec<Value> {
    let records = batch.json()["records"].as_array().cloned();
    records.unwrap_or_default()
}
