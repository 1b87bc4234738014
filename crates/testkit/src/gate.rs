//! A switch with which a test decides when a scripted server continues, so that the order of events
//! does not depend on time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::wait::DEADLINE;

/// Switch that starts closed and stays open once opened. Clones share one switch.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    /// Returns a closed gate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens the gate for every thread that waits now or later.
    pub fn open(&self) {
        let (is_open, changed) = &*self.0;
        *is_open.lock().unwrap_or_else(PoisonError::into_inner) = true;
        changed.notify_all();
    }

    /// Blocks until the gate is open, for at most [`DEADLINE`].
    pub fn wait(&self) {
        let (is_open, changed) = &*self.0;
        let guard = is_open.lock().unwrap_or_else(PoisonError::into_inner);
        // A timeout is ignored: after the deadline the script continues, so that no thread blocks
        // forever after a test has failed.
        drop(changed.wait_timeout_while(guard, DEADLINE, |is_open| !*is_open));
    }
}
