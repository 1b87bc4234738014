//! Entries that cannot be read now. Each is logged when it becomes unreadable and when it is
//! readable again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Maximum number of unreadable entries that are logged and returned by name. Further entries are
/// only counted.
const MAX_NAMED: usize = 100;

/// Unreadable entries, which stay in the staging directory and are tried again in every run.
#[derive(Debug, Default)]
pub(crate) struct UnreadableEntries {
    named: BTreeMap<PathBuf, Error>,
    /// Number of entries that could not be read since the staging directory was last listed.
    /// Includes entries beyond the 100 in `named`.
    count: usize,
}

impl UnreadableEntries {
    /// Sets the count to 0 before the staging directory is listed again, and forgets entries whose
    /// files no longer exist.
    pub(crate) fn begin(&mut self, is_there: impl Fn(&Path) -> bool) {
        self.count = 0;
        self.named.retain(|path, _| {
            let stays = is_there(path);
            if !stays {
                tracing::info!(path = %path.display(), "entry that could not be read no longer exists");
            }
            stays
        });
    }

    /// Adds an entry that cannot be read. The path of the error is that of the entry.
    pub(crate) fn add(&mut self, error: Error) {
        self.count += 1;
        let path = error.path().to_owned();
        if !self.named.contains_key(&path) && self.named.len() < MAX_NAMED {
            tracing::warn!(%error, "entry is not consolidated until it can be read");
            self.named.insert(path, error);
        }
    }

    /// Takes an entry off the list of unreadable entries, because it could be read. Its file is not
    /// touched.
    pub(crate) fn remove(&mut self, path: &Path) {
        if !self.named.is_empty() && self.named.remove(path).is_some() {
            tracing::info!(path = %path.display(), "entry can be read again");
        }
    }

    /// Returns the number of entries that could not be read since the staging directory was last
    /// listed.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns the errors of the first 100 unreadable entries. Further entries are only counted.
    pub(crate) fn errors(&self) -> Vec<Error> {
        self.named.values().cloned().collect()
    }
}
