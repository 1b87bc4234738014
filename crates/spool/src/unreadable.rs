//! Entries that cannot be read now. Each is logged when that begins and when it ends.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Maximum number of entries that are named; more are counted.
const MOST_NAMED: usize = 100;

/// The entries that were left where they are, from one consolidation to the next.
#[derive(Debug, Default)]
pub(crate) struct UnreadableEntries {
    named: BTreeMap<PathBuf, Error>,
    /// In this round, named or not.
    count: usize,
}

impl UnreadableEntries {
    /// A new round begins: what is gone by now is forgotten.
    pub(crate) fn begin(&mut self, is_there: impl Fn(&Path) -> bool) {
        self.count = 0;
        self.named.retain(|path, _| {
            let stays = is_there(path);
            if !stays {
                tracing::info!(path = %path.display(), "an unreadable entry is gone");
            }
            stays
        });
    }

    /// An entry cannot be read.
    pub(crate) fn add(&mut self, error: Error) {
        self.count += 1;
        let path = error.path().to_owned();
        if !self.named.contains_key(&path) && self.named.len() < MOST_NAMED {
            tracing::warn!(%error, "an entry is left out until it can be read");
            self.named.insert(path, error);
        }
    }

    /// An entry could be read.
    pub(crate) fn remove(&mut self, path: &Path) {
        if !self.named.is_empty() && self.named.remove(path).is_some() {
            tracing::info!(path = %path.display(), "an entry can be read again");
        }
    }

    /// How many there were in this round.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Why each cannot be read; not more than so many.
    pub(crate) fn errors(&self) -> Vec<Error> {
        self.named.values().cloned().collect()
    }
}
