//! Names of staged entries, oldest first, listed once for many snapshots.
//!
//! A listing reads the whole directory. One listing for each snapshot would make a backlog of
//! single-record files cost the square of their number.

use std::collections::BinaryHeap;

use crate::data_dir::{DataDir, for_each_file};
use crate::entry::EntryName;
use crate::error::Error;

/// Maximum number of names in memory, of 17 bytes each. The names beyond it come with the next
/// listing, so that memory is bounded for any number of entries.
const PAGE: usize = 1 << 20;

/// Names of the oldest staged entries that the last listing found and no snapshot has yet.
#[derive(Debug, Default)]
pub(crate) struct Backlog {
    /// Names of the entries, with the oldest name last, so that `pop` is cheap.
    names: Vec<EntryName>,
}

impl Backlog {
    /// Reads the staging directory and replaces the names with those of its oldest entries. Returns
    /// the number of all staged entries.
    pub(crate) fn list(&mut self, data: &DataDir) -> Result<usize, Error> {
        self.list_page(data, PAGE)
    }

    fn list_page(&mut self, data: &DataDir, page: usize) -> Result<usize, Error> {
        *self = Self::default();
        let (mut oldest, mut count) = (BinaryHeap::new(), 0);
        for_each_file(&*data.disk, &data.staging, |name| {
            if let Some(name) = EntryName::parse(name.as_ref()) {
                count += 1;
                oldest.push(name);
                if oldest.len() > page {
                    oldest.pop();
                }
            }
        })?;
        self.names = oldest.into_sorted_vec();
        self.names.reverse();
        Ok(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Removes and returns the name of the oldest entry. The entry itself may have been removed or
    /// sealed since the listing, so the caller must check.
    pub(crate) fn pop(&mut self) -> Option<EntryName> {
        self.names.pop()
    }

    /// Puts a name back whose entry did not fit into a snapshot, so that the next snapshot begins
    /// with this entry.
    pub(crate) fn put_back(&mut self, name: EntryName) {
        self.names.push(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    #[test]
    fn listing_returns_the_oldest_names_in_order_and_the_next_listing_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let data = DataDir::new(dir.path());
        data.make(&RealDisk).unwrap();
        let mut staged: Vec<_> = (0..7).map(|_| uuid::Uuid::now_v7()).collect();
        staged.sort_unstable();
        for id in staged.iter().rev() {
            std::fs::write(data.staging.join(format!("{id}.json")), "{}").unwrap();
        }
        let (mut backlog, mut seen) = (Backlog::default(), Vec::new());
        for (left, page) in [(7, 3), (4, 3), (1, 1), (0, 0)] {
            assert_eq!(backlog.list_page(&data, 3).unwrap(), left);
            let before = seen.len();
            while let Some(name) = backlog.pop() {
                std::fs::remove_file(name.path_in(&data.staging)).unwrap();
                seen.push(name.id);
            }
            assert_eq!(seen.len() - before, page);
        }
        assert_eq!(seen, staged);
    }
}
