//! Files that the reserve holds because the disk was too full for them, and notes beside them.
//!
//! A change writes the whole content into the area that is not in use, then its head, then syncs.
//! A crash in between leaves the other area as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Seek as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{OpenReserve, PAGE, Reserve, ReserveLayout, ReserveUse};
use crate::disk::Disk;
use crate::journal::{decode, encode};

const VERSION: u32 = 1;

/// The content of the reserve.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReserveContents {
    sequence: u64,
    /// By directory and name: `spool/{batch}.json`.
    files: BTreeMap<String, Vec<u8>>,
    /// Those among them that are batches.
    batches: BTreeSet<String>,
    notes: BTreeMap<String, Value>,
}

/// One checked line at the start of a page.
#[derive(Debug, Serialize, Deserialize)]
struct ReserveHead {
    reserve: u32,
    sequence: u64,
    /// Length of the index, which is the first part of the area.
    index: u64,
    length: u64,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
struct ReserveIndex {
    /// Names and lengths, in the order of the bytes that follow.
    files: Vec<(String, u64)>,
    batches: BTreeSet<String>,
    notes: BTreeMap<String, Value>,
}

impl ReserveContents {
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.notes.is_empty()
    }

    pub(crate) fn file(&self, key: &str) -> Option<&[u8]> {
        self.files.get(key).map(Vec::as_slice)
    }

    /// `true`: there was such a file.
    fn insert(&mut self, key: &str, bytes: &[u8]) -> bool {
        let before = self.files.insert(key.to_owned(), bytes.to_vec());
        before.is_some()
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Vec<u8>> {
        self.batches.remove(key);
        self.files.remove(key)
    }

    /// Keys of the files of a directory.
    pub(crate) fn keys<'a>(&'a self, dir: &'a str) -> impl Iterator<Item = &'a str> {
        let is_in = move |key: &&String| {
            key.strip_prefix(dir)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        self.files.keys().filter(is_in).map(String::as_str)
    }

    /// A note by its name, or the default if there is none.
    pub(crate) fn note<T: DeserializeOwned + Default>(&self, name: &str) -> io::Result<T> {
        match self.notes.get(name) {
            None => Ok(T::default()),
            Some(value) => T::deserialize(value).map_err(io::Error::other),
        }
    }

    pub(crate) fn has_note(&self, name: &str) -> bool {
        self.notes.contains_key(name)
    }

    pub(crate) fn set_note<T: Serialize>(&mut self, name: &str, note: &T) {
        // Notes are made of texts and numbers: this does not fail.
        let value = serde_json::to_value(note).unwrap_or_default();
        self.notes.insert(name.to_owned(), value);
    }

    pub(crate) fn remove_note(&mut self, name: &str) {
        self.notes.remove(name);
    }
}

/// Content that was read, with the heads it belongs to.
struct CachedContents {
    process: usize,
    path: PathBuf,
    heads: Vec<u8>,
    held: Arc<ReserveContents>,
}

/// The last content that was read. Reading the heads again tells if it has changed.
static LAST: Mutex<Option<CachedContents>> = Mutex::new(None);

impl Reserve {
    /// The content; empty if there is no reserve.
    pub(crate) fn read(&self, disk: &dyn Disk) -> io::Result<Arc<ReserveContents>> {
        let file = match disk.open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Arc::default()),
            file => file?,
        };
        let Some(layout) = ReserveLayout::new(file.metadata()?.len()) else {
            return Ok(Arc::default());
        };
        let mut heads = Vec::new();
        // A writer may overwrite an area while it is read: then there are new heads.
        for _ in 0..100 {
            heads = read_at(disk, &file, 0, 2 * PAGE)?;
            let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(seen) = &*last
                && seen.process == disk.process()
                && seen.path == self.path
                && seen.heads == heads
            {
                return Ok(Arc::clone(&seen.held));
            }
            let held = Arc::new(read_areas(disk, &file, layout, &heads)?);
            if read_at(disk, &file, 0, 2 * PAGE)? == heads {
                // After a power failure the newest head may be there without its area. A writer that
                // repeats that change writes the same head again, with another content behind it.
                let is_newest = |head: &ReserveHead| head.sequence <= held.sequence;
                if !heads_in(&heads).iter().all(is_newest) {
                    return Ok(held);
                }
                *last = Some(CachedContents {
                    process: disk.process(),
                    path: self.path.clone(),
                    heads,
                    held: Arc::clone(&held),
                });
                return Ok(held);
            }
        }
        Ok(Arc::new(read_areas(disk, &file, layout, &heads)?))
    }

    /// Changes the content. On the disk when this returns.
    pub(crate) fn change<T>(
        &self,
        disk: &dyn Disk,
        edit: impl FnOnce(&mut ReserveContents) -> T,
    ) -> io::Result<T> {
        let open = self.open(disk)?;
        let mut held = open.read(disk)?;
        let done = edit(&mut held);
        open.write(disk, &mut held, ReserveUse::Note)?;
        Ok(done)
    }

    /// Stores a file. On the disk when this returns.
    pub(crate) fn hold(
        &self,
        disk: &dyn Disk,
        key: &str,
        bytes: &[u8],
        what: ReserveUse,
    ) -> io::Result<()> {
        let open = self.open(disk)?;
        let mut held = open.read(disk)?;
        let is_only =
            what == ReserveUse::MoreBatches && !held.batches.iter().any(|other| other != key);
        let what = if is_only { ReserveUse::Batch } else { what };
        if what <= ReserveUse::Batch {
            held.batches.insert(key.to_owned());
        }
        let what = if held.insert(key, bytes) {
            what.max(ReserveUse::SameFile)
        } else {
            what
        };
        open.write(disk, &mut held, what)
    }

    /// How many bytes of names and notes fit into the reserve.
    pub(crate) fn room_for_notes(&self, disk: &dyn Disk) -> io::Result<u64> {
        Ok(self.open(disk)?.layout.area / 2)
    }
}

impl OpenReserve {
    pub(crate) fn read(&self, disk: &dyn Disk) -> io::Result<ReserveContents> {
        let heads = read_at(disk, &self.file, 0, 2 * PAGE)?;
        read_areas(disk, &self.file, self.layout, &heads)
    }

    /// Replaces the content. On the disk when this returns.
    pub(crate) fn write(
        &self,
        disk: &dyn Disk,
        held: &mut ReserveContents,
        what: ReserveUse,
    ) -> io::Result<()> {
        let index = ReserveIndex {
            files: (held.files.iter())
                .map(|(key, bytes)| (key.clone(), bytes.len() as u64))
                .collect(),
            batches: held.batches.clone(),
            notes: held.notes.clone(),
        };
        let mut content = serde_json::to_vec(&index).map_err(io::Error::other)?;
        let index = content.len() as u64;
        held.files
            .values()
            .for_each(|bytes| content.extend_from_slice(bytes));
        if content.len() as u64 > self.layout.most(what) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let sequence = held.sequence + 1;
        let head = ReserveHead {
            reserve: VERSION,
            sequence,
            index,
            length: content.len() as u64,
            checksum: crc32fast::hash(&content),
        };
        let head_at = ReserveLayout::head_at(sequence);
        let (file, area_at) = (&self.file, self.layout.area_at(sequence));
        let written = (disk.write_at(file, area_at, &content))
            .and_then(|()| disk.write_at(file, head_at, &encode(&head)))
            .and_then(|()| disk.sync(file));
        if written.is_err() {
            // The area may be readable now and gone after a power failure. It must not count: the
            // next change would overwrite the one that is on the disk.
            let _ = disk.write_at(file, head_at, b"\n");
        }
        written?;
        held.sequence = sequence;
        Ok(())
    }
}

/// The content that counts: that of the head with the highest sequence number whose area is intact.
fn read_areas(
    disk: &dyn Disk,
    file: &File,
    layout: ReserveLayout,
    heads: &[u8],
) -> io::Result<ReserveContents> {
    let mut found = heads_in(heads);
    found.sort_by_key(|head| std::cmp::Reverse(head.sequence));
    if let Some(newer) = found.iter().find(|head| head.reserve > VERSION) {
        let what = format!(
            "its version is {}, and this program knows up to {VERSION}",
            newer.reserve
        );
        return Err(io::Error::other(what));
    }
    for head in &found {
        if head.length > layout.area {
            continue;
        }
        let content = read_at(disk, file, layout.area_at(head.sequence), head.length)?;
        if crc32fast::hash(&content) == head.checksum
            && let Some(held) = parse(head, &content)
        {
            return Ok(held);
        }
    }
    Ok(ReserveContents {
        sequence: found.first().map_or(0, |head| head.sequence),
        ..ReserveContents::default()
    })
}

/// Heads that are whole.
fn heads_in(pages: &[u8]) -> Vec<ReserveHead> {
    let pages = pages.chunks(usize::try_from(PAGE).unwrap_or(usize::MAX));
    pages.filter_map(read_head).collect()
}

fn read_head(page: &[u8]) -> Option<ReserveHead> {
    let end = page.iter().position(|byte| *byte == b'\n')?;
    decode::<ReserveHead>(&page[..=end]).ok()
}

fn parse(head: &ReserveHead, content: &[u8]) -> Option<ReserveContents> {
    let (index, mut rest) = content.split_at_checked(usize::try_from(head.index).ok()?)?;
    let index: ReserveIndex = serde_json::from_slice(index).ok()?;
    let mut files = BTreeMap::new();
    for (key, length) in index.files {
        let (bytes, more) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        files.insert(key, bytes.to_vec());
        rest = more;
    }
    Some(ReserveContents {
        sequence: head.sequence,
        files,
        batches: index.batches,
        notes: index.notes,
    })
}

/// Bytes of the file, fewer if it ends before them.
pub(super) fn read_at(
    disk: &dyn Disk,
    mut file: &File,
    at: u64,
    length: u64,
) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(length).map_err(io::Error::other)?];
    file.seek(io::SeekFrom::Start(at))?;
    let mut end = 0;
    while end < bytes.len() {
        match disk.read(file, &mut bytes[end..]) {
            Ok(0) => break,
            Ok(read) => end += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(end);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::RealDisk;

    fn reserve() -> (tempfile::TempDir, Reserve) {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::new(dir.path());
        reserve.create(&RealDisk, 200_000).unwrap();
        (dir, reserve)
    }

    #[test]
    fn content_is_read_as_it_was_written() {
        let (_dir, reserve) = reserve();
        assert!(reserve.read(&RealDisk).unwrap().is_empty());
        for round in 0..3_u8 {
            let key = format!("spool/{round}");
            reserve
                .hold(&RealDisk, &key, &[round; 3], ReserveUse::Batch)
                .unwrap();
            reserve
                .change(&RealDisk, |held| held.set_note("n", &round))
                .unwrap();
            let held = reserve.read(&RealDisk).unwrap();
            assert_eq!(held.file(&key), Some(&[round; 3][..]));
            assert_eq!(held.note::<u8>("n").unwrap(), round);
            assert_eq!(held.keys("spool").count(), usize::from(round) + 1);
        }
        assert_eq!(std::fs::metadata(reserve.path()).unwrap().len(), 200_000);
    }

    #[test]
    fn content_that_does_not_fit_is_refused_and_changes_nothing() {
        let (_dir, reserve) = reserve();
        reserve
            .hold(&RealDisk, "spool/a", b"a", ReserveUse::Batch)
            .unwrap();
        let refused = reserve.hold(&RealDisk, "spool/b", &vec![0; 100_000], ReserveUse::Note);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let held = reserve.read(&RealDisk).unwrap();
        assert_eq!(
            (held.file("spool/a"), held.file("spool/b")),
            (Some(&b"a"[..]), None)
        );
    }

    /// A power failure may keep the head of a change and lose its area. The next process reads that,
    /// and makes the same change again.
    #[test]
    fn change_that_is_repeated_after_a_power_failure_is_read() {
        // Other tests read at the same time, which hides a stale copy in some rounds.
        for _ in 0..50 {
            let (_dir, reserve) = reserve();
            let hold = |text: &[u8]| {
                reserve
                    .hold(&RealDisk, "spool/x", text, ReserveUse::Batch)
                    .unwrap();
            };
            let read = || {
                let held = reserve.read(&RealDisk).unwrap();
                held.file("spool/x").map(<[u8]>::to_vec)
            };
            hold(b"a");
            hold(b"b");
            let open = reserve.open(&RealDisk).unwrap();
            RealDisk
                .write_at(&open.file, open.layout.area_at(2), b"?")
                .unwrap();
            drop(open);
            assert_eq!(read().unwrap(), b"a");
            hold(b"b");
            assert_eq!(read().unwrap(), b"b");
        }
    }

    #[test]
    fn damaged_area_leaves_the_content_before_it() {
        let (_dir, reserve) = reserve();
        for text in [b"a", b"b"] {
            reserve
                .hold(&RealDisk, "spool/x", text, ReserveUse::Batch)
                .unwrap();
        }
        let open = reserve.open(&RealDisk).unwrap();
        RealDisk
            .write_at(&open.file, open.layout.area_at(2), b"?")
            .unwrap();
        assert_eq!(
            open.read(&RealDisk).unwrap().file("spool/x"),
            Some(&b"a"[..])
        );
    }

    #[test]
    fn newer_version_is_refused() {
        let (_dir, reserve) = reserve();
        let head = ReserveHead {
            reserve: VERSION + 1,
            sequence: 1,
            index: 0,
            length: 0,
            checksum: 0,
        };
        let open = reserve.open(&RealDisk).unwrap();
        RealDisk.write_at(&open.file, 0, &encode(&head)).unwrap();
        drop(open);
        let refused = reserve.read(&RealDisk).unwrap_err().to_string();
        assert!(refused.contains("its version is 2"), "{refused}");
    }
}
