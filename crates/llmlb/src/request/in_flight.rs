//! Counts the requests in flight and in total, for `/status` and for draining: a connection with
//! requests in flight is not closed before they end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of the requests in flight and in total, of the whole server or of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    total: AtomicU64,
}

/// Request in flight, which the counters include until this value is dropped.
#[derive(Debug)]
pub(crate) struct InFlight([Counter; 2]);

impl InFlight {
    /// Counts a request as in flight in two counters: that of the whole server and that of its
    /// client connection.
    pub(crate) fn new(server: &Counter, connection: &Counter) -> Self {
        let counters = [server.clone(), connection.clone()];
        for counter in &counters {
            counter.0.now.fetch_add(1, Ordering::Relaxed);
            counter.0.total.fetch_add(1, Ordering::Relaxed);
        }
        Self(counters)
    }
}

impl Counter {
    pub(crate) fn now(&self) -> usize {
        self.0.now.load(Ordering::Relaxed)
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.total.load(Ordering::Relaxed)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for counter in &self.0 {
            counter.0.now.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
