//! What this machine is called.

/// `read` gives what the environment says.
pub(crate) fn host_name(read: impl Fn(&str) -> Option<String>) -> Option<String> {
    read("COMPUTERNAME")
}
