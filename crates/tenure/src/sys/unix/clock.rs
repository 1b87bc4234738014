//! A clock that also counts while the machine is suspended.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Time since an arbitrary point before this process started, including the time in which the
/// machine was suspended. Setting the wall clock does not change it.
pub(crate) fn boot_time() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = ClockId::Boottime;
    // On macOS the monotonic clock also counts while the machine is asleep. Linux has a separate
    // clock for that.
    #[cfg(not(target_os = "linux"))]
    let clock = ClockId::Monotonic;
    let now = clock_gettime(clock);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap_or(0),
        u32::try_from(now.tv_nsec).unwrap_or(0),
    )
}
