//! Backends by the ids that they issued, and queues of new ids for the threads that persist them.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::issued_ids::{BackendKey, IdHash};

/// Maximum number of issued ids, such as file ids, in memory. They use 3 MiB when the map is full.
pub(crate) const CAPACITY: usize = SHARDS * SETS * WAYS;
/// Number of shards. Each has a lock of its own, so that threads rarely wait for each other.
const SHARDS: usize = 64;
/// Number of sets in a shard. The hash of an id selects its set, so that only one set is searched.
const SETS: usize = 512;
/// Number of ids in a set. A new id replaces the oldest one of its set.
const WAYS: usize = 4;

/// Maximum number of ids that wait in a queue. While the disk or Redis is slow, further ids are
/// only remembered in memory.
const MAX_QUEUED: usize = 4096;

/// An issued id, such as a file id, and the backend that issued it. Requests that name the id must
/// be sent to this backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Issuer {
    pub(crate) id: IdHash,
    pub(crate) backend: BackendKey,
}

/// Map of fixed size from issued ids, such as file ids, to the backends that issued them.
pub(super) struct Issuers {
    shards: Box<[Mutex<Shard>]>,
}

/// Ids and their backends, at the same positions. A set is `WAYS` consecutive positions, newest id
/// first. Backend 0 marks an empty position.
struct Shard {
    ids: Vec<u128>,
    backends: Vec<u64>,
}

impl Issuers {
    pub(super) fn new() -> Self {
        // Allocate all memory at once: the allocator returns zeroed pages, which use no memory
        // until ids are stored.
        let shard = || {
            Mutex::new(Shard {
                ids: vec![0; SETS * WAYS],
                backends: vec![0; SETS * WAYS],
            })
        };
        Self {
            shards: std::iter::repeat_with(shard).take(SHARDS).collect(),
        }
    }

    /// Stores the backend that issued an id. Returns false if the same backend was already stored
    /// for the id, so that the caller does not persist it again.
    pub(super) fn put(&self, issuer: Issuer) -> bool {
        let (shard, set) = self.find(issuer.id);
        let shard = &mut *lock(shard);
        let ids = &mut shard.ids[set..set + WAYS];
        let backends = &mut shard.backends[set..set + WAYS];
        let found = (0..WAYS).find(|at| backends[*at] != 0 && ids[*at] == issuer.id.0);
        let is_new = found.is_none_or(|at| backends[at] != issuer.backend.0);
        // Shift the newer ids of the set by one position. This overwrites the id's old entry or,
        // without one, the oldest id of the set.
        let end = found.unwrap_or(WAYS - 1);
        ids.copy_within(..end, 1);
        backends.copy_within(..end, 1);
        (ids[0], backends[0]) = (issuer.id.0, issuer.backend.0);
        is_new
    }

    pub(super) fn get(&self, id: IdHash) -> Option<BackendKey> {
        let (shard, set) = self.find(id);
        let shard = lock(shard);
        let mut places = set..set + WAYS;
        let at = places.find(|at| shard.backends[*at] != 0 && shard.ids[*at] == id.0)?;
        Some(BackendKey(shard.backends[at]))
    }

    /// Returns the shard of an id, and the first position of its set there. All bits of the hash are
    /// equally random, so any of them select both.
    fn find(&self, id: IdHash) -> (&Mutex<Shard>, usize) {
        let bits = usize::try_from(id.0 & 0xffff_ffff).unwrap_or_default();
        (&self.shards[bits % SHARDS], bits / SHARDS % SETS * WAYS)
    }
}

impl std::fmt::Debug for Issuers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Issuers({CAPACITY})")
    }
}

/// Queue of ids for a thread that persists them. Requests never wait for that thread: ids that do
/// not fit are dropped and counted.
#[derive(Debug, Default)]
pub(crate) struct IssuerQueue {
    content: Mutex<QueueContent>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct QueueContent {
    waiting: Vec<Issuer>,
    dropped: u64,
    is_closed: bool,
}

impl IssuerQueue {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    pub(crate) fn push(&self, issuer: Issuer) {
        let mut content = lock(&self.content);
        if content.waiting.len() >= MAX_QUEUED {
            content.dropped += 1;
            return;
        }
        content.waiting.push(issuer);
        if content.waiting.len() == 1 {
            self.changed.notify_one();
        }
    }

    /// Waits for ids, and returns all that are waiting. `None` after the queue was closed and all its
    /// ids were returned.
    pub(crate) fn take(&self) -> Option<Vec<Issuer>> {
        let content = lock(&self.content);
        let is_idle = |content: &mut QueueContent| content.waiting.is_empty() && !content.is_closed;
        let waited = self.changed.wait_while(content, is_idle);
        let mut content = waited.unwrap_or_else(PoisonError::into_inner);
        let taken = std::mem::take(&mut content.waiting);
        (!taken.is_empty()).then_some(taken)
    }

    /// Returns the number of ids that were dropped because the queue was full.
    pub(crate) fn dropped(&self) -> u64 {
        lock(&self.content).dropped
    }

    /// Closes the queue: [`Self::take`] returns `None` after the last id, which ends the thread
    /// that persists the ids.
    pub(crate) fn close(&self) {
        lock(&self.content).is_closed = true;
        self.changed.notify_all();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issuer(id: u128, backend: u64) -> Issuer {
        Issuer {
            id: IdHash(id),
            backend: BackendKey(backend),
        }
    }

    #[test]
    fn last_backend_of_an_id_is_found() {
        let issuers = Issuers::new();
        assert_eq!(issuers.get(IdHash(0)), None);
        assert!(issuers.put(issuer(0, 5)));
        assert!(!issuers.put(issuer(0, 5)));
        assert!(issuers.put(issuer(0, 6)));
        assert_eq!(issuers.get(IdHash(0)), Some(BackendKey(6)));
        // Two ids that differ only in a bit that selects neither the shard nor the set must not be
        // confused.
        assert_eq!(issuers.get(IdHash(1 << 127)), None);
    }

    #[test]
    fn oldest_id_of_a_full_set_is_replaced() {
        let issuers = Issuers::new();
        let ids = [1_u128, 2, 3, 4, 5].map(|number| number << 64);
        for id in &ids[..4] {
            issuers.put(issuer(*id, 7));
        }
        // The first id is issued again, so the second is the oldest.
        issuers.put(issuer(ids[0], 7));
        issuers.put(issuer(ids[4], 8));
        let known = ids.map(|id| issuers.get(IdHash(id)).map(|key| key.0));
        assert_eq!(known, [Some(7), None, Some(7), Some(7), Some(8)]);
    }

    #[test]
    fn full_queue_drops_ids_and_counts_them() {
        let queue = IssuerQueue::new();
        for id in 0..5000 {
            queue.push(issuer(id, 1));
        }
        assert_eq!(queue.dropped(), 5000 - 4096);
        queue.close();
        assert_eq!(queue.take().map(|taken| taken.len()), Some(4096));
        assert_eq!(queue.take(), None);
    }
}
