//! The journal of the outcomes of batches.
//!
//! ```text
//! {"batch":"<name>","outcome":"delivered","records":100,"entries":[..],"at":"..","said":"200","crc":..}
//! ```

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::held_outcomes::HeldOutcomes;
use crate::batch::{Batch, Part};
use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::files;
use crate::journal::{Journal, JournalKind, JournalLine};
use crate::reserve::Reserve;
use crate::snapshot::Snapshot;
use crate::time::Moment;

/// Number of events after which the journal continues in a new file, its next generation.
pub(crate) const MAX_EVENTS: u64 = if cfg!(test) { 60 } else { 50_000 };

/// Outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BatchOutcome {
    /// The destination has the batch.
    Delivered,
    /// The batch moved to `archive/`.
    Archived,
    /// Two halves replaced the batch.
    Split,
    /// The batch moved to `failed/`.
    Failed,
    /// A person moved the batch from `failed/` back to the spool.
    Resent,
    /// A person moved the batch from `archive/` back to the spool.
    Unarchived,
    /// The batch was in `failed/` and was deleted to respect a limit.
    Discarded,
}

/// One line of the journal: the outcome of a batch.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BatchEvent {
    pub(crate) batch: String,
    pub(crate) outcome: BatchOutcome,
    pub(crate) records: u64,
    /// Parts of the batch; of more than two, only the first and the last. The entry journal gives
    /// the others, since a batch has consecutive records of one snapshot.
    pub(crate) entries: Vec<Part>,
    /// Number of parts of the batch, if `entries` has only the first and the last. The number shows
    /// that `entries` stands for all lines between these two parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<u64>,
    pub(crate) at: Moment,
    /// Response of the destination, or the reason of a failure.
    #[serde(rename = "said")]
    pub(crate) message: String,
    /// Sums of the events that went to the reserve while the disk was full. The batches of these
    /// events are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sums: Option<OutcomeSums>,
}

/// Sums of the events of the batch journal: numbers of records, and in `batches_delivered` the
/// number of batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutcomeSums {
    pub(crate) delivered: u64,
    pub(crate) archived: u64,
    pub(crate) batches_delivered: u64,
    /// Number of records in failed batches that were deleted. Earlier versions deleted none.
    #[serde(default)]
    pub(crate) discarded: u64,
}

/// The journal of batch outcomes, as the deliverer writes it, with its content in memory.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Open file of the batch journal. `None` if the disk is too full to create or rotate the
    /// journal: events go to the reserve then.
    journal: Option<Journal>,
    disk: Arc<dyn Disk>,
    staging: PathBuf,
    sums: OutcomeSums,
    /// Number of events in the current file of the journal. From [`MAX_EVENTS`] on, the journal
    /// continues in a new file.
    events: u64,
    index: OutcomeIndex,
}

/// Last outcome of every batch in the journal, with the generation (number of the journal file) of
/// its event. When an old journal file is removed, its outcomes are dropped from memory.
#[derive(Debug, Default)]
pub(crate) struct OutcomeIndex(HashMap<String, (BatchOutcome, u64)>);

impl BatchEvent {
    /// Parses a line of the journal. The numbers are checked too: a matching checksum does not
    /// prove that a line is valid.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let event: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if event.entries.iter().all(Part::is_sound) {
            Ok(event)
        } else {
            Err("it names entries or line numbers that cannot exist".to_owned())
        }
    }

    pub(super) fn new(batch: &Batch, outcome: BatchOutcome, at: Moment, message: &str) -> Self {
        // Only the first and the last of many parts are stored. A batch of single-record files has
        // as many parts as records, which would make the journal too large.
        let (entries, parts) = match batch.parts() {
            [first, .., last] if batch.parts().len() > 2 => {
                let parts = batch.parts().len() as u64;
                (vec![first.clone(), last.clone()], Some(parts))
            }
            all => (all.to_vec(), None),
        };
        Self {
            batch: batch.file_name(),
            outcome,
            records: batch.records().len() as u64,
            entries,
            parts,
            at,
            message: message.to_owned(),
            sums: None,
        }
    }
}

impl OutcomeSums {
    pub(crate) fn add(&mut self, event: &BatchEvent) {
        if let Some(sums) = &event.sums {
            return self.add_all(sums);
        }
        match event.outcome {
            BatchOutcome::Delivered => {
                self.delivered = self.delivered.saturating_add(event.records);
                self.batches_delivered = self.batches_delivered.saturating_add(1);
            }
            BatchOutcome::Archived => self.archived = self.archived.saturating_add(event.records),
            BatchOutcome::Unarchived => {
                self.archived = self.archived.saturating_sub(event.records);
            }
            BatchOutcome::Discarded => {
                self.discarded = self.discarded.saturating_add(event.records);
            }
            BatchOutcome::Split | BatchOutcome::Failed | BatchOutcome::Resent => {}
        }
    }

    pub(crate) fn add_all(&mut self, sums: &Self) {
        for (sum, more) in [
            (&mut self.delivered, sums.delivered),
            (&mut self.archived, sums.archived),
            (&mut self.batches_delivered, sums.batches_delivered),
            (&mut self.discarded, sums.discarded),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

impl OutcomeIndex {
    pub(crate) fn get(&self, batch: &str) -> Option<BatchOutcome> {
        self.0.get(batch).map(|(outcome, _)| *outcome)
    }

    /// Returns the names of the batches in the journal, which a test counts.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn insert(&mut self, event: &BatchEvent, generation: u64) {
        self.0
            .insert(event.batch.clone(), (event.outcome, generation));
    }

    /// Reads the journal and the outcomes in the reserve, without writing to them.
    pub(crate) fn read(data: &DataDir) -> Result<Self, Error> {
        let mut index = read(data)?.0;
        for (batch, held) in HeldOutcomes::read(data, &index)?.batches {
            index.0.insert(batch, (held.outcome, u64::MAX));
        }
        Ok(index)
    }
}

impl Ledger {
    pub(super) fn open(disk: &Arc<dyn Disk>, data: &DataDir) -> Result<Self, Error> {
        let journal = match Journal::open::<OutcomeSums>(disk, data, JournalKind::Batches) {
            // Without a reserve the full disk is an error: the outcome of a batch that is sent
            // could not be stored.
            Err(error) if error.is_full() && Reserve::new(&data.staging).exists() => None,
            journal => Some(journal?),
        };
        let (index, sums, events) = read(data)?;
        Ok(Self {
            journal,
            disk: Arc::clone(disk),
            staging: data.staging.clone(),
            sums,
            events,
            index,
        })
    }

    /// True if no other process has written to the journal since it was read.
    pub(super) fn is_current(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_current)
    }

    /// True if a failed rotation may have created a newer journal file. The journal must be opened
    /// again before the next event, because readers would not count an event in the older file.
    pub(super) fn is_superseded(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_superseded)
    }

    /// Reopens the journal for reading only. A file that is open for writing would prevent
    /// remounting the file system read-only. The next event opens the file for writing again.
    pub(super) fn stop_writing(&mut self) -> Result<(), Error> {
        self.journal.as_mut().map_or(Ok(()), Journal::stop_writing)
    }

    /// Adds an event to the journal of batch outcomes, and syncs it.
    pub(super) fn add(&mut self, event: &BatchEvent) -> Result<(), Error> {
        let has_unfinished_snapshot = self.has_unfinished_snapshot();
        let Some(journal) = &mut self.journal else {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::new("create a journal beside", &self.staging, full));
        };
        // After a crash the batches of an unfinished snapshot are written again, unless the journal
        // names them. So no event is dropped until the snapshot is finished. No other batches are
        // written meanwhile, so the journal stays bounded.
        if self.events >= MAX_EVENTS && !has_unfinished_snapshot {
            journal.rotate(&self.sums)?;
            self.events = 0;
            let oldest = journal.generation().saturating_sub(1);
            self.index
                .0
                .retain(|_, (_, generation)| *generation >= oldest);
        }
        journal.add(event)?;
        journal.sync()?;
        self.events += 1;
        self.sums.add(event);
        self.index.insert(event, journal.generation());
        Ok(())
    }

    fn has_unfinished_snapshot(&self) -> bool {
        let [unfinished, _] = Snapshot::paths(&self.staging);
        files::exists(&*self.disk, &unfinished).unwrap_or(true)
    }

    pub(super) fn index(&self) -> &OutcomeIndex {
        &self.index
    }

    pub(super) fn outcome(&self, batch: &str) -> Option<BatchOutcome> {
        self.index.get(batch)
    }
}

/// Returns the last event of each batch whose name is wanted.
pub(super) fn last_events(
    data: &DataDir,
    is_wanted: &dyn Fn(&str) -> bool,
) -> Result<BTreeMap<String, BatchEvent>, Error> {
    let mut events = BTreeMap::new();
    JournalKind::Batches.read::<OutcomeSums>(data, &mut |_, read| {
        if let JournalLine::Event(text) = read
            && let Ok(event) = BatchEvent::parse(text)
            && is_wanted(&event.batch)
        {
            events.insert(event.batch.clone(), event);
        }
    })?;
    Ok(events)
}

/// Reads the batch journal. Returns the last outcome of each batch, the sums of all events, and the
/// number of events in the last generation (journal file).
pub(super) fn read(data: &DataDir) -> Result<(OutcomeIndex, OutcomeSums, u64), Error> {
    let (mut index, mut sums, mut events) = (OutcomeIndex::default(), OutcomeSums::default(), 0);
    JournalKind::Batches.read(data, &mut |position, read| match read {
        JournalLine::Head(before) => (sums, events) = (before, 0),
        JournalLine::Event(text) => {
            if let Ok(event) = BatchEvent::parse(text) {
                events += 1;
                sums.add(&event);
                index.insert(&event, position.generation);
            } else {
                let (path, line) = (position.path.display(), position.line);
                tracing::warn!(%path, line, "invalid event in the journal of batches ignored");
            }
        }
        JournalLine::Damaged(why) => {
            let (path, line) = (position.path.display(), position.line);
            tracing::warn!(%path, line, why, "damaged line in the journal of batches ignored");
        }
    })?;
    Ok((index, sums, events))
}
