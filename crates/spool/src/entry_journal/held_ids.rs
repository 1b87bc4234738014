//! Ids and sums of entries that were consolidated while the disk was too full for the entry
//! journal.
//!
//! One write adds these ids and sums to the reserve and marks their snapshot as written. When the
//! disk has room, they are flushed to the journal as events. The last of these events has the sums:
//! once it is synced, the ids and sums in the reserve are ignored.

use std::collections::HashSet;
use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{ConsolidatedEntry, EntrySums, WINDOW};
use crate::disk::Disk;
use crate::error::Error;
use crate::fingerprint::RecordFingerprint;
use crate::reserve::{IdRange, OpenReserve, Reserve, ReserveUse};
use crate::snapshot::note_written;
use crate::time::new_id;

/// Name under which [`HeldIds`] is stored in the reserve.
const NOTE: &str = "taken";
/// Entry name in the last event that is flushed from the reserve.
const ENTRY: &str = "reserve";
/// Maximum number of ids in an event that is flushed from the reserve.
const IDS_PER_LINE: usize = 1000;

/// Ids and sums in the reserve that are not in the journal yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldIds {
    /// Snapshot id of the events to which these ids are flushed. Nil: the reserve has no ids.
    pub(crate) id: Uuid,
    pub(crate) sums: EntrySums,
    /// Id of the last snapshot that was added.
    #[serde(rename = "last_set")]
    pub(crate) last_snapshot: Option<Uuid>,
    /// Position of the ids in the reserve.
    ids: IdRange,
}

impl HeldIds {
    pub(crate) fn read(disk: &dyn Disk, reserve: &Reserve) -> Result<Self, Error> {
        let held = reserve.read(disk).and_then(|contents| contents.note(NOTE));
        held.map_err(|error| Error::read(reserve.path(), error))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.id.is_nil()
    }

    /// True if the journal has all of the ids. `lines` are the entry names of the events that were
    /// flushed.
    pub(crate) fn is_flushed(&self, lines: &HashSet<String>) -> bool {
        !self.is_empty() && lines.contains(ENTRY)
    }

    /// True if this is the last event to flush, the one with the sums.
    pub(crate) fn is_last_event(&self, consolidated: &ConsolidatedEntry) -> bool {
        consolidated.snapshot == self.id && consolidated.entry == ENTRY
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

    /// Returns the number of ids that can be added, and `true` if the reserve has ids already.
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

    /// Adds the ids and sums of entries to the reserve, and marks their snapshot as written. Syncs
    /// the reserve.
    pub(super) fn add(
        reserve: &Reserve,
        disk: &dyn Disk,
        snapshot: Uuid,
        entries: &[ConsolidatedEntry],
    ) -> Result<Self, Error> {
        let add = || {
            let open = reserve.open(disk)?;
            let mut contents = open.read(disk)?;
            let mut held: Self = contents.note(NOTE)?;
            if held.is_empty() {
                held.id = new_id();
            }
            let new: Vec<RecordFingerprint> = (entries.iter())
                .flat_map(|consolidated| consolidated.ids.iter().copied())
                .collect();
            held.make_room(&open, new.len() as u64)?;
            contents.set_note(NOTE, &held);
            // `add_ids` overwrites the ids that were dropped. The reserve must not count them as
            // valid if a crash interrupts `add_ids`.
            open.write(disk, &mut contents, ReserveUse::Note)?;
            held.ids = open.add_ids(disk, held.ids, &new)?;
            for consolidated in entries {
                held.sums.add(consolidated);
            }
            held.last_snapshot = Some(snapshot);
            contents.set_note(NOTE, &held);
            note_written(&mut contents, snapshot);
            open.write(disk, &mut contents, ReserveUse::Note)?;
            Ok(held)
        };
        add().map_err(|error| Error::new("write to", reserve.path(), error))
    }

    /// Drops the oldest ids to make space for `more` new ids. A reserve for fewer than [`WINDOW`]
    /// ids drops none, because too few would stay known: it is full then.
    fn make_room(&mut self, open: &OpenReserve, more: u64) -> io::Result<()> {
        if open.capacity() >= WINDOW {
            self.ids = self.ids.without_oldest(open.capacity(), more);
        }
        if self.ids.count + more > open.capacity() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Returns the events to flush.
    pub(super) fn lines(
        &self,
        disk: &dyn Disk,
        reserve: &Reserve,
    ) -> Result<Vec<ConsolidatedEntry>, Error> {
        let ids = self.ids(disk, reserve)?;
        let line = |(number, ids): (usize, &[RecordFingerprint])| ConsolidatedEntry {
            ids: ids.to_vec(),
            sums: Some(EntrySums::default()),
            // The name has the number of ids: an event that was flushed with fewer ids is flushed
            // again.
            ..ConsolidatedEntry::new(self.id, &self.line_name(number, ids.len()))
        };
        let mut lines: Vec<_> = ids.chunks(IDS_PER_LINE).enumerate().map(line).collect();
        lines.push(ConsolidatedEntry {
            sums: Some(self.sums.clone()),
            last_snapshot: self.last_snapshot,
            ..ConsolidatedEntry::new(self.id, ENTRY)
        });
        Ok(lines)
    }

    /// Entry name of an event with ids.
    fn line_name(&self, number: usize, ids: usize) -> String {
        format!("{ENTRY}-{}-{number}-{ids}", self.ids.start)
    }

    /// Removes ids and sums from the reserve.
    pub(super) fn clear(reserve: &Reserve, disk: &dyn Disk) -> Result<Self, Error> {
        let cleared = reserve.change(disk, |contents| contents.remove_note(NOTE));
        cleared.map_err(|error| Error::new("write to", reserve.path(), error))?;
        Ok(Self::default())
    }
}
