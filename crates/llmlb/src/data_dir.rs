//! Where usage data lies.

use std::path::{Path, PathBuf};

use crate::config::env;
use crate::sys;

/// The directory that was asked for, else the one in the environment, else the user's own. `None`:
/// this user has none. The demo's records are nobody's usage: they go to a directory of their own,
/// whatever the environment names.
pub(crate) fn find(asked: Option<&Path>, demo: bool) -> Option<PathBuf> {
    let in_environment = || Some(of_demo(env::data_dir()?, demo));
    let of_user = || {
        let name = if demo { "llmlb-demo" } else { "llmlb" };
        Some(sys::data_dir(env::directory)?.join(name))
    };
    asked
        .map(Path::to_owned)
        .or_else(in_environment)
        .or_else(of_user)
}

/// The directory that the environment names, or the demo's within it.
fn of_demo(named: PathBuf, demo: bool) -> PathBuf {
    if demo { named.join("demo") } else { named }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_comes_first() {
        let asked = Path::new("here");
        for demo in [false, true] {
            assert_eq!(find(Some(asked), demo).as_deref(), Some(asked));
        }
    }

    #[test]
    fn demo_has_its_own_directory_in_the_one_that_the_environment_names() {
        let named = || PathBuf::from("/var/lib/llmlb");
        assert_eq!(of_demo(named(), false), named());
        assert_eq!(of_demo(named(), true), named().join("demo"));
    }
}
