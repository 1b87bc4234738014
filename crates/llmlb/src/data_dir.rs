//! Where usage data lies.

use std::path::{Path, PathBuf};

use crate::config::env;
use crate::sys;

/// The directory that was asked for, else the one in the environment, else the user's own. `None`:
/// this user has none.
pub(crate) fn find(asked: Option<&Path>) -> Option<PathBuf> {
    asked
        .map(Path::to_owned)
        .or_else(env::data_dir)
        .or_else(|| Some(sys::data_dir(env::directory)?.join("llmlb")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_comes_first() {
        let asked = Path::new("here");
        assert_eq!(find(Some(asked)).as_deref(), Some(asked));
    }
}
