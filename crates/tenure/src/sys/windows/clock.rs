//! A clock that also counts while the machine is suspended.

use std::time::Duration;

use windows_sys::Win32::System::SystemInformation::GetTickCount64;

/// Time since the system was started, including the time in which it was suspended. Setting the wall
/// clock does not change it.
pub(crate) fn boot_time() -> Duration {
    // SAFETY: the function takes no arguments and only reads a counter.
    Duration::from_millis(unsafe { GetTickCount64() })
}
