//! Rings of finished requests: one for each worker.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::finished::FinishedRequest;
use crate::balance::Table;

/// Maximum number of successful requests of a server.
const MAX_SERVED: usize = 2048;
/// Maximum number of failed requests of a server.
const MAX_FAILED: usize = 512;
/// Maximum number of requests with one id in an answer.
const MAX_FOUND: usize = 10;

/// Requests that a server has finished recently.
#[derive(Debug)]
pub(crate) struct Recent {
    shards: Vec<Arc<RecentShard>>,
}

/// Requests that one worker has finished recently.
#[derive(Debug)]
pub(crate) struct RecentShard {
    rings: Mutex<Rings>,
}

#[derive(Debug)]
struct Rings {
    served: Ring<FinishedRequest>,
    failed: Ring<FinishedRequest>,
}

/// The last values, at most as many as the capacity with which the ring was created.
#[derive(Debug)]
struct Ring<T> {
    values: Vec<T>,
    max: usize,
    /// Place of the oldest value in a full ring.
    oldest: usize,
}

impl Recent {
    /// Returns rings for this number of workers.
    pub(crate) fn new(workers: usize) -> Self {
        let workers = workers.max(1);
        let shard = || {
            let served = Ring::new((MAX_SERVED / workers).max(16));
            let failed = Ring::new((MAX_FAILED / workers).max(16));
            let rings = Mutex::new(Rings { served, failed });
            Arc::new(RecentShard { rings })
        };
        Self {
            shards: (0..workers).map(|_| shard()).collect(),
        }
    }

    /// Returns the rings of the worker with this number.
    pub(crate) fn shard(&self, worker: usize) -> Arc<RecentShard> {
        // A server has at least one worker, so there is at least one shard.
        Arc::clone(&self.shards[worker % self.shards.len()])
    }

    /// Returns the explanations of the requests with this id, the latest one first. The id is an
    /// `x-request-id`, which clients may use again, or the id of a usage record.
    pub(crate) fn find(&self, id: &str, table: &Table) -> Vec<Value> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let rings = lock(&shard.rings);
            let of_shard = rings.all().filter(|request| request.has_id(id));
            found.extend(of_shard.map(|request| (request.started, request.explanation(table))));
        }
        latest(found, MAX_FOUND)
    }

    /// Returns the last failed requests, the latest one first, each in the form of the dashboard's errors.
    pub(crate) fn errors(&self, max: usize) -> Vec<Value> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let rings = lock(&shard.rings);
            let last = rings.failed.latest_first().take(max);
            found.extend(last.map(|request| (request.started, request.error())));
        }
        latest(found, max)
    }
}

fn latest<T: Ord>(mut found: Vec<(T, Value)>, max: usize) -> Vec<Value> {
    found.sort_by(|(one, _), (other, _)| other.cmp(one));
    found.truncate(max);
    found.into_iter().map(|(_, request)| request).collect()
}

impl RecentShard {
    /// Keeps a request in place of the oldest one.
    pub(crate) fn add(&self, mut request: FinishedRequest) {
        request.shorten();
        let mut rings = lock(&self.rings);
        if request.is_failed() {
            rings.failed.push(request);
        } else {
            rings.served.push(request);
        }
    }
}

impl Rings {
    fn all(&self) -> impl Iterator<Item = &FinishedRequest> {
        self.served.values.iter().chain(&self.failed.values)
    }
}

impl<T> Ring<T> {
    fn new(max: usize) -> Self {
        Self {
            // The memory is reserved at once, so that no request waits while values are moved. The system
            // provides it as values are written.
            values: Vec::with_capacity(max),
            max,
            oldest: 0,
        }
    }

    /// Adds a value, in place of the oldest one if the ring is full.
    fn push(&mut self, value: T) {
        if self.values.len() < self.max {
            self.values.push(value);
        } else {
            self.values[self.oldest] = value;
            self.oldest = (self.oldest + 1) % self.max;
        }
    }

    fn latest_first(&self) -> impl Iterator<Item = &T> {
        let (latest, oldest) = self.values.split_at(self.oldest);
        latest.iter().rev().chain(oldest.iter().rev())
    }
}

fn lock(rings: &Mutex<Rings>) -> MutexGuard<'_, Rings> {
    rings.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_ring_replaces_its_oldest_values() {
        let mut ring = Ring::new(3);
        for (value, expected) in [
            (1, &[1][..]),
            (2, &[2, 1]),
            (3, &[3, 2, 1]),
            (4, &[4, 3, 2]),
            (5, &[5, 4, 3]),
            (6, &[6, 5, 4]),
            (7, &[7, 6, 5]),
        ] {
            ring.push(value);
            let found: Vec<_> = ring.latest_first().copied().collect();
            assert_eq!(found, expected);
            assert_eq!(ring.values.capacity(), 3);
        }
    }
}
