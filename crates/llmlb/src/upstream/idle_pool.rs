//! Pool of idle connections to backends. Each worker has its own pool.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Stream;
use crate::backend_id::BackendId;

/// Maximum idle time. uvicorn (vLLM) and llama.cpp close idle connections after five seconds. A shorter
/// time makes it unlikely that a request is sent on a connection that the backend is closing.
const MAX_IDLE: Duration = Duration::from_secs(4);
/// Maximum number of idle connections per backend.
const MAX_PER_BACKEND: usize = 512;

/// The idle connections of one worker, by backend.
#[derive(Debug, Default)]
pub(crate) struct IdlePool(Mutex<Vec<Vec<IdleConnection>>>);

#[derive(Debug)]
struct IdleConnection {
    stream: Stream,
    since: Instant,
}

impl IdlePool {
    /// Takes the most recently used connection to a backend.
    pub(crate) fn take(&self, backend: BackendId) -> Option<Stream> {
        let mut all = self.lock();
        let idle = all.get_mut(usize::from(backend.0))?;
        while let Some(mut last) = idle.pop() {
            if last.since.elapsed() >= MAX_IDLE {
                // The stack is ordered by age. All connections below an expired one are older, so they have
                // expired too.
                idle.clear();
                return None;
            }
            if last.stream.is_reusable() {
                return Some(last.stream);
            }
        }
        None
    }

    /// Adds a connection for the next request. If the pool is full, the connection is closed.
    pub(crate) fn keep(&self, backend: BackendId, stream: Stream) {
        let mut all = self.lock();
        if all.len() <= usize::from(backend.0) {
            all.resize_with(usize::from(backend.0) + 1, Vec::new);
        }
        let idle = &mut all[usize::from(backend.0)];
        if idle.len() < MAX_PER_BACKEND {
            idle.push(IdleConnection {
                stream,
                since: Instant::now(),
            });
        }
    }

    /// Closes connections that exceed the maximum idle time. Returns the number of idle connections
    /// that stay open.
    pub(crate) fn sweep(&self) -> usize {
        let mut all = self.lock();
        for idle in all.iter_mut() {
            let old = idle.partition_point(|one| one.since.elapsed() >= MAX_IDLE);
            idle.drain(..old);
            if idle.is_empty() {
                idle.shrink_to_fit();
            }
        }
        all.iter().map(Vec::len).sum()
    }

    /// Closes the oldest idle connection of one backend. Returns `false` if the pool is empty.
    pub(crate) fn close_one(&self) -> bool {
        let mut all = self.lock();
        let idle = all.iter_mut().find(|idle| !idle.is_empty());
        idle.is_some_and(|idle| {
            idle.remove(0);
            true
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<IdleConnection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
