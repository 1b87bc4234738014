//! How many connections this process may have.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files to what the administrator allows: every stream needs two.
pub(crate) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
}
