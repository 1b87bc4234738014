//! Ids and sums of entries that were consolidated while the disk was too full for the journal.
//!
//! They are added to the reserve with the note that their set is written, in one change. When there is
//! room they become lines of the journal. The last of these lines has the sums: once it is on the disk,
//! the journal counts and not the reserve.

use std::collections::HashSet;
use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{ConsolidatedEntry, EntrySums, WINDOW};
use crate::disk::Disk;
use crate::error::Error;
use crate::fingerprint::RecordFingerprint;
use crate::reserve::{IdRange, OpenReserve, Reserve, ReserveUse};
use crate::snapshot;
use crate::time::new_id;

const NOTE: &str = "taken";
/// Name in the journal's lines to which the reserve was written.
const ENTRY: &str = "reserve";
/// How many ids such a line has.
const IDS_PER_LINE: usize = 1000;

/// Content of the reserve that stands for lines of the journal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldIds {
    /// Tells it from those before; the lines of the journal have it as their snapshot.
    pub(crate) id: Uuid,
    pub(crate) sums: EntrySums,
    /// The last set that was added.
    pub(crate) last_set: Option<Uuid>,
    ids: IdRange,
}

impl HeldIds {
    pub(crate) fn read(disk: &dyn Disk, reserve: &Reserve) -> Result<Self, Error> {
        let held = reserve.read(disk).and_then(|held| held.note(NOTE));
        held.map_err(|error| Error::read(reserve.path(), error))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.id.is_nil()
    }

    /// True if the journal has the last of the lines, and so all.
    pub(crate) fn is_flushed(&self, lines: &HashSet<String>) -> bool {
        !self.is_empty() && lines.contains(ENTRY)
    }

    /// True if a line of the journal is the last one that came from the reserve.
    pub(crate) fn is_last_line(&self, taken: &ConsolidatedEntry) -> bool {
        taken.snapshot == self.id && taken.entry == ENTRY
    }

    pub(crate) fn ids(
        &self,
        disk: &dyn Disk,
        reserve: &Reserve,
    ) -> Result<Vec<RecordFingerprint>, Error> {
        if self.ids.count == 0 {
            return Ok(Vec::new());
        }
        let ids = (reserve.open(disk)).and_then(|open| open.ids(disk, self.ids));
        ids.map_err(|error| Error::read(reserve.path(), error))
    }

    /// How many more ids can be added, and whether any were.
    pub(crate) fn room(disk: &dyn Disk, reserve: &Reserve) -> Result<(u64, bool), Error> {
        let held = Self::read(disk, reserve)?;
        if !reserve.exists() {
            return Ok((u64::MAX, false));
        }
        let capacity = reserve.open(disk).map(|open| open.capacity());
        let capacity = capacity.map_err(|error| Error::read(reserve.path(), error))?;
        let room = if capacity >= WINDOW {
            capacity
        } else {
            capacity - held.ids.count.min(capacity)
        };
        Ok((room, !held.is_empty()))
    }

    /// Adds entries, and notes that their set is written. On the disk when this returns.
    pub(super) fn add(
        reserve: &Reserve,
        disk: &dyn Disk,
        set: Uuid,
        entries: &[ConsolidatedEntry],
    ) -> Result<Self, Error> {
        let add = || {
            let open = reserve.open(disk)?;
            let mut content = open.read(disk)?;
            let mut held: Self = content.note(NOTE)?;
            if held.is_empty() {
                held.id = new_id();
            }
            let new: Vec<RecordFingerprint> = (entries.iter())
                .flat_map(|taken| taken.ids.iter().copied())
                .collect();
            held.make_room(&open, new.len() as u64)?;
            content.set_note(NOTE, &held);
            // Ids that are overwritten must not count any more.
            open.write(disk, &mut content, ReserveUse::Note)?;
            held.ids = open.add_ids(disk, held.ids, &new)?;
            for taken in entries {
                held.sums.add(taken);
            }
            held.last_set = Some(set);
            content.set_note(NOTE, &held);
            snapshot::note_written(&mut content, set);
            open.write(disk, &mut content, ReserveUse::Note)?;
            Ok(held)
        };
        add().map_err(|error| Error::new("write to", reserve.path(), error))
    }

    /// Fewer ids than are promised to be remembered are never dropped: then there is no room.
    fn make_room(&mut self, open: &OpenReserve, more: u64) -> io::Result<()> {
        if open.capacity() >= WINDOW {
            self.ids = self.ids.without_oldest(open.capacity(), more);
        }
        if self.ids.count + more > open.capacity() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// As lines of the journal.
    pub(super) fn lines(
        &self,
        disk: &dyn Disk,
        reserve: &Reserve,
    ) -> Result<Vec<ConsolidatedEntry>, Error> {
        let ids = self.ids(disk, reserve)?;
        let line = |(number, ids): (usize, &[RecordFingerprint])| ConsolidatedEntry {
            ids: ids.to_vec(),
            sums: Some(EntrySums::default()),
            // One that was written when it was not full yet is written again.
            ..ConsolidatedEntry::new(self.id, &self.line_name(number, ids.len()))
        };
        let mut lines: Vec<_> = ids.chunks(IDS_PER_LINE).enumerate().map(line).collect();
        lines.push(ConsolidatedEntry {
            sums: Some(self.sums.clone()),
            last_set: self.last_set,
            ..ConsolidatedEntry::new(self.id, ENTRY)
        });
        Ok(lines)
    }

    fn line_name(&self, number: usize, ids: usize) -> String {
        format!("{ENTRY}-{}-{number}-{ids}", self.ids.start)
    }

    pub(super) fn clear(reserve: &Reserve, disk: &dyn Disk) -> Result<Self, Error> {
        let cleared = reserve.change(disk, |held| held.remove_note(NOTE));
        cleared.map_err(|error| Error::new("write to", reserve.path(), error))?;
        Ok(Self::default())
    }
}
