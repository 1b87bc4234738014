//! How many requests are being served.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counter(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    now: AtomicUsize,
    ever: AtomicU64,
}

/// One request that is being served, until the last byte of its answer is handed on.
#[derive(Debug)]
pub(crate) struct InFlight([Counter; 2]);

impl InFlight {
    /// Counts a request in both.
    pub(crate) fn new(server: &Counter, connection: &Counter) -> Self {
        let counters = [server.clone(), connection.clone()];
        for counter in &counters {
            counter.0.now.fetch_add(1, Ordering::Relaxed);
            counter.0.ever.fetch_add(1, Ordering::Relaxed);
        }
        Self(counters)
    }
}

impl Counter {
    pub(crate) fn now(&self) -> usize {
        self.0.now.load(Ordering::Relaxed)
    }

    pub(crate) fn ever(&self) -> u64 {
        self.0.ever.load(Ordering::Relaxed)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        for counter in &self.0 {
            counter.0.now.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
