//! Batches of a set that a crash left unfinished, whatever became of them.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::time::SystemTime;

use uuid::Uuid;

use super::held_outcomes::HeldOutcomes;
use super::ledger::{self, BatchOutcome};
use super::{SpoolManager, check};
use crate::batch::{self, Batch, Part};
use crate::error::Error;
use crate::files::{for_each_file, read_bounded};

/// A batch that was put before a crash.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EarlierBatch {
    /// It waits, has failed or is archived.
    Present(Batch),
    /// It left.
    #[non_exhaustive]
    Gone {
        /// Name of its file.
        name: String,
        /// Parts of the batch. Of more than two, only the first and the last, which enclose lines of
        /// the same set. Empty: only its first line is known, by its name.
        parts: Vec<Part>,
        /// Number of its records.
        records: u64,
        /// Time at which it left. `None`: it left while its set was unfinished.
        at: Option<SystemTime>,
    },
    /// It is there and cannot be read now.
    #[non_exhaustive]
    Unreadable {
        /// Name of its file.
        name: String,
        /// Reason.
        error: Error,
    },
}

impl SpoolManager {
    /// Calls `each` with every batch that begins with one of these entries. A damaged batch is left
    /// out: it is never sent.
    pub(super) fn each_earlier_batch(
        &self,
        set: Uuid,
        entries: &[String],
        each: &mut dyn FnMut(EarlierBatch),
    ) -> Result<(), Error> {
        let ids = entries.iter().filter_map(|name| name.split('.').next());
        let ids: HashSet<&str> = ids.collect();
        let is_one = |name: &str| {
            batch::is_batch_name(name) && name.get(..36).is_some_and(|id| ids.contains(id))
        };
        let mut names = BTreeSet::new();
        for dir in [&self.data.spool, &self.data.failed, &self.data.archive] {
            for_each_file(&*self.disk, dir, |name| {
                if is_one(name) {
                    names.insert(name.to_owned());
                }
            })?;
        }
        let mut found = HashSet::new();
        for name in names {
            match self.find_batch(&name) {
                Ok(Some(batch)) => each(EarlierBatch::Present(batch)),
                // It left since it was listed, or it is damaged.
                Ok(None) => continue,
                Err(error) => each(EarlierBatch::Unreadable {
                    name: name.clone(),
                    error,
                }),
            }
            found.insert(name);
        }
        // After the files: a batch is noted before its file is removed.
        let (index, _, _) = ledger::read(&self.data)?;
        for (name, held) in HeldOutcomes::read(&self.data, &index)?.batches {
            let is_ours =
                held.set == Some(set) && held.outcome != BatchOutcome::Split && is_one(&name);
            if is_ours && found.insert(name.clone()) {
                each(EarlierBatch::Gone {
                    name,
                    parts: held.parts,
                    records: held.records,
                    at: None,
                });
            }
        }
        for (name, event) in ledger::last_events(&self.data, &is_one)? {
            // Its halves are batches of their own.
            let is_whole = event.outcome != BatchOutcome::Split && !event.entries.is_empty();
            if is_whole && !found.contains(&name) {
                each(EarlierBatch::Gone {
                    name,
                    parts: event.entries,
                    records: event.records,
                    at: Some(event.at.into()),
                });
            }
        }
        Ok(())
    }

    /// The content of a batch, wherever it is. `None`: it left, or it is damaged.
    pub(super) fn find_batch(&self, name: &str) -> Result<Option<Batch>, Error> {
        for dir in [&self.data.spool, &self.data.failed, &self.data.archive] {
            let path = dir.join(name);
            match read_bounded(&*self.disk, &path) {
                Ok(bytes) => {
                    let checked = check(name, &bytes.unwrap_or_default());
                    return Ok(checked
                        .inspect_err(|why| {
                            tracing::warn!(path = %path.display(), why, "a damaged batch of a set that was begun");
                        })
                        .ok());
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::read(&path, error)),
            }
        }
        Ok(None)
    }
}
