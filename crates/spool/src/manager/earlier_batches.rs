//! Batches of a snapshot that a crash left unfinished, with any outcome.

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

/// A batch that was written before a crash.
#[derive(Clone, Debug)]
pub(crate) enum EarlierBatch {
    /// The batch is pending, failed or archived.
    Present(Batch),
    /// The batch has no file in the data directory any more, for example because it was delivered.
    /// Its outcome is in the journal or, if the disk was full, in the reserve.
    Gone {
        /// File name.
        name: String,
        /// Parts of the batch; of more than two parts, only the first and the last. The lines
        /// between them belong to the same snapshot. If `parts` is empty, only the first line of
        /// the batch is known, from its file name.
        parts: Vec<Part>,
        /// Number of records.
        records: u64,
        /// Time of the batch's last event in the journal. If the event is older than the snapshot,
        /// the batch may have been made of earlier entries with the same names. `None` if the
        /// outcome is in the reserve because the disk was full: the reserve names the snapshot.
        at: Option<SystemTime>,
    },
    /// The file of the batch exists and cannot be read now.
    Unreadable {
        /// File name.
        name: String,
        /// Error of reading the batch's file. Consolidation fails with this error if it cannot
        /// determine which records are in the batch.
        error: Error,
    },
}

impl SpoolManager {
    /// Calls `each` with every batch of a snapshot that was written before a crash, with any
    /// outcome. Damaged batches are skipped.
    pub(crate) fn earlier_batches(
        &self,
        snapshot: Uuid,
        entries: &[String],
        each: &mut dyn FnMut(EarlierBatch),
    ) -> Result<(), Error> {
        let ids = entries.iter().filter_map(|name| name.split('.').next());
        let ids: HashSet<&str> = ids.collect();
        let is_of_snapshot = |name: &str| {
            batch::is_batch_name(name) && name.get(..36).is_some_and(|id| ids.contains(id))
        };
        let mut names = BTreeSet::new();
        for dir in [&self.data.spool, &self.data.failed, &self.data.archive] {
            for_each_file(&*self.disk, dir, |name| {
                if is_of_snapshot(name) {
                    names.insert(name.to_owned());
                }
            })?;
        }
        let mut found = HashSet::new();
        for name in names {
            match self.find(&name) {
                Ok(Some(batch)) => each(EarlierBatch::Present(batch)),
                // Skip a batch whose file is damaged or was removed since the directory was listed.
                // The journal, which is read below, has the outcome of a removed batch.
                Ok(None) => continue,
                Err(error) => each(EarlierBatch::Unreadable {
                    name: name.clone(),
                    error,
                }),
            }
            found.insert(name);
        }
        // The journal is read after the files, so that it has every batch whose file was removed
        // meanwhile: an event is written before the file of its batch is removed.
        let (index, _, _) = ledger::read(&self.data)?;
        for (name, held) in HeldOutcomes::read(&self.data, &index)?.batches {
            let is_wanted = held.set == Some(snapshot)
                && held.outcome != BatchOutcome::Split
                && is_of_snapshot(&name);
            if is_wanted && found.insert(name.clone()) {
                each(EarlierBatch::Gone {
                    name,
                    parts: held.parts,
                    records: held.records,
                    at: None,
                });
            }
        }
        for (name, event) in ledger::last_events(&self.data, &is_of_snapshot)? {
            // Skip a split batch: its halves are batches of their own, and its lines would be in
            // two batches. An event without entries was stored in the reserve while the disk was
            // full, and its lines are unknown.
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

    /// Reads a pending, failed or archived batch. Returns `None` if it does not exist or is
    /// damaged.
    pub(crate) fn find(&self, name: &str) -> Result<Option<Batch>, Error> {
        for dir in [&self.data.spool, &self.data.failed, &self.data.archive] {
            let path = dir.join(name);
            match read_bounded(&*self.disk, &path) {
                Ok(bytes) => {
                    let checked = check(name, &bytes.unwrap_or_default());
                    return Ok(checked
                        .inspect_err(|why| {
                            let path = path.display();
                            tracing::warn!(%path, why, "damaged batch of an unfinished snapshot ignored");
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
