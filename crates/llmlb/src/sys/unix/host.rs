//! Host name of this machine.

/// Returns the kernel's host name. In a Kubernetes pod it is the name of the pod.
pub(crate) fn host_name(_read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}
