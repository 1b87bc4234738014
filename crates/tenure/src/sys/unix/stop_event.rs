//! On Unix, owners are asked to stop by a signal; there is no event.

use std::io;
use std::time::Duration;

/// Never set.
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
