//! Recovery of open entries whose writer has ended: intact lines are kept and sealed, the rest is
//! set aside in `failed/`.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::Path;

use crate::data_dir::DataDir;
use crate::disk::{Disk, DiskReader};
use crate::entry::{EntryKind, EntryName};
use crate::entry_reader::EntryReader;
use crate::error::Error;
use crate::line::{self, Line};
use crate::quarantine::{move_aside, set_aside};

/// Reason that is stored in `failed/` with the torn tail of an entry: the bytes behind its last
/// intact line.
const TORN: &str = "incomplete end of an entry: its writer was interrupted during a write";

/// Seals an open entry, unless its writer is alive and holds the entry's lock. Returns `true` if
/// the entry is sealed now or was removed because it had no records. An entry that cannot be read,
/// or has another version, is an error and stays unchanged.
pub(crate) fn seal_abandoned(
    disk: &dyn Disk,
    data: &DataDir,
    name: EntryName,
) -> Result<bool, Error> {
    let path = name.path_in(&data.staging);
    let failed = |error| Error::new("recover", &path, error);
    let file = match disk.open_to_write(&path) {
        Ok(file) => file,
        // The writer has sealed the entry, and thereby renamed its file, since the entry was
        // listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(failed(error)),
    };
    if !tenure::file::try_lock(&file).map_err(failed)? {
        return Ok(false);
    }
    // The writer may have sealed and renamed the file between the open and the lock above. Then the
    // entry needs no recovery.
    if !disk.exists(&path).map_err(failed)? {
        return Ok(true);
    }
    let Some(extent) = EntryExtent::read(disk, &path)? else {
        return Ok(true);
    };
    if extent.records > 0 {
        seal(disk, data, name, &file, &extent)?;
    } else if extent.is_blank {
        disk.remove(&path).map_err(failed)?;
    } else {
        // Sync the file before it is moved to `failed/`, since its writer may not have synced it.
        // Otherwise a power failure could lose bytes, and the file would not match the checksum in
        // its `.reason.json` file.
        disk.sync(&file).map_err(failed)?;
        move_aside(disk, &path, &data.failed, &torn_name(name), TORN)?;
    }
    disk.sync_dir(&data.staging)
        .map_err(|error| Error::new("sync", &data.staging, error))?;
    Ok(true)
}

/// Sets the torn tail of an entry aside, seals the entry and renames it.
fn seal(
    disk: &dyn Disk,
    data: &DataDir,
    name: EntryName,
    file: &File,
    extent: &EntryExtent,
) -> Result<(), Error> {
    let path = name.path_in(&data.staging);
    let failed = |error| Error::new("recover", &path, error);
    if extent.length < extent.end {
        let tail = read_from(disk, &path, extent.length).map_err(failed)?;
        let tail = trim_preallocated(&tail);
        if !tail.is_empty() {
            set_aside(disk, &data.failed, &torn_name(name), tail, TORN)?;
        }
    }
    let mut length = extent.length;
    if !extent.is_sealed {
        let mut seal = Vec::new();
        line::write_sealed(&mut seal, extent.last_number);
        // The seal overwrites the torn tail: if the file were truncated first, a full disk might
        // have no block for the seal.
        disk.write_at(file, length, &seal).map_err(failed)?;
        length += seal.len() as u64;
    }
    if length < extent.end {
        disk.truncate(file, length).map_err(failed)?;
    }
    disk.sync(file).map_err(failed)?;
    let sealed = EntryName {
        kind: EntryKind::Sealed,
        ..name
    };
    disk.rename(&path, &sealed.path_in(&data.staging))
        .map_err(failed)
}

fn torn_name(name: EntryName) -> String {
    format!("{}.torn", name.id)
}

/// Removes the spaces at the end of a torn tail, which the writer preallocates for the next
/// records.
fn trim_preallocated(tail: &[u8]) -> &[u8] {
    let end = tail.iter().rposition(|byte| *byte != b' ');
    &tail[..end.map_or(0, |last| last + 1)]
}

fn read_from(disk: &dyn Disk, path: &Path, start: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = DiskReader::open(disk, path)?;
    file.file().seek(io::SeekFrom::Start(start))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Extent of an entry's intact lines, which recovery keeps. The bytes behind them are the torn
/// tail, which goes to `failed/`.
#[derive(Default)]
struct EntryExtent {
    /// Offset of the end of the last intact line, where the seal is written.
    length: u64,
    /// Length of the file. The torn tail lies between `length` and `end`.
    end: u64,
    records: u64,
    last_number: u64,
    is_sealed: bool,
    /// True if the file has only its first line and preallocated spaces. Such a file is removed.
    is_blank: bool,
}

impl EntryExtent {
    /// Reads an entry to find the end of its intact lines. Returns `None` if the entry does not
    /// exist.
    fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Self>, Error> {
        let Some(mut lines) = EntryReader::open(disk, path)? else {
            return Ok(None);
        };
        let mut extent = Self {
            is_blank: true,
            ..Self::default()
        };
        while let Some(line) = lines.next()? {
            extent.end = line.end;
            match &line.content {
                // A line without its newline is not intact, even if its checksum matches.
                _ if !line.is_ended() => {
                    extent.is_blank &= trim_preallocated(line.text).is_empty();
                    continue;
                }
                Ok(Line::Record { number, .. }) => {
                    extent.records += 1;
                    extent.last_number = *number;
                }
                Ok(Line::Sealed { .. }) => extent.is_sealed = true,
                Ok(Line::Entry { .. }) => {}
                Err(_) => {
                    extent.is_blank &= trim_preallocated(line.text).is_empty();
                    continue;
                }
            }
            extent.length = line.end;
        }
        Ok(Some(extent))
    }
}
