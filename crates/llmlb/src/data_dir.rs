//! Choice of the data directory, which holds usage records.

use std::path::{Path, PathBuf};

use crate::config::env;
use crate::sys;

/// Returns the data directory: the one named by `--data`, else by `LLMLB_DATA_DIR`, else the user's
/// own. `None`: this user has no home directory.
///
/// The demo always gets a directory of its own, so that its records never mix with real usage.
pub(crate) fn find(named: Option<&Path>, demo: bool) -> Option<PathBuf> {
    let in_environment = || Some(for_demo(env::data_dir()?, demo));
    let of_user = || {
        let name = if demo { "llmlb-demo" } else { "llmlb" };
        Some(sys::data_dir(env::directory)?.join(name))
    };
    named
        .map(Path::to_owned)
        .or_else(in_environment)
        .or_else(of_user)
}

/// Returns the directory itself, or for the demo its subdirectory `demo`.
fn for_demo(named: PathBuf, demo: bool) -> PathBuf {
    if demo { named.join("demo") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_directory_takes_precedence() {
        let named = Path::new("here");
        for demo in [false, true] {
            assert_eq!(find(Some(named), demo).as_deref(), Some(named));
        }
    }

    #[test]
    fn demo_uses_a_subdirectory_of_the_environments_directory() {
        let named = || PathBuf::from("/var/lib/llmlb");
        assert_eq!(for_demo(named(), false), named());
        assert_eq!(for_demo(named(), true), named().join("demo"));
    }
}
