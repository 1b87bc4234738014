//! Detects two owners at the same time, through a shared file and without any lock.
//!
//! Each process has a slot. It sets "in" after it has acquired the key and clears it before it
//! releases the key. A process that is in and finds another slot that is in has found a second
//! owner, unless the other process was killed. The supervisor therefore marks a slot as condemned
//! before it kills the process, and increments the slot's generation before the slot is used again.
//! A slot that has the same generation and is not condemned before and after the check belongs to a
//! process that was alive in between. So there are no false alarms.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Size in bytes of the slot of one process. A slot consists of the bytes at [`IN`], [`CONDEMNED`]
/// and [`GENERATION`], and from byte 8 on of the [`Counter`]s of eight bytes each.
const SLOT: u64 = 64;
/// Offset of the byte that is 1 while the process of the slot owns the key.
const IN: u64 = 0;
/// Offset of the byte that is 1 if the supervisor is about to kill the process of the slot.
const CONDEMNED: u64 = 1;
/// Offset of the byte that is incremented whenever a new process uses the slot.
const GENERATION: u64 = 2;

/// Counters and other numbers in the slot of a process. The discriminant is the offset in the slot.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    /// Number of acquisitions.
    Acquired = 8,
    /// Number of times that another process owned the key at the same time.
    Doubles = 16,
    /// Number of attempts that failed for another reason than a live owner.
    Errors = 24,
    /// Number of times that the owner's lock file was gone, although no outside process touched it.
    Lost = 48,
    /// Number of refusals that reported the owner's lock file as gone.
    ReportedLost = 56,
    /// Result of the process in a race of [`boot`](crate::boot): 0 while it tries to acquire the
    /// key, then 1 for an owner, 2 for a refusal and 3 for an error.
    Report = 32,
    /// Pid that a refusal named as the holder in a race of [`boot`](crate::boot). The test compares
    /// the pid with that of the owner.
    Named = 40,
}

/// File that all processes of a test share, with a slot for each process.
#[derive(Debug)]
pub struct Witness {
    file: File,
    slots: u64,
}

impl Witness {
    /// Opens or creates the file with this many slots.
    pub fn open(path: &Path, slots: u64) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .expect("the witness file opens");
        if file.metadata().expect("the witness file has a size").len() < slots * SLOT {
            file.set_len(slots * SLOT).expect("the witness file grows");
        }
        Self { file, slots }
    }

    /// Marks the process of this slot as an owner of the key, and counts every other living owner.
    pub fn enter(&self, slot: u64) {
        self.put(slot, IN, 1);
        for other in (0..self.slots).filter(|other| *other != slot) {
            let before = (self.get(other, CONDEMNED), self.get(other, GENERATION));
            let inside = self.get(other, IN) == 1;
            let after = (self.get(other, CONDEMNED), self.get(other, GENERATION));
            if inside && before.0 == 0 && before == after {
                self.count(slot, Counter::Doubles);
            }
        }
    }

    /// Clears the mark of an owner, before the process of this slot releases the key.
    pub fn leave(&self, slot: u64) {
        self.put(slot, IN, 0);
    }

    /// Marks the process of this slot as condemned, before the supervisor kills it. A killed
    /// process does not count as a second owner.
    pub fn condemn(&self, slot: u64) {
        self.put(slot, CONDEMNED, 1);
    }

    /// Makes a slot available again after its process was reaped.
    pub fn reuse(&self, slot: u64) {
        self.put(slot, IN, 0);
        self.put(slot, GENERATION, self.get(slot, GENERATION).wrapping_add(1));
        self.put(slot, CONDEMNED, 0);
    }

    /// Increments a counter of a slot. Only the process of the slot may call this.
    pub fn count(&self, slot: u64, counter: Counter) {
        self.set(slot, counter, self.value(slot, counter) + 1);
    }

    /// Sets a counter of a slot.
    pub fn set(&self, slot: u64, counter: Counter, value: u64) {
        let offset = slot * SLOT + counter as u64;
        self.file
            .write_all_at(&value.to_le_bytes(), offset)
            .expect("the witness writes");
    }

    /// Returns the current value of one counter, or other number of [`Counter`], in the slot of one
    /// process.
    pub fn value(&self, slot: u64, counter: Counter) -> u64 {
        let mut bytes = [0; 8];
        let offset = slot * SLOT + counter as u64;
        self.file
            .read_exact_at(&mut bytes, offset)
            .expect("the witness reads");
        u64::from_le_bytes(bytes)
    }

    /// Returns the sum of a counter over all slots.
    pub fn total(&self, counter: Counter) -> u64 {
        (0..self.slots).map(|slot| self.value(slot, counter)).sum()
    }

    fn put(&self, slot: u64, offset: u64, value: u8) {
        self.file
            .write_all_at(&[value], slot * SLOT + offset)
            .expect("the witness writes");
    }

    fn get(&self, slot: u64, offset: u64) -> u8 {
        let mut byte = [0];
        self.file
            .read_exact_at(&mut byte, slot * SLOT + offset)
            .expect("the witness reads");
        byte[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn witness_counts_two_live_owners_and_ignores_killed_ones() {
        let dir = tempfile::tempdir().unwrap();
        let witness = Witness::open(&dir.path().join("w"), 3);
        witness.enter(0);
        witness.leave(0);
        witness.enter(1);
        assert_eq!(witness.total(Counter::Doubles), 0);
        witness.enter(2);
        assert_eq!(witness.value(2, Counter::Doubles), 1);
        witness.leave(2);
        witness.condemn(1);
        witness.enter(0);
        witness.leave(0);
        witness.reuse(1);
        witness.enter(2);
        assert_eq!(witness.total(Counter::Doubles), 1);
    }
}
