//! Host name of this machine, for lock records and for `Host`.

/// Returns the computer's name. Lock records of the staging directory contain the name, and a
/// private server accepts it in `Host`. `read` returns the value of an environment variable.
pub(crate) fn host_name(read: impl Fn(&str) -> Option<String>) -> Option<String> {
    read("COMPUTERNAME")
}
