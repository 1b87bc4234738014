//! Host name of this machine, for lock records and for `Host`.

/// Returns the kernel's host name, by default the pod's name in a Kubernetes pod. Lock records of
/// the staging directory contain the name, and a private server accepts it in `Host`.
pub(crate) fn host_name(_read: impl Fn(&str) -> Option<String>) -> Option<String> {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_str().ok()?;
    (!name.is_empty()).then(|| name.to_owned())
}
