//! Host name of this machine.

/// Returns the computer's name. `read` returns the value of an environment variable.
pub(crate) fn host_name(read: impl Fn(&str) -> Option<String>) -> Option<String> {
    read("COMPUTERNAME")
}
