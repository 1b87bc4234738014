//! Stand-in for the stop event of Windows. On Unix, `stop` sends a signal.

use std::io;
use std::time::Duration;

/// An event that is never set.
#[derive(Debug)]
pub(crate) struct StopEvent;

impl StopEvent {
    pub(crate) fn create(_token: u64) -> io::Result<Self> {
        Ok(Self)
    }

    pub(crate) fn name(&self) -> Option<&str> {
        None
    }

    pub(crate) fn wait(&self, limit: Duration) -> bool {
        std::thread::sleep(limit);
        false
    }
}
