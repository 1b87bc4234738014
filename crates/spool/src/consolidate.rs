//! Consolidation: a fixed snapshot of entries becomes batches, exactly once.
//!
//! Under the lock of the staging directory:
//!
//! 1. finish what a crashed owner had begun: its record says which entries, and how far it was;
//! 2. list a bounded snapshot of entries, and put their names into the record, on the disk;
//! 3. write the batches; the same snapshot gives the same batches under the same names, so that
//!    doing it again after a crash changes nothing;
//! 4. note that they are written, on the disk;
//! 5. delete exactly those entries, then the lock.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use uuid::Uuid;

use crate::batch::{Batch, Part};
use crate::data_dir::{DataDir, place};
use crate::disk::{Disk, RealDisk};
use crate::entry::{Kind, Name};
use crate::error::Error;
use crate::line::{self, Line};
use crate::quarantine::set_aside;
use crate::record::Record;
use crate::recover::seal_abandoned;
use crate::staging_lock::{LockError, StagingLock};

/// How consolidation works.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Which of several machines or pods this is.
    pub pod_name: String,
    /// How many records go into a batch.
    pub batch_size: usize,
    /// How many entries are taken at once; the rest is for the next round.
    pub most_entries: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            pod_name: "local".to_owned(),
            batch_size: 100,
            most_entries: 1000,
        }
    }
}

/// What a consolidation did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Consolidated {
    /// Entries that were read and deleted.
    pub entries: usize,
    /// Records that went into batches.
    pub records: usize,
    /// Batches that were written now; one that was there from before a crash does not count.
    pub batches: usize,
    /// Records with an id that another one in the snapshot has too; they are the same record.
    pub repeated: usize,
}

/// Folds what is staged under a data directory into batches.
///
/// ```
/// use spool::{Durability, Options, Record, Staging, consolidate};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"tokens":42}"#)?, Durability::Power)?;
/// staging.close()?;
///
/// let done = consolidate(data.path(), &Options::default())?;
/// assert_eq!((done.entries, done.records, done.batches), (1, 1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn consolidate(data: &Path, options: &Options) -> Result<Consolidated, LockError> {
    consolidate_on(&(Arc::new(RealDisk) as Arc<dyn Disk>), data, options)
}

pub(crate) fn consolidate_on(
    disk: &Arc<dyn Disk>,
    data: &Path,
    options: &Options,
) -> Result<Consolidated, LockError> {
    let data = DataDir::new(data);
    data.make(&**disk).map_err(LockError::Disk)?;
    let mut lock =
        StagingLock::acquire_on(Arc::clone(disk), &data.staging, &options.pod_name, &[])?;
    let mut fold = Fold {
        disk: &**disk,
        data: &data,
        done: Consolidated::default(),
    };
    fold.finish(&mut lock)?;
    let names = fold
        .snapshot(options.most_entries)
        .map_err(LockError::Disk)?;
    if names.is_empty() {
        lock.release_only()?;
    } else {
        lock.freeze(names, options.batch_size)?;
        fold.finish(&mut lock)?;
        lock.release_only()?;
    }
    Ok(fold.done)
}

struct Fold<'a> {
    disk: &'a dyn Disk,
    data: &'a DataDir,
    done: Consolidated,
}

impl Fold<'_> {
    /// Does what is left to do of the set in the lock's record, from whichever point a crash left
    /// it at. Nothing, if there is none.
    fn finish(&mut self, lock: &mut StagingLock) -> Result<(), LockError> {
        let record = lock.record().clone();
        if record.consumed_ids.is_empty() {
            return Ok(());
        }
        if !record.is_written {
            let size = record.batch_size.unwrap_or(1).max(1);
            self.write_batches(&record.consumed_ids, size)
                .map_err(LockError::Disk)?;
            lock.mark_written()?;
        }
        lock.clean_up()?;
        self.done.entries += record.consumed_ids.len();
        Ok(())
    }

    /// The oldest entries that nobody writes any more, by name.
    fn snapshot(&self, most: usize) -> Result<Vec<String>, Error> {
        let staging = &self.data.staging;
        let mut names = self.list()?;
        for name in names.iter().filter(|name| name.kind == Kind::Open) {
            seal_abandoned(self.disk, self.data, *name)?;
        }
        names = self.list()?;
        names.retain(|name| name.kind != Kind::Open);
        names.sort_unstable();
        names.truncate(most);
        let texts = names.iter().filter_map(|name| {
            let path = name.path_in(staging);
            Some(path.file_name()?.to_str()?.to_owned())
        });
        Ok(texts.collect())
    }

    fn list(&self) -> Result<Vec<Name>, Error> {
        let staging = &self.data.staging;
        let failed = |error| Error::new("list", staging, error);
        let mut names = Vec::new();
        for file in std::fs::read_dir(staging).map_err(failed)? {
            names.extend(Name::parse(&file.map_err(failed)?.file_name()));
        }
        Ok(names)
    }

    /// Writes the batches of a set of entries, each unless it is there already.
    fn write_batches(&mut self, names: &[String], size: usize) -> Result<(), Error> {
        let mut seen = HashSet::new();
        let (mut parts, mut records) = (Vec::new(), Vec::new());
        for name in names {
            let lines = self.read_entry(name)?;
            for (number, record) in lines {
                if !seen.insert(record.id()) {
                    self.done.repeated += 1;
                    continue;
                }
                extend(&mut parts, name, number);
                records.push(record);
                if records.len() == size {
                    self.write_batch(std::mem::take(&mut parts), std::mem::take(&mut records))?;
                }
            }
        }
        if !records.is_empty() {
            self.write_batch(parts, records)?;
        }
        let spool = &self.data.spool;
        self.disk
            .sync_dir(spool)
            .map_err(|error| Error::new("sync", spool, error))
    }

    fn write_batch(&mut self, parts: Vec<Part>, records: Vec<Record>) -> Result<(), Error> {
        let batch = Batch::new(parts, records);
        self.done.records += batch.records().len();
        let name = batch.file_name();
        // It may have been delivered already, by whoever found it after a crash.
        let places = [&self.data.spool, &self.data.sent, &self.data.failed];
        if places.iter().any(|dir| dir.join(&name).exists()) {
            return Ok(());
        }
        self.done.batches += 1;
        place(self.disk, &self.data.spool, &name, &batch.encode())
    }

    /// The good records of an entry with their line numbers; what is not good is set aside.
    fn read_entry(&self, name: &str) -> Result<Vec<(u64, Record)>, Error> {
        let path = self.data.staging.join(name);
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            // Missing ones are no error.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::new("read", &path, error)),
        };
        match Name::parse(name.as_ref()) {
            Some(Name {
                id,
                kind: Kind::Single,
            }) => self.read_single(name, id, &bytes),
            _ => self.read_lines(name, &bytes),
        }
    }

    fn read_single(&self, name: &str, id: Uuid, bytes: &[u8]) -> Result<Vec<(u64, Record)>, Error> {
        let parsed = std::str::from_utf8(bytes)
            .map_err(|error| error.to_string())
            .and_then(|text| Record::parse_with_id(text, id).map_err(|bad| bad.to_string()));
        match parsed {
            Ok(record) => Ok(vec![(1, record)]),
            Err(why) => {
                set_aside(self.disk, &self.data.failed, name, bytes, &why)?;
                Ok(Vec::new())
            }
        }
    }

    fn read_lines(&self, name: &str, bytes: &[u8]) -> Result<Vec<(u64, Record)>, Error> {
        let mut records = Vec::new();
        for (place, text) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
            match line::read(text.strip_suffix(b"\n").unwrap_or(text)) {
                Ok(Line::Record { number, record }) => records.push((number, record)),
                Ok(_) => {}
                Err(why) => {
                    let aside = format!("{name}-line-{:08}", place + 1);
                    set_aside(self.disk, &self.data.failed, &aside, text, why)?;
                }
            }
        }
        Ok(records)
    }
}

/// Adds a line to the last part, or begins a new one.
fn extend(parts: &mut Vec<Part>, name: &str, number: u64) {
    match parts.last_mut() {
        Some(part) if part.name == name && part.to + 1 == number => part.to = number,
        _ => parts.push(Part {
            name: name.to_owned(),
            from: number,
            to: number,
        }),
    }
}
