//! The journal of what became of the batches.
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

/// How many events one generation has.
pub(crate) const MAX_EVENTS: u64 = if cfg!(test) { 60 } else { 50_000 };

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum BatchOutcome {
    /// Its destination has it.
    Delivered,
    /// It has no destination.
    Archived,
    /// Two batches took its place.
    Split,
    /// It was put into `failed/`.
    Failed,
    /// It was put back into the spool by a person, from `failed/`.
    Resent,
    /// The same, from `archive/`.
    Unarchived,
    /// It was in `failed/`, and was deleted to respect a bound.
    Discarded,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct BatchEvent {
    pub(crate) batch: String,
    pub(crate) outcome: BatchOutcome,
    pub(crate) records: u64,
    /// The parts of the batch. Of more than two only the first and the last: with the journal of
    /// what was consolidated they tell the others, since a batch has consecutive records of one set.
    pub(crate) entries: Vec<Part>,
    /// How many parts the batch has, if not all are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<u64>,
    pub(crate) at: Moment,
    /// By the destination.
    pub(crate) said: String,
    /// Sums of the events that were noted in the reserve while the disk was full. The lines that they
    /// were about are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sums: Option<OutcomeSums>,
}

/// What the events add up to, in records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OutcomeSums {
    pub(crate) delivered: u64,
    pub(crate) archived: u64,
    pub(crate) batches_delivered: u64,
    /// Failed ones whose batch was deleted. Earlier versions deleted none.
    #[serde(default)]
    pub(crate) discarded: u64,
}

/// The journal as the deliverer keeps it.
#[derive(Debug)]
pub(super) struct Ledger {
    /// `None`: the disk is too full to begin or to renew it. The reserve has what comes.
    journal: Option<Journal>,
    disk: Arc<dyn Disk>,
    staging: PathBuf,
    sums: OutcomeSums,
    /// In this generation.
    events: u64,
    index: OutcomeIndex,
}

/// The last outcome of every batch that the journal still has, and in which generation it is.
#[derive(Debug, Default)]
pub(crate) struct OutcomeIndex(HashMap<String, (BatchOutcome, u64)>);

impl BatchEvent {
    /// Reads a line of the journal. Its checksum may match and its numbers may be made up all the same.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let event: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if event.entries.iter().all(Part::is_sound) {
            Ok(event)
        } else {
            Err("it names entries that cannot be".to_owned())
        }
    }

    pub(super) fn new(batch: &Batch, outcome: BatchOutcome, at: Moment, said: &str) -> Self {
        // A batch of single-record files has as many parts as records: too much to note each time.
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
            said: said.to_owned(),
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
                self.discarded = self.discarded.saturating_add(event.records)
            }
            BatchOutcome::Split | BatchOutcome::Failed | BatchOutcome::Resent => {}
        }
    }

    pub(crate) fn add_all(&mut self, sums: &Self) {
        for (ours, more) in [
            (&mut self.delivered, sums.delivered),
            (&mut self.archived, sums.archived),
            (&mut self.batches_delivered, sums.batches_delivered),
            (&mut self.discarded, sums.discarded),
        ] {
            *ours = ours.saturating_add(more);
        }
    }
}

impl OutcomeIndex {
    pub(crate) fn get(&self, batch: &str) -> Option<BatchOutcome> {
        self.0.get(batch).map(|(outcome, _)| *outcome)
    }

    /// The batches that the journal still has.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    fn insert(&mut self, event: &BatchEvent, generation: u64) {
        self.0
            .insert(event.batch.clone(), (event.outcome, generation));
    }

    /// Reads the journal without writing to it.
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
            // Without a reserve nothing must be sent that cannot be noted.
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

    /// True if no other process has written to the journal since.
    pub(super) fn is_current(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_current)
    }

    /// True if it must be opened anew before anything is noted.
    pub(super) fn is_left(&self) -> bool {
        self.journal.as_ref().is_some_and(Journal::is_superseded)
    }

    /// Nothing is written for a while.
    pub(super) fn rest(&mut self) -> Result<(), Error> {
        self.journal.as_mut().map_or(Ok(()), Journal::stop_writing)
    }

    /// Notes what became of a batch. On the disk when this returns.
    pub(super) fn note(&mut self, event: &BatchEvent) -> Result<(), Error> {
        let must_remember = self.must_remember();
        let Some(journal) = &mut self.journal else {
            let full = io::Error::from(io::ErrorKind::StorageFull);
            return Err(Error::new("begin a journal beside", &self.staging, full));
        };
        if self.events >= MAX_EVENTS && !must_remember {
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

    /// True while a set is being consolidated: after a crash its batches are made again, unless they
    /// are known to have left. No other batches are made meanwhile, so this ends.
    fn must_remember(&self) -> bool {
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

/// The last event of each batch with a name of one's choice.
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

/// What is kept of the journal: the last outcomes, the sums, and the events of the last generation.
pub(super) fn read(data: &DataDir) -> Result<(OutcomeIndex, OutcomeSums, u64), Error> {
    let (mut index, mut sums, mut events) = (OutcomeIndex::default(), OutcomeSums::default(), 0);
    JournalKind::Batches.read(data, &mut |spot, read| match read {
        JournalLine::Head(before) => (sums, events) = (before, 0),
        JournalLine::Event(text) => match BatchEvent::parse(text) {
            Ok(event) => {
                events += 1;
                sums.add(&event);
                index.insert(&event, spot.generation);
            }
            Err(_) => {
                tracing::warn!(path = %spot.path.display(), line = spot.line, "not an event");
            }
        },
        JournalLine::Damaged(why) => {
            tracing::warn!(path = %spot.path.display(), line = spot.line, why, "damaged");
        }
    })?;
    Ok((index, sums, events))
}
