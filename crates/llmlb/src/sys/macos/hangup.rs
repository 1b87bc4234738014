//! Disposition of SIGHUP at the start of the program.

/// Returns false: this system does not show ignored signals without unsafe code. A server that `nohup` started
/// on a terminal therefore drains when the terminal is closed.
pub(crate) fn is_hangup_ignored() -> bool {
    false
}
