//! Contents of the reserve: files that did not fit on the disk, and notes. A note is a JSON value
//! with a name, such as the outcomes of batches that are not in the journal yet.
//!
//! The reserve has two areas for its contents. Each area has a head, a line with the sequence
//! number, the length and the checksum of the area's contents. A change writes the whole contents
//! into the area that is not in use, then the head of that area, and then syncs the file. A crash
//! in between leaves the other area and its head intact.

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

/// Files and notes in the reserve. A note is a JSON value with a name, such as the outcomes of
/// batches that are not in the journal yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct ReserveContents {
    /// Sequence number of the change that wrote these contents. The next change gets the next
    /// number, whose parity selects the area to overwrite.
    sequence: u64,
    /// Bytes of each file, by its key: directory and file name, such as `spool/{batch}.json`.
    files: BTreeMap<String, Vec<u8>>,
    /// Keys, such as `spool/{batch}.json`, of the files that are batches. If the reserve has a
    /// batch, further batches may use less space.
    batches: BTreeSet<String>,
    notes: BTreeMap<String, Value>,
}

/// Head of one of the two areas that store the contents of the reserve: a line with a checksum, on
/// a page of its own. Readers use the head with the highest sequence number whose area is intact,
/// so that an interrupted write has no effect.
#[derive(Debug, Serialize, Deserialize)]
struct ReserveHead {
    /// Version of the format of the reserve file. A newer version is refused.
    reserve: u32,
    sequence: u64,
    /// Length of the index at the start of the area. The bytes of the files follow the index.
    index: u64,
    /// Length of the area's contents, including the index.
    length: u64,
    /// CRC-32 of the area's contents, including the index. An area that does not match was not
    /// written completely, and is ignored.
    checksum: u32,
}

/// Index at the start of an area of the reserve: the keys and lengths of the stored files, and the
/// notes (JSON values by name).
#[derive(Serialize, Deserialize)]
struct ReserveIndex {
    /// Key and length of each file, in the order in which the bytes of the files follow the index.
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

    /// Adds or replaces a file. Returns `true` if a file with this key was replaced.
    fn insert(&mut self, key: &str, bytes: &[u8]) -> bool {
        let before = self.files.insert(key.to_owned(), bytes.to_vec());
        before.is_some()
    }

    pub(crate) fn remove(&mut self, key: &str) -> Option<Vec<u8>> {
        self.batches.remove(key);
        self.files.remove(key)
    }

    /// Returns the keys of the stored files that belong in this directory of the data directory,
    /// such as `spool`.
    pub(crate) fn keys<'a>(&'a self, dir: &'a str) -> impl Iterator<Item = &'a str> {
        let is_in = move |key: &&String| {
            key.strip_prefix(dir)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        self.files.keys().filter(is_in).map(String::as_str)
    }

    /// Returns the note (a JSON value in the reserve) with this name, or the default value of `T`
    /// if the reserve has no such note.
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
        // The conversion cannot fail, because notes consist of strings and numbers.
        let value = serde_json::to_value(note).unwrap_or_default();
        self.notes.insert(name.to_owned(), value);
    }

    pub(crate) fn remove_note(&mut self, name: &str) {
        self.notes.remove(name);
    }
}

/// Contents that were read from a reserve, and the heads of its two areas at that time. Each write
/// changes a head (its sequence number and checksum), so contents with the same heads are current
/// and need not be read again.
struct CachedContents {
    process: usize,
    path: PathBuf,
    heads: Vec<u8>,
    contents: Arc<ReserveContents>,
}

/// Contents of the reserve that this process read last, so that an unchanged reserve is not read
/// again.
static CACHE: Mutex<Option<CachedContents>> = Mutex::new(None);

impl Reserve {
    /// Reads the contents. A missing reserve counts as empty.
    pub(crate) fn read(&self, disk: &dyn Disk) -> io::Result<Arc<ReserveContents>> {
        let file = match disk.open(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Arc::default()),
            file => file?,
        };
        let Some(layout) = ReserveLayout::new(file.metadata()?.len()) else {
            return Ok(Arc::default());
        };
        let mut heads = Vec::new();
        // Read the heads of the two areas before and after the contents. If they differ, another
        // process has overwritten an area meanwhile, and the contents are read again.
        for _ in 0..100 {
            heads = read_at(disk, &file, 0, 2 * PAGE)?;
            let mut cache = CACHE.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(cached) = &*cache
                && cached.process == disk.process()
                && cached.path == self.path
                && cached.heads == heads
            {
                return Ok(Arc::clone(&cached.contents));
            }
            let contents = Arc::new(read_areas(disk, &file, layout, &heads)?);
            if read_at(disk, &file, 0, 2 * PAGE)? == heads {
                // A power failure may keep the newest head and lose the area that it describes, so
                // that the contents above come from the older head. Do not cache them: a repetition
                // of the lost change writes the same head again, and the cache would then return
                // outdated contents.
                let is_newest = |head: &ReserveHead| head.sequence <= contents.sequence;
                if !heads_in(&heads).iter().all(is_newest) {
                    return Ok(contents);
                }
                *cache = Some(CachedContents {
                    process: disk.process(),
                    path: self.path.clone(),
                    heads,
                    contents: Arc::clone(&contents),
                });
                return Ok(contents);
            }
        }
        Ok(Arc::new(read_areas(disk, &file, layout, &heads)?))
    }

    /// Changes the contents of the reserve, and syncs them.
    pub(crate) fn change<T>(
        &self,
        disk: &dyn Disk,
        edit: impl FnOnce(&mut ReserveContents) -> T,
    ) -> io::Result<T> {
        let open = self.open(disk)?;
        let mut contents = open.read(disk)?;
        let done = edit(&mut contents);
        open.write(disk, &mut contents, ReserveUse::Note)?;
        Ok(done)
    }

    /// Stores a file in the reserve, and syncs it.
    pub(crate) fn store(
        &self,
        disk: &dyn Disk,
        key: &str,
        bytes: &[u8],
        purpose: ReserveUse,
    ) -> io::Result<()> {
        let open = self.open(disk)?;
        let mut contents = open.read(disk)?;
        let is_only = purpose == ReserveUse::MoreBatches
            && !contents.batches.iter().any(|other| other != key);
        let purpose = if is_only { ReserveUse::Batch } else { purpose };
        if purpose <= ReserveUse::Batch {
            contents.batches.insert(key.to_owned());
        }
        let purpose = if contents.insert(key, bytes) {
            purpose.max(ReserveUse::SameFile)
        } else {
            purpose
        };
        open.write(disk, &mut contents, purpose)
    }

    /// Returns the number of bytes that notes about batches, such as their names, may use in the
    /// reserve.
    pub(crate) fn room_for_notes(&self, disk: &dyn Disk) -> io::Result<u64> {
        Ok(self.open(disk)?.layout.area / 2)
    }
}

impl OpenReserve {
    pub(crate) fn read(&self, disk: &dyn Disk) -> io::Result<ReserveContents> {
        let heads = read_at(disk, &self.file, 0, 2 * PAGE)?;
        read_areas(disk, &self.file, self.layout, &heads)
    }

    /// Replaces the contents, and syncs them. Fails with [`io::ErrorKind::StorageFull`] if they are
    /// too long for this purpose.
    pub(crate) fn write(
        &self,
        disk: &dyn Disk,
        contents: &mut ReserveContents,
        purpose: ReserveUse,
    ) -> io::Result<()> {
        let index = ReserveIndex {
            files: (contents.files.iter())
                .map(|(key, bytes)| (key.clone(), bytes.len() as u64))
                .collect(),
            batches: contents.batches.clone(),
            notes: contents.notes.clone(),
        };
        let mut area = serde_json::to_vec(&index).map_err(io::Error::other)?;
        let index = area.len() as u64;
        contents
            .files
            .values()
            .for_each(|bytes| area.extend_from_slice(bytes));
        if area.len() as u64 > self.layout.max_contents(purpose) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let sequence = contents.sequence + 1;
        let head = ReserveHead {
            reserve: VERSION,
            sequence,
            index,
            length: area.len() as u64,
            checksum: crc32fast::hash(&area),
        };
        let head_at = ReserveLayout::head_at(sequence);
        let (file, area_at) = (&self.file, self.layout.area_at(sequence));
        let written = (disk.write_at(file, area_at, &area))
            .and_then(|()| disk.write_at(file, head_at, &encode(&head)))
            .and_then(|()| disk.sync(file));
        if written.is_err() {
            // After a failed sync the new area may be readable now and lost after a power failure.
            // Erase its head: otherwise the next change would overwrite the previous area, the only
            // one that is synced.
            let _ = disk.write_at(file, head_at, b"\n");
        }
        written?;
        contents.sequence = sequence;
        Ok(())
    }
}

/// Returns the current contents: those of the head with the highest sequence whose area is intact.
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
            "the file has version {}, and this program knows up to {VERSION}",
            newer.reserve
        );
        return Err(io::Error::other(what));
    }
    for head in &found {
        if head.length > layout.area {
            continue;
        }
        let area = read_at(disk, file, layout.area_at(head.sequence), head.length)?;
        if crc32fast::hash(&area) == head.checksum
            && let Some(contents) = parse(head, &area)
        {
            return Ok(contents);
        }
    }
    Ok(ReserveContents {
        sequence: found.first().map_or(0, |head| head.sequence),
        ..ReserveContents::default()
    })
}

/// Returns the intact heads in the first two pages of the reserve. A head describes one of the two
/// areas with contents; a damaged head is skipped.
fn heads_in(pages: &[u8]) -> Vec<ReserveHead> {
    let pages = pages.chunks(usize::try_from(PAGE).unwrap_or(usize::MAX));
    pages.filter_map(read_head).collect()
}

fn read_head(page: &[u8]) -> Option<ReserveHead> {
    let end = page.iter().position(|byte| *byte == b'\n')?;
    decode::<ReserveHead>(&page[..=end]).ok()
}

fn parse(head: &ReserveHead, area: &[u8]) -> Option<ReserveContents> {
    let (index, mut rest) = area.split_at_checked(usize::try_from(head.index).ok()?)?;
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

/// Reads bytes at an offset. Returns fewer at the end of the file.
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
    fn contents_are_read_as_they_were_written() {
        let (_dir, reserve) = reserve();
        assert!(reserve.read(&RealDisk).unwrap().is_empty());
        for round in 0..3_u8 {
            let key = format!("spool/{round}");
            reserve
                .store(&RealDisk, &key, &[round; 3], ReserveUse::Batch)
                .unwrap();
            reserve
                .change(&RealDisk, |contents| contents.set_note("n", &round))
                .unwrap();
            let contents = reserve.read(&RealDisk).unwrap();
            assert_eq!(contents.file(&key), Some(&[round; 3][..]));
            assert_eq!(contents.note::<u8>("n").unwrap(), round);
            assert_eq!(contents.keys("spool").count(), usize::from(round) + 1);
        }
        assert_eq!(std::fs::metadata(reserve.path()).unwrap().len(), 200_000);
    }

    #[test]
    fn file_that_does_not_fit_is_refused_and_changes_nothing() {
        let (_dir, reserve) = reserve();
        reserve
            .store(&RealDisk, "spool/a", b"a", ReserveUse::Batch)
            .unwrap();
        let refused = reserve.store(&RealDisk, "spool/b", &vec![0; 100_000], ReserveUse::Note);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::StorageFull);
        let contents = reserve.read(&RealDisk).unwrap();
        assert_eq!(
            (contents.file("spool/a"), contents.file("spool/b")),
            (Some(&b"a"[..]), None)
        );
    }

    /// A power failure may keep the newest head of the reserve and lose the area that the head
    /// describes. The next process reads the previous contents and repeats the lost change, which
    /// writes the same head again. Contents that were cached for this head would then be outdated.
    #[test]
    fn change_that_is_repeated_after_a_power_failure_is_read() {
        // Other tests run at the same time and replace the contents in the shared cache. Outdated
        // contents may therefore go unnoticed in one round, so the test runs many rounds.
        for _ in 0..50 {
            let (_dir, reserve) = reserve();
            let hold = |text: &[u8]| {
                reserve
                    .store(&RealDisk, "spool/x", text, ReserveUse::Batch)
                    .unwrap();
            };
            let read = || {
                let contents = reserve.read(&RealDisk).unwrap();
                contents.file("spool/x").map(<[u8]>::to_vec)
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
    fn damaged_area_leaves_the_previous_contents() {
        let (_dir, reserve) = reserve();
        for text in [b"a", b"b"] {
            reserve
                .store(&RealDisk, "spool/x", text, ReserveUse::Batch)
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
        assert!(refused.contains("the file has version 2"), "{refused}");
    }
}
