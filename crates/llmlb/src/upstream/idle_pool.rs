//! Pool of idle connections to backends. Each worker has its own, so that workers do not contend
//! for a lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foldhash::fast::FixedState;

use super::Stream;
use crate::backend_id::BackendId;

/// Maximum time for which an idle connection is kept. uvicorn (vLLM) and llama.cpp close idle
/// connections after five seconds. A shorter time makes it unlikely that a request is sent on a
/// connection that the backend is closing.
const MAX_IDLE: Duration = Duration::from_secs(4);
const MAX_PER_BACKEND: usize = 512;

#[derive(Debug, Default)]
pub(crate) struct IdlePool(Mutex<Connections>);

type Connections = HashMap<BackendId, Vec<IdleConnection>, FixedState>;

#[derive(Debug)]
struct IdleConnection {
    stream: Stream,
    since: Instant,
}

impl IdlePool {
    /// Takes the most recently used connection to a backend, which the backend is least likely to
    /// have closed.
    pub(crate) fn take(&self, backend: BackendId) -> Option<Stream> {
        let mut all = self.lock();
        let idle = all.get_mut(&backend)?;
        while let Some(mut last) = idle.pop() {
            if last.since.elapsed() >= MAX_IDLE {
                // The stack is ordered by age, so all connections below an expired one have
                // expired. Drop them together.
                idle.clear();
                return None;
            }
            if last.stream.is_reusable() {
                return Some(last.stream);
            }
        }
        None
    }

    /// Adds a connection for the next request to its backend. If the pool is full, the connection
    /// is closed.
    pub(crate) fn keep(&self, backend: BackendId, stream: Stream) {
        let mut all = self.lock();
        let idle = all.entry(backend).or_default();
        if idle.len() < MAX_PER_BACKEND {
            idle.push(IdleConnection {
                stream,
                since: Instant::now(),
            });
        }
    }

    /// Closes connections that exceed the maximum idle time. Returns the number of those that stay
    /// open.
    pub(crate) fn sweep(&self) -> usize {
        let mut all = self.lock();
        all.retain(|_, idle| {
            let old = idle.partition_point(|one| one.since.elapsed() >= MAX_IDLE);
            idle.drain(..old);
            !idle.is_empty()
        });
        all.values().map(Vec::len).sum()
    }

    /// Closes the oldest idle connection of one backend, so that a new connection stays within the
    /// limit. Returns `false` if the pool is empty.
    pub(crate) fn close_one(&self) -> bool {
        let mut all = self.lock();
        let idle = all.values_mut().find(|idle| !idle.is_empty());
        idle.is_some_and(|idle| {
            idle.remove(0);
            true
        })
    }

    /// Closes all idle connections of a backend that a reload has removed.
    pub(crate) fn close(&self, backend: BackendId) {
        let closed = self.lock().remove(&backend);
        drop(closed); // Outside of the lock.
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
