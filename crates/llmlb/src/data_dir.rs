//! Choice of the data directory, which holds usage records and keys.

use std::path::{Path, PathBuf};

use crate::config::env;
use crate::sys;

/// Returns the data directory: the configured one (`usage.data_dir`, `LLMLB_DATA_DIR`), else the
/// user's own; `None` if this user has no home directory.
///
/// The demo always gets a directory of its own, so that its records never mix with real usage.
pub(crate) fn find(configured: Option<&Path>, demo: bool) -> Option<PathBuf> {
    let configured = configured.map(|dir| for_demo(dir, demo));
    configured.or_else(|| {
        let name = if demo { "llmlb-demo" } else { "llmlb" };
        Some(sys::data_dir(env::directory)?.join(name))
    })
}

/// Returns the directory itself, or its subdirectory `demo` if the server runs the demo, whose
/// records must not mix with real usage.
fn for_demo(configured: &Path, demo: bool) -> PathBuf {
    if demo {
        configured.join("demo")
    } else {
        configured.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_uses_a_subdirectory_of_the_configured_directory() {
        let dir = Path::new("/var/lib/llmlb");
        assert_eq!(find(Some(dir), false).as_deref(), Some(dir));
        assert_eq!(find(Some(dir), true), Some(dir.join("demo")));
    }
}
