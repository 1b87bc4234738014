//! Ring of record fingerprints in the reserve, by which repeated records are recognized while the
//! disk is full. New fingerprints overwrite the oldest.

use std::io;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::OpenReserve;
use super::contents::read_at;
use crate::disk::Disk;
use crate::fingerprint::RecordFingerprint;

/// Length of a fingerprint.
const BYTES: u64 = 20;

/// Valid ids of the ring. Ids are numbered in the order in which they were added; id `n` is at slot
/// `n` modulo the capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IdRange {
    pub(crate) start: u64,
    pub(crate) count: u64,
}

impl OpenReserve {
    /// Maximum number of ids in the ring.
    pub(crate) fn capacity(&self) -> u64 {
        (self.layout.end - self.layout.ids) / BYTES
    }

    /// Writes ids behind the valid ones, and syncs them. They become valid when the caller writes
    /// the returned range to the reserve.
    pub(crate) fn add_ids(
        &self,
        disk: &dyn Disk,
        mut ids: IdRange,
        new: &[RecordFingerprint],
    ) -> io::Result<IdRange> {
        let capacity = self.capacity();
        if ids.count + new.len() as u64 > capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut rest = new;
        while !rest.is_empty() {
            let next = (ids.start + ids.count) % capacity;
            let until_end = usize::try_from(capacity - next).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(rest.len().min(until_end));
            let bytes: Vec<u8> = now.iter().flat_map(encode).collect();
            disk.write_at(&self.file, self.layout.ids + next * BYTES, &bytes)?;
            ids.count += now.len() as u64;
            rest = later;
        }
        disk.sync(&self.file)?;
        Ok(ids)
    }

    /// Returns the valid ids, oldest first.
    pub(crate) fn ids(&self, disk: &dyn Disk, ids: IdRange) -> io::Result<Vec<RecordFingerprint>> {
        let bytes = read_at(disk, &self.file, self.layout.ids, self.capacity() * BYTES)?;
        let places = (ids.start..ids.start.saturating_add(ids.count)).map(|n| n % self.capacity());
        let fingerprint = |place: u64| {
            let start = usize::try_from(place * BYTES).ok()?;
            decode(bytes.get(start..start + 20)?)
        };
        let found: Option<Vec<_>> = places.map(fingerprint).collect();
        found.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }
}

impl IdRange {
    /// Returns the range without its oldest ids, as far as `more` new ids would exceed the capacity
    /// of the ring.
    pub(crate) fn without_oldest(self, capacity: u64, more: u64) -> Self {
        let surplus = (self.count + more).saturating_sub(capacity).min(self.count);
        Self {
            start: self.start + surplus,
            count: self.count - surplus,
        }
    }
}

fn encode(fingerprint: &RecordFingerprint) -> [u8; 20] {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(fingerprint.id.as_bytes());
    bytes[16..].copy_from_slice(&fingerprint.checksum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<RecordFingerprint> {
    let (id, checksum) = bytes.split_first_chunk::<16>()?;
    Some(RecordFingerprint {
        id: Uuid::from_bytes(*id),
        checksum: u32::from_le_bytes(checksum.try_into().ok()?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Reserve;
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn ids_are_read_as_they_were_added_and_overwrite_the_oldest() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(dir.path());
        reserve.create(&RealDisk, 65_536).unwrap();
        let open = reserve.open(&RealDisk).unwrap();
        let capacity = open.capacity();
        let fingerprints: Vec<_> = (0..2 * u32::try_from(capacity).unwrap())
            .map(|number| RecordFingerprint {
                id: Uuid::now_v7(),
                checksum: number,
            })
            .collect();
        let mut ids = IdRange::default();
        for new in fingerprints.chunks(100) {
            ids = ids.without_oldest(capacity, new.len() as u64);
            ids = open.add_ids(&RealDisk, ids, new).unwrap();
        }
        assert_eq!(ids.count, capacity);
        let last = &fingerprints[fingerprints.len() - usize::try_from(capacity).unwrap()..];
        assert_eq!(open.ids(&RealDisk, ids).unwrap(), last);
        let full = open
            .add_ids(&RealDisk, ids, &fingerprints[..1])
            .unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    }
}
