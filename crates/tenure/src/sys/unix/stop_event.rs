//! Stand-in for the stop event of Windows. On Unix, `stop` sends a signal.

use std::io;
use std::time::Duration;

/// Stop event that is never set. On Unix `stop` sends SIGTERM, so owners need no event, but
/// [`StopRequest`](crate::StopRequest) has the same interface on every system.
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
