//! Idle connections to backends, kept for the next request. Each worker has its own.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Stream;
use crate::backend_id::BackendId;

/// Shorter than the five seconds after which uvicorn (vLLM) and llama.cpp close idle connections,
/// so that a request seldom meets a connection that is just being closed.
const KEPT_FOR: Duration = Duration::from_secs(4);
/// How many are kept for each backend.
const MOST: usize = 512;

/// The idle connections of one worker, by backend.
#[derive(Debug, Default)]
pub(crate) struct IdlePool(Mutex<Vec<Vec<Parked>>>);

#[derive(Debug)]
struct Parked {
    stream: Stream,
    since: Instant,
}

impl IdlePool {
    /// The one that was used last, if there is one.
    pub(crate) fn take(&self, backend: BackendId) -> Option<Stream> {
        let mut all = self.lock();
        let parked = all.get_mut(usize::from(backend.0))?;
        while let Some(mut last) = parked.pop() {
            if last.since.elapsed() >= KEPT_FOR {
                // Those below it are older.
                parked.clear();
                return None;
            }
            if last.stream.is_reusable() {
                return Some(last.stream);
            }
        }
        None
    }

    /// Keeps a connection for the next request.
    pub(crate) fn keep(&self, backend: BackendId, stream: Stream) {
        let mut all = self.lock();
        if all.len() <= usize::from(backend.0) {
            all.resize_with(usize::from(backend.0) + 1, Vec::new);
        }
        let parked = &mut all[usize::from(backend.0)];
        if parked.len() < MOST {
            parked.push(Parked {
                stream,
                since: Instant::now(),
            });
        }
    }

    /// Closes those that nobody wanted for long enough. Returns how many are left.
    pub(crate) fn sweep(&self) -> usize {
        let mut all = self.lock();
        for parked in all.iter_mut() {
            let old = parked.partition_point(|one| one.since.elapsed() >= KEPT_FOR);
            parked.drain(..old);
            if parked.is_empty() {
                parked.shrink_to_fit();
            }
        }
        all.iter().map(Vec::len).sum()
    }

    /// Closes the oldest idle connection of one backend. Returns false if there is no idle one.
    pub(crate) fn close_one(&self) -> bool {
        let mut all = self.lock();
        let parked = all.iter_mut().find(|parked| !parked.is_empty());
        parked.is_some_and(|parked| {
            parked.remove(0);
            true
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<Parked>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
