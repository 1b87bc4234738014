//! Who is inside, told by the processes themselves in a shared file, without any lock.
//!
//! Each process has a slot. It says "in" after it believes to own the key and "out" before it lets
//! go. Whoever is in and sees another slot that is in has found a double owner: the other one is
//! in as well, unless it was killed. The supervisor therefore condemns a slot before it kills, and
//! counts up the slot's generation before it is used again; a slot that was not condemned before
//! and after, and has the same generation, belongs to a process that was alive in between. So
//! there are no false alarms.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes of a slot: in, condemned, generation, unused, then counters of eight bytes each.
const SLOT: u64 = 64;
const IN: u64 = 0;
const CONDEMNED: u64 = 1;
const GENERATION: u64 = 2;

/// The counters of a slot.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    /// How often the key was acquired.
    Acquired = 8,
    /// How often somebody else was inside at the same time.
    Doubles = 16,
    /// How often the attempt failed for another reason than a live owner.
    Errors = 24,
    /// How often the owner's lock file was gone though nobody from outside touched it.
    Lost = 48,
    /// How often a refusal said that the owner's lock file was gone.
    SaidLost = 56,
    /// What the process reports, for [`boot`](crate::boot).
    Report = 32,
    /// The pid it was told holds the key, for [`boot`](crate::boot).
    Named = 40,
}

/// The shared file.
#[derive(Debug)]
pub struct Witness {
    file: File,
    slots: u64,
}

impl Witness {
    /// A fresh one, or an existing one, with this many slots.
    pub fn open(path: &Path, slots: u64) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .expect("the witness file opens");
        if file.metadata().expect("it has a size").len() < slots * SLOT {
            file.set_len(slots * SLOT).expect("it can grow");
        }
        Self { file, slots }
    }

    /// The process of this slot is inside now. Looks whether anyone else is.
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

    /// The process of this slot is about to let go.
    pub fn leave(&self, slot: u64) {
        self.put(slot, IN, 0);
    }

    /// The supervisor is about to kill the process of this slot.
    pub fn condemn(&self, slot: u64) {
        self.put(slot, CONDEMNED, 1);
    }

    /// The process of this slot is dead and reaped; a new one may have it.
    pub fn reuse(&self, slot: u64) {
        self.put(slot, IN, 0);
        self.put(slot, GENERATION, self.get(slot, GENERATION).wrapping_add(1));
        self.put(slot, CONDEMNED, 0);
    }

    /// Adds one to a counter of a slot. Only the slot's own process may.
    pub fn count(&self, slot: u64, counter: Counter) {
        self.set(slot, counter, self.value(slot, counter) + 1);
    }

    /// Sets a counter of a slot.
    pub fn set(&self, slot: u64, counter: Counter, value: u64) {
        let place = slot * SLOT + counter as u64;
        self.file
            .write_all_at(&value.to_le_bytes(), place)
            .expect("the witness writes");
    }

    /// A counter of one slot.
    pub fn value(&self, slot: u64, counter: Counter) -> u64 {
        let mut bytes = [0; 8];
        let place = slot * SLOT + counter as u64;
        self.file
            .read_exact_at(&mut bytes, place)
            .expect("the witness reads");
        u64::from_le_bytes(bytes)
    }

    /// The sum over all slots.
    pub fn total(&self, counter: Counter) -> u64 {
        (0..self.slots).map(|slot| self.value(slot, counter)).sum()
    }

    fn put(&self, slot: u64, place: u64, value: u8) {
        self.file
            .write_all_at(&[value], slot * SLOT + place)
            .expect("the witness writes");
    }

    fn get(&self, slot: u64, place: u64) -> u8 {
        let mut byte = [0];
        self.file
            .read_exact_at(&mut byte, slot * SLOT + place)
            .expect("the witness reads");
        byte[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_inside_are_seen_and_the_dead_are_not() {
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
