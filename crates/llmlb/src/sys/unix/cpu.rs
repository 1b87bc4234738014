//! CPU time of this process.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time that all threads of this process have used.
pub(crate) fn cpu_time() -> Option<Duration> {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).ok()
}
