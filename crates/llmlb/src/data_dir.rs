//! Where usage data lies.

use std::path::{Path, PathBuf};

use crate::config::env;
use crate::sys;

/// The directory that was asked for, else the one in the environment, else the user's own. `None`:
/// this user has none. What a demo makes up has a place of its own: it is nobody's usage.
pub(crate) fn find(asked: Option<&Path>, demo: bool) -> Option<PathBuf> {
    let name = if demo { "llmlb-demo" } else { "llmlb" };
    asked
        .map(Path::to_owned)
        .or_else(env::data_dir)
        .or_else(|| Some(sys::data_dir(env::directory)?.join(name)))
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
}
