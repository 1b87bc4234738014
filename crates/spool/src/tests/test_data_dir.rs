//! A temporary data directory with a fake receiver, and helpers that fill and inspect it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;
use uuid::Uuid;

use super::fake_receiver::FakeReceiver;
use super::grouping::grouping;
use crate::consolidate::{Consolidated, ConsolidatorState, Options, consolidate_on};
use crate::data_dir::DataDir;
use crate::delivery::{Delivered, DeliveryOptions, Watch, deliver};
use crate::disk::{Disk, RealDisk};
use crate::error::Error;
use crate::line;
use crate::manager::SpoolManager;
use crate::record::Record;
use crate::staging::{Durability, Staging};
use crate::staging_lock::LockError;
use crate::verify::{Books, verify};

pub(super) struct TestDataDir {
    dir: TempDir,
    /// Destination of the batches of this directory.
    pub(super) receiver: FakeReceiver,
}

impl TestDataDir {
    pub(super) fn new() -> Self {
        let test_dir = Self::empty();
        test_dir.data().make(&RealDisk).unwrap();
        test_dir
    }

    /// Creates a data directory without its subdirectories.
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

    /// Writes an entry: `sealed`, or left open with a torn last line by a process that has died.
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

    /// Writes a file with one record into the staging directory, as any program may.
    pub(super) fn record_file(&self) -> Record {
        let record = record();
        fs::write(self.staged("json"), record.json()).unwrap();
        record
    }

    /// Writes a file with any content into the staging directory, named by a new UUID.
    pub(super) fn raw_file(&self, ending: &str, content: &str) {
        fs::write(self.staged(ending), content).unwrap();
    }

    /// Number of pending or delivered batches that contain each record.
    pub(super) fn batched(&self) -> BTreeMap<Uuid, usize> {
        let mut counts = self.receiver.billed();
        for id in self.pending_records() {
            *counts.entry(id).or_default() += 1;
        }
        counts
    }

    /// Ids of the records in pending batches.
    pub(super) fn pending_records(&self) -> Vec<Uuid> {
        let spool = SpoolManager::new(self.path());
        let names = spool.pending(None, usize::MAX).unwrap();
        let batches = names.iter().map(|name| spool.load(name).unwrap());
        batches
            .flat_map(|batch| batch.records().iter().map(Record::id).collect::<Vec<_>>())
            .collect()
    }

    /// Sums of the totals files of all days: records and tokens.
    pub(super) fn totals(&self) -> (u64, u64) {
        let (mut records, mut tokens) = (0, 0);
        let usage = self.data().usage;
        let names = names(&usage);
        // Skip the totals files of hours, which have longer names: they count the same records as
        // the files of days.
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

    /// Number of batches anywhere that contain each record: pending, delivered, archived or failed.
    pub(super) fn record_counts(&self) -> BTreeMap<Uuid, usize> {
        let mut counts = self.batched();
        for dir in [self.data().archive, self.data().failed] {
            for id in ids_in_batches(&dir) {
                *counts.entry(id).or_default() += 1;
            }
        }
        counts
    }

    /// Stages the records in an entry of their own.
    pub(super) fn stage(&self, records: &[Record]) {
        let staging = Staging::open(self.data().staging).unwrap();
        staging.stage_all(records, Durability::Power).unwrap();
        staging.close().unwrap();
    }

    /// Verifies the data directory. Panics unless the books balance.
    pub(super) fn assert_balanced(&self, case: &str) -> Books {
        let books = verify(self.path(), &Watch::silent()).unwrap();
        assert!(books.balance(), "{case}: {:?}", books.problems);
        let sum = books.delivered + books.archived + books.pending + books.failed;
        assert_eq!(books.staged, sum, "{case}: {books:?}");
        books
    }

    /// Runs one consolidation into batches of four records.
    pub(super) fn consolidate_on(&self, disk: &Arc<dyn Disk>) -> Result<Consolidated, LockError> {
        let state = &mut ConsolidatorState::default();
        consolidate_on(disk, self.path(), &batches_of(4), state)
    }

    /// Delivers the pending batches to the fake receiver, on a disk without faults. Panics on an
    /// error.
    pub(super) fn deliver_all(&self) {
        self.deliver(&real_disk()).unwrap();
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

pub(super) fn real_disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

pub(super) fn batches_of(batch_size: usize) -> Options {
    Options {
        batch_size,
        grouping: grouping(),
        ..Options::default()
    }
}

/// Returns the ids of the records in `counts`. Panics if a record has a count other than 1.
pub(super) fn each_once(counts: BTreeMap<Uuid, usize>, case: &str) -> BTreeSet<Uuid> {
    for (id, count) in &counts {
        assert_eq!(*count, 1, "{case}: {id} exists {count} times");
    }
    counts.into_keys().collect()
}

/// Ids of the records in the batches of a directory.
pub(super) fn ids_in_batches(dir: &Path) -> Vec<Uuid> {
    let mut ids = Vec::new();
    for name in names(dir) {
        if crate::batch::is_batch_name(&name) {
            let batch = crate::manager::check(&name, &fs::read(dir.join(&name)).unwrap());
            ids.extend(batch.unwrap().records().iter().map(Record::id));
        }
    }
    ids.sort_unstable();
    ids
}

pub(super) fn record() -> Record {
    Record::parse(r#"{"tokens":1}"#).unwrap()
}

/// Names of files that are not deleted: the reserve, the pause of the receiver, and lock files that
/// are kept after release.
const PERMANENT_FILES: [&str; 4] = [
    ".reserve",
    ".pause.json",
    ".consolidation.lock",
    ".delivery.lock",
];

/// Names of the files in a directory, without [`PERMANENT_FILES`].
pub(super) fn names(dir: &Path) -> Vec<String> {
    let files = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let mut names: Vec<_> = files
        .map(|file| file.file_name().into_string().unwrap())
        .filter(|name| !PERMANENT_FILES.contains(&name.as_str()))
        .collect();
    names.sort();
    names
}
