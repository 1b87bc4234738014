//! Rings of finished requests: one for each worker.

use std::collections::VecDeque;
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
    served: Ring,
    failed: Ring,
}

/// The last requests, oldest first.
#[derive(Debug)]
struct Ring {
    requests: VecDeque<FinishedRequest>,
    max: usize,
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
            let last = rings.failed.requests.iter().rev().take(max);
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
        self.served.requests.iter().chain(&self.failed.requests)
    }
}

impl Ring {
    fn new(max: usize) -> Self {
        let requests = VecDeque::new();
        Self { requests, max }
    }

    fn push(&mut self, request: FinishedRequest) {
        if self.requests.len() >= self.max {
            self.requests.pop_front();
        }
        self.requests.push_back(request);
    }
}

fn lock(rings: &Mutex<Rings>) -> MutexGuard<'_, Rings> {
    rings.lock().unwrap_or_else(PoisonError::into_inner)
}
