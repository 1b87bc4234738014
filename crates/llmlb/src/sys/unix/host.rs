//! What this machine is called.

/// The kernel knows; in a pod it is the pod's name.
pub(crate) fn host_name(_read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}
