//! A data directory of one test's own, and what is in it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use uuid::Uuid;

use super::fake_receiver::FakeReceiver;
use crate::data_dir::DataDir;
use crate::delivery::{Delivered, DeliveryOptions, Watch, deliver};
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::line;
use crate::manager::{BatchStore, SpoolManager};
use crate::record::Record;

pub(super) struct TestDataDir {
    dir: TempDir,
    /// What was delivered from it.
    pub(super) receiver: FakeReceiver,
}

impl TestDataDir {
    pub(super) fn new() -> Self {
        let test_dir = Self::empty();
        test_dir.data().make(&RealDisk).unwrap();
        test_dir
    }

    /// Without any directory in it.
    pub(super) fn empty() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            receiver: FakeReceiver::default(),
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(super) fn data(&self) -> DataDir {
        DataDir::new(self.path())
    }

    fn staged(&self, ending: &str) -> PathBuf {
        let name = format!("{}.{ending}", Uuid::now_v7());
        self.data().staging.join(name)
    }

    /// An entry with so many records; `sealed` or left open by a writer that is gone.
    pub(super) fn entry(&self, records: usize, sealed: bool) -> Vec<Record> {
        let id = Uuid::now_v7();
        let ending = if sealed { "jsonl" } else { "jsonl.open" };
        let path = self.data().staging.join(format!("{id}.{ending}"));
        let records: Vec<_> = (0..records).map(|_| record()).collect();
        let mut bytes = Vec::new();
        line::write_entry(&mut bytes, id);
        for (index, record) in records.iter().enumerate() {
            line::PreparedLine::new(record).write(&mut bytes, index as u64 + 1);
        }
        if sealed {
            line::write_sealed(&mut bytes, records.len() as u64);
        } else {
            bytes.extend(br#"{"id":"01890a5d"#);
        }
        fs::write(path, bytes).unwrap();
        records
    }

    /// A file with one record, as any program may drop one in.
    pub(super) fn single(&self) -> Record {
        let record = record();
        fs::write(self.staged("json"), record.json()).unwrap();
        record
    }

    pub(super) fn junk(&self, ending: &str, content: &str) {
        fs::write(self.staged(ending), content).unwrap();
    }

    /// How often each record is in a batch that waits, or was delivered.
    pub(super) fn batched(&self) -> BTreeMap<Uuid, usize> {
        let mut counts = self.receiver.billed();
        for id in self.batched_in_spool() {
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    /// The records of batches that wait.
    pub(super) fn batched_in_spool(&self) -> Vec<Uuid> {
        let spool = SpoolManager::new(self.path());
        let names = spool.pending(None, usize::MAX).unwrap();
        let batches = names.iter().map(|name| spool.load(name).unwrap());
        batches
            .flat_map(|batch| batch.records().iter().map(Record::id).collect::<Vec<_>>())
            .collect()
    }

    /// What the files of all days say: how many records, how many tokens.
    pub(super) fn totals(&self) -> (u64, u64) {
        let (mut records, mut tokens) = (0, 0);
        let usage = self.data().usage;
        let names = names(&usage);
        // Days, and not hours.
        for name in names
            .iter()
            .filter(|name| name.len() == "2026-11-16.json".len())
        {
            let day: serde_json::Value =
                serde_json::from_slice(&fs::read(usage.join(name)).unwrap()).unwrap();
            for row in day["totals"].as_array().unwrap() {
                records += row["records"].as_u64().unwrap();
                tokens += row["sums"]["tokens"].as_u64().unwrap();
            }
        }
        (records, tokens)
    }

    /// A run of delivery that finds everything accepted.
    pub(super) fn deliver_all(&self) {
        self.deliver(&(Arc::new(RealDisk) as Arc<dyn Disk>))
            .unwrap();
    }

    pub(super) fn deliver(&self, disk: &Arc<dyn Disk>) -> Result<Delivered, Error> {
        let store = SpoolManager::on(Arc::clone(disk), self.path());
        let options = DeliveryOptions::default();
        deliver(
            &store,
            &self.receiver,
            &options,
            &self.receiver.clock,
            &Watch::silent(),
            Uuid::now_v7(),
        )
    }
}

pub(super) fn record() -> Record {
    Record::parse(r#"{"tokens":1}"#).unwrap()
}

/// The reserve, the standing of the receiver, and locks that are kept when they are released.
const ALWAYS: [&str; 4] = [
    ".reserve",
    ".pause.json",
    ".consolidation.lock",
    ".delivery.lock",
];

/// The files of a directory, without those that are always there.
pub(super) fn names(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = files
        .map(|file| file.file_name().into_string().unwrap())
        .filter(|name| !ALWAYS.contains(&name.as_str()))
        .collect();
    names.sort();
    names
}
