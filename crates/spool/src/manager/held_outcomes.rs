//! Outcomes of batches, stored in the reserve (preallocated space) while the disk is too full to
//! add them to the journal.
//!
//! The reserve stores outcomes as sums of records, so that any number of batches can leave a full
//! disk. It also lists by name the batches that a crash could bring back: their files may still
//! exist, or their snapshot is unfinished and would write them again.

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
/// Number of batch names in the reserve at which the names that are no longer needed are dropped.
const MAX_NAMES: usize = 16;
/// Maximum number of bytes of one batch in the reserve: its name, its outcome and its parts.
const BYTES_PER_NAME: u64 = 400;

/// Outcomes of batches that are in the reserve and not in the journal yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HeldOutcomes {
    /// Unique id of these outcomes. The journal event with their sums has this id in its name, so
    /// that the sums are not added twice.
    id: Uuid,
    pub(crate) sums: OutcomeSums,
    pub(crate) batches: BTreeMap<String, HeldOutcome>,
}

/// Outcome of one batch, held in the reserve until the journal can be written again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct HeldOutcome {
    pub(crate) outcome: BatchOutcome,
    pub(crate) records: u64,
    /// Id of the snapshot that the batch belongs to, if consolidation had not finished that
    /// snapshot. After a crash, the resumed consolidation must not write the batch again.
    pub(crate) set: Option<Uuid>,
    /// Lines of entries that the batch contains, in the form of the journal event. Needed only if
    /// `set` names a snapshot, whose resumed consolidation skips these lines; otherwise empty. Also
    /// empty in a reserve that an earlier version wrote: the batch name then gives only the first
    /// line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<Part>,
}

impl HeldOutcomes {
    /// Reads the outcomes in the reserve. Returns no outcomes if the batch journal has them
    /// already, according to `index`, the outcomes that were read from the journal.
    pub(crate) fn read(data: &DataDir, index: &OutcomeIndex) -> Result<Self, Error> {
        let reserve = Reserve::new(&data.staging);
        let failed = |error| Error::read(reserve.path(), error);
        let held: Self =
            (reserve.read(&*data.disk).and_then(|held| held.note(NOTE))).map_err(failed)?;
        // Ignore outcomes that the journal has already: a process crashed after it had flushed them
        // and before it removed them from the reserve. Their records would be counted twice.
        let is_flushed = index.get(&held.event_name()).is_some();
        Ok(if is_flushed { Self::default() } else { held })
    }

    /// Maximum number of batches of a snapshot, so that the reserve has space for all their names.
    pub(crate) fn max_batches_per_snapshot(
        disk: &dyn Disk,
        reserve: &Reserve,
    ) -> Result<u64, Error> {
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

    /// Returns the number of records in those batches of an unfinished snapshot that have this
    /// outcome. The caller subtracts them from the sums, because the entries of the snapshot still
    /// count as staged.
    pub(crate) fn records_of_snapshot(&self, snapshot: Uuid, outcome: BatchOutcome) -> u64 {
        let batches = self.batches.values();
        batches
            .filter(|held| held.set == Some(snapshot) && held.outcome == outcome)
            .map(|held| held.records)
            .sum()
    }

    fn event_name(&self) -> String {
        format!("reserve-{}", self.id)
    }

    /// Adds the outcome of a batch to the reserve, and syncs the reserve.
    pub(super) fn add(
        disk: &dyn Disk,
        data: &DataDir,
        index: &OutcomeIndex,
        batch: &Batch,
        event: &BatchEvent,
    ) -> Result<(), Error> {
        if event.outcome == BatchOutcome::Unarchived {
            // Reject the outcome `Unarchived` (a person resends an archived batch), as if the disk
            // had no space. This outcome reduces the number of archived records, but the sums in
            // the reserve can only grow.
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::new(
                "store the resend event of archived batch",
                &data.spool.join(&event.batch),
                full,
            ));
        }
        let unfinished = unfinished_snapshot(disk, data)?;
        let has_batch = |snapshot: &&Snapshot| {
            let mut parts = batch.parts().iter();
            parts.any(|part| snapshot.entries.contains(&part.name))
        };
        let snapshot = unfinished.as_ref().filter(has_batch);
        let held = HeldOutcome {
            outcome: event.outcome,
            records: event.records,
            set: snapshot.map(|snapshot| snapshot.id),
            parts: if snapshot.is_some() {
                event.entries.clone()
            } else {
                Vec::new()
            },
        };
        let unfinished = unfinished.map(|snapshot| snapshot.id);
        let mut all = Self::read(data, index)?;
        if all.is_empty() {
            all.id = new_id();
        }
        if all.batches.len() >= MAX_NAMES {
            // Sync the removal of batch files before their names are dropped from the reserve.
            // Otherwise a batch file could reappear after a power failure, and the batch would be
            // sent again.
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

    /// Writes the outcomes and sums in the reserve to the batch journal, and removes them from the
    /// reserve. Does nothing while a batch with such an outcome belongs to an unfinished snapshot.
    pub(super) fn flush(disk: &dyn Disk, data: &DataDir, ledger: &mut Ledger) -> Result<(), Error> {
        let all = Self::read(data, ledger.index())?;
        if let Some(snapshot) = unfinished_snapshot(disk, data)?
            && all
                .batches
                .values()
                .any(|held| held.set == Some(snapshot.id))
        {
            // Keep the outcomes in the reserve until the snapshot is finished. Its entries still
            // count as staged, and the journal would get only sums, so their records would be
            // counted twice.
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
                message: "the disk was full: the outcome was stored in _staging/.reserve, and \
                          added to this journal when the disk had space again"
                    .to_owned(),
                sums: Some(sums),
            };
            for (batch, held) in &all.batches {
                ledger.add(&event(batch, held.outcome, OutcomeSums::default()))?;
            }
            // The event with the sums is written last, because it marks the outcomes as flushed.
            ledger.add(&event(&all.event_name(), BatchOutcome::Delivered, all.sums))?;
        }
        let reserve = Reserve::new(&data.staging);
        let held = reserve.read(disk);
        if held.is_ok_and(|held| held.has_note(NOTE)) {
            change(disk, data, |held| held.remove_note(NOTE))?;
        }
        Ok(())
    }
}

fn unfinished_snapshot(disk: &dyn Disk, data: &DataDir) -> Result<Option<Snapshot>, Error> {
    let snapshot = Snapshot::read(disk, &data.staging)?;
    Ok(snapshot.filter(|snapshot| !snapshot.is_written))
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
