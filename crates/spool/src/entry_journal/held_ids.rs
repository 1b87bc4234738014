//! Record ids and sums (numbers of entries and records) of entries that were consolidated while the
//! disk was too full for the entry journal. They are stored in the reserve, `_staging/.reserve`,
//! which is space preallocated for a full disk.
//!
//! A single write stores the sums of a snapshot in the reserve, makes the snapshot's record ids
//! valid, and marks the snapshot as written. So a crash leaves all three or none. When the disk has
//! room, ids and sums are flushed to the journal as events. The last event has the sums: once that
//! event is synced, the ids and sums in the reserve are ignored.

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
/// Entry name in the last event that is flushed from the reserve to the journal. No file has this
/// name. If the journal has an event with this name, the flush is complete, and the ids in the
/// reserve are ignored.
const ENTRY: &str = "reserve";
/// Maximum number of record ids in an event that is flushed from the reserve to the journal.
const IDS_PER_LINE: usize = 1000;

/// Record ids and sums (numbers of entries and records) that are in the reserve, space preallocated
/// for a full disk, and not in the entry journal yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldIds {
    /// Id that the journal events get in place of a snapshot id when ids and sums are flushed from
    /// the reserve. Events with this id show after a crash which part of the reserve the journal
    /// already has. Nil: the reserve has no ids.
    pub(crate) id: Uuid,
    /// Numbers of entries and records that were consolidated since the reserve was last cleared.
    pub(crate) sums: EntrySums,
    /// Id of the last snapshot whose record ids were added to the reserve. The reserve has no line
    /// numbers, so `verify` cannot prove the lines of this snapshot and of older ones.
    #[serde(rename = "last_set")]
    pub(crate) last_snapshot: Option<Uuid>,
    /// Range of the valid ids in the reserve's ring of record ids.
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

    /// True if the journal has all ids and sums of the reserve, so that those in the reserve must
    /// be ignored. `flushed` has the entry names of the events that were flushed to the journal:
    /// the event [`ENTRY`] is the last one.
    pub(crate) fn is_flushed(&self, flushed: &HashSet<String>) -> bool {
        !self.is_empty() && flushed.contains(ENTRY)
    }

    /// True if `consolidated` is the last event of a flush from the reserve to the journal. The
    /// last event has the sums. Once the journal has that event, the ids and sums in the reserve
    /// are ignored.
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

    /// Returns the number of record ids that can be added to the reserve, and `true` if the reserve
    /// has ids already.
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

    /// Stores the record ids and sums of a snapshot's entries in the reserve, and marks the
    /// snapshot as written there: after a crash, its entries are deleted and not consolidated
    /// again. Syncs the reserve.
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
            // `add_ids` overwrites the oldest ids, which `make_room` has dropped. Write the
            // shortened range first: if a crash interrupts `add_ids`, the overwritten ids must not
            // count as valid.
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

    /// Drops the oldest ids of the reserve to make space for `more` new ids. A reserve with space
    /// for fewer than [`WINDOW`] ids drops none and fails as full: too few ids would stay known to
    /// recognize repeated records.
    fn make_room(&mut self, open: &OpenReserve, more: u64) -> io::Result<()> {
        if open.capacity() >= WINDOW {
            self.ids = self.ids.without_oldest(open.capacity(), more);
        }
        if self.ids.count + more > open.capacity() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        Ok(())
    }

    /// Returns the journal events by which ids and sums are flushed from the reserve.
    pub(super) fn lines(
        &self,
        disk: &dyn Disk,
        reserve: &Reserve,
    ) -> Result<Vec<ConsolidatedEntry>, Error> {
        let ids = self.ids(disk, reserve)?;
        let line = |(number, ids): (usize, &[RecordFingerprint])| ConsolidatedEntry {
            ids: ids.to_vec(),
            sums: Some(EntrySums::default()),
            // A flush may be interrupted after it has written this group, and more ids may join the
            // group before the next flush. The number of ids in the event's name then differs, so
            // the next flush writes the longer event, too.
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

    /// Returns the entry name of the journal event that has group `number` of the ids in the
    /// reserve. No file has this name. It contains the position and the number of the ids, so that
    /// a flush that was interrupted can skip the events that the journal already has.
    fn line_name(&self, number: usize, ids: usize) -> String {
        format!("{ENTRY}-{}-{number}-{ids}", self.ids.start)
    }

    /// Removes all record ids and sums from the reserve, after the journal has got them.
    pub(super) fn clear(reserve: &Reserve, disk: &dyn Disk) -> Result<Self, Error> {
        let cleared = reserve.change(disk, |contents| contents.remove_note(NOTE));
        cleared.map_err(|error| Error::new("write to", reserve.path(), error))?;
        Ok(Self::default())
    }
}
