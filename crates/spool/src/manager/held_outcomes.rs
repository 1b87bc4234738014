//! Outcomes of batches that are noted in the reserve, because the disk is too full for the journal.
//!
//! Lines are noted as sums alone, so that any number of batches can leave a full disk. A batch is
//! listed by name while a crash could bring it back: its file may still be there, or its set of
//! entries is not finished and would make it again.

use std::collections::BTreeMap;
use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ledger::{BatchEvent, BatchOutcome, Ledger, OutcomeIndex, OutcomeSums};
use crate::batch::{Batch, Part};
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::files;
use crate::reserve::{Reserve, ReserveContents};
use crate::snapshot::Snapshot;
use crate::time::{Moment, new_id};

const NOTE: &str = "outcomes";
/// Names that need not be kept are dropped when there are more.
const MOST_NAMES: usize = 16;
/// Maximum number of bytes that one of them takes in the reserve.
const BYTES_PER_NAME: u64 = 400;

/// Outcomes since the journal was last written.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HeldOutcomes {
    /// Tells these from the ones before. The journal's event with these sums has it in its name.
    id: Uuid,
    pub(crate) sums: OutcomeSums,
    pub(crate) batches: BTreeMap<String, HeldOutcome>,
}

/// The outcome of one batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HeldOutcome {
    pub(crate) outcome: BatchOutcome,
    pub(crate) records: u64,
    /// The set of entries that it was made of, if that was not finished.
    pub(crate) set: Option<Uuid>,
    /// In that case its parts, as the journal would have them. Earlier versions did not note them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<Part>,
}

impl HeldOutcomes {
    /// Those that are in the reserve and, by this index, not yet in the journal.
    pub(crate) fn read(data: &DataDir, index: &OutcomeIndex) -> Result<Self, Error> {
        let reserve = Reserve::new(&data.staging);
        let failed = |error| Error::read(reserve.path(), error);
        let held: Self =
            (reserve.read(&*data.disk).and_then(|held| held.note(NOTE))).map_err(failed)?;
        // A crash came after they were written to the journal.
        let is_flushed = index.get(&held.event_name()).is_some();
        Ok(if is_flushed { Self::default() } else { held })
    }

    /// Maximum number of batches that a set may have, so that the reserve can name them all.
    pub(crate) fn max_batches_per_set(disk: &dyn Disk, reserve: &Reserve) -> Result<u64, Error> {
        if !reserve.exists() {
            return Ok(u64::MAX);
        }
        let room = reserve.room_for_notes(disk);
        let room = room.map_err(|error| Error::read(reserve.path(), error))?;
        Ok(room / BYTES_PER_NAME)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.id.is_nil()
    }

    pub(super) fn outcome(&self, batch: &str) -> Option<BatchOutcome> {
        self.batches.get(batch).map(|held| held.outcome)
    }

    /// Records that left with a batch of an unfinished set: its entries are counted as staged.
    pub(crate) fn of_set(&self, set: Uuid, outcome: BatchOutcome) -> u64 {
        let batches = self.batches.values();
        let of_set = batches.filter(|held| held.set == Some(set) && held.outcome == outcome);
        of_set.map(|held| held.records).sum()
    }

    fn event_name(&self) -> String {
        format!("reserve-{}", self.id)
    }

    /// Adds the outcome of a batch. On the disk when this returns.
    pub(super) fn add(
        disk: &dyn Disk,
        data: &DataDir,
        index: &OutcomeIndex,
        batch: &Batch,
        event: &BatchEvent,
    ) -> Result<(), Error> {
        if event.outcome == BatchOutcome::Unarchived {
            // Sums that only grow cannot take it back.
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::new(
                "note the resending of",
                &data.spool.join(&event.batch),
                full,
            ));
        }
        let unfinished = Snapshot::read(disk, &data.staging)?.filter(|set| !set.is_written);
        let is_of_set = |set: &&Snapshot| {
            let mut parts = batch.parts().iter();
            parts.any(|part| set.entries.contains(&part.name))
        };
        let set = unfinished.as_ref().filter(is_of_set).map(|set| set.id);
        let held = HeldOutcome {
            outcome: event.outcome,
            records: event.records,
            set,
            parts: if set.is_some() {
                event.entries.clone()
            } else {
                Vec::new()
            },
        };
        let unfinished = unfinished.map(|set| set.id);
        let mut all = Self::read(data, index)?;
        if all.is_empty() {
            all.id = new_id();
        }
        if all.batches.len() >= MOST_NAMES {
            // Removed names must not come back with the power.
            let synced = disk.sync_dir(&data.spool);
            synced.map_err(|error| Error::new("sync", &data.spool, error))?;
            all.batches.retain(|name, held| {
                held.set.is_some() && held.set == unfinished
                    || files::exists(disk, &data.spool.join(name)).unwrap_or(true)
            });
        }
        all.sums.add(event);
        all.batches.insert(event.batch.clone(), held);
        change(disk, data, |reserve| reserve.set_note(NOTE, &all))
    }

    /// Writes everything to the journal, if there is room, and removes it from the reserve.
    pub(super) fn flush(disk: &dyn Disk, data: &DataDir, ledger: &mut Ledger) -> Result<(), Error> {
        let all = Self::read(data, ledger.index())?;
        let unfinished = Snapshot::read(disk, &data.staging)?.filter(|set| !set.is_written);
        if let Some(set) = unfinished
            && all.batches.values().any(|held| held.set == Some(set.id))
        {
            // The journal cannot say that their entries still count as staged.
            return Ok(());
        }
        if !all.is_empty() {
            let at = Moment::from(std::time::SystemTime::now());
            let event = |batch: &str, outcome, sums| BatchEvent {
                batch: batch.to_owned(),
                outcome,
                records: 0,
                entries: Vec::new(),
                parts: None,
                at,
                said: "noted while the disk was full".to_owned(),
                sums: Some(sums),
            };
            for (batch, held) in &all.batches {
                ledger.note(&event(batch, held.outcome, OutcomeSums::default()))?;
            }
            // The last one: once it is there, all are.
            ledger.note(&event(&all.event_name(), BatchOutcome::Delivered, all.sums))?;
        }
        let reserve = Reserve::new(&data.staging);
        let held = reserve.read(disk);
        if held.is_ok_and(|held| held.has_note(NOTE)) {
            change(disk, data, |held| held.remove_note(NOTE))?;
        }
        Ok(())
    }
}

fn change(
    disk: &dyn Disk,
    data: &DataDir,
    edit: impl FnOnce(&mut ReserveContents),
) -> Result<(), Error> {
    let reserve = Reserve::new(&data.staging);
    let changed = reserve.change(disk, edit);
    changed.map_err(|error| Error::new("write to", reserve.path(), error))
}
