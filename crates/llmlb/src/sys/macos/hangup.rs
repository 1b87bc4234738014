//! Detects if the program was started with SIGHUP ignored, which macOS does not show.

/// Returns false: macOS does not show ignored signals without unsafe code. So a server that `nohup`
/// started on a terminal drains when the terminal is closed.
pub(crate) fn is_hangup_ignored() -> bool {
    false
}
