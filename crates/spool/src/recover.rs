//! Entries whose writer is gone: what is whole is kept and sealed, the rest is set aside.

use std::io::{self, Read as _, Seek as _};
use std::path::Path;

use crate::data_dir::DataDir;
use crate::disk::{Disk, DiskReader};
use crate::entry::{EntryKind, EntryName};
use crate::entry_reader::EntryReader;
use crate::error::Error;
use crate::line::{self, Line};
use crate::quarantine::{move_aside, set_aside};

/// Seals an open entry, unless somebody still writes it. `true`: it is sealed now, or gone because
/// there was nothing in it. An entry that cannot be read, or is of another version, stays as it is.
pub(crate) fn seal_abandoned(
    disk: &dyn Disk,
    data: &DataDir,
    name: EntryName,
) -> Result<bool, Error> {
    let path = name.path_in(&data.staging);
    let failed = |error| Error::new("recover", &path, error);
    let file = match disk.open_to_write(&path) {
        Ok(file) => file,
        // Sealed by its writer just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(failed(error)),
    };
    if !tenure::file::try_lock(&file).map_err(failed)? {
        return Ok(false);
    }
    // Locked, but perhaps a moment too late: the writer may have sealed it in between.
    if !disk.exists(&path).map_err(failed)? {
        return Ok(true);
    }
    let Some(good) = EntryExtent::read(disk, &path)? else {
        return Ok(true);
    };
    let why = "the end of an entry whose writer was interrupted";
    if good.records == 0 {
        // Nothing was staged in it. What is in it all the same is kept as it is.
        if good.is_blank {
            disk.remove(&path).map_err(failed)?;
        } else {
            let name = format!("{}.torn", name.id);
            // Its writer may not have synced it, and its reason has its checksum.
            disk.sync(&file).map_err(failed)?;
            move_aside(disk, &path, &data.failed, &name, why)?;
        }
        sync(disk, &data.staging)?;
        return Ok(true);
    }
    if good.length < good.end {
        let tail = read_from(disk, &path, good.length).map_err(failed)?;
        let tail = without_room(&tail);
        if !tail.is_empty() {
            let name = format!("{}.torn", name.id);
            set_aside(disk, &data.failed, &name, tail, why)?;
        }
    }
    let mut length = good.length;
    if !good.is_sealed {
        let mut seal = Vec::new();
        line::write_sealed(&mut seal, good.last_number);
        // Over what is there: a full disk has no block for it once the file is shorter.
        disk.write_at(&file, length, &seal).map_err(failed)?;
        length += seal.len() as u64;
    }
    if length < good.end {
        disk.truncate(&file, length).map_err(failed)?;
    }
    disk.sync(&file).map_err(failed)?;
    let sealed = EntryName {
        kind: EntryKind::Sealed,
        ..name
    };
    disk.rename(&path, &sealed.path_in(&data.staging))
        .map_err(failed)?;
    sync(disk, &data.staging)?;
    Ok(true)
}

fn sync(disk: &dyn Disk, dir: &Path) -> Result<(), Error> {
    disk.sync_dir(dir)
        .map_err(|error| Error::new("sync", dir, error))
}

/// What is left without the spaces that were written ahead of the next record.
fn without_room(tail: &[u8]) -> &[u8] {
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

/// How much of an entry is whole.
#[derive(Default)]
struct EntryExtent {
    /// To the end of the last good line.
    length: u64,
    /// The length of the file.
    end: u64,
    records: u64,
    last_number: u64,
    is_sealed: bool,
    /// There is nothing in it but what every entry begins with, and room.
    is_blank: bool,
}

impl EntryExtent {
    /// `None`: the entry is gone.
    fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Self>, Error> {
        let Some(mut lines) = EntryReader::open(disk, path)? else {
            return Ok(None);
        };
        let mut good = Self {
            is_blank: true,
            ..Self::default()
        };
        while let Some(line) = lines.next()? {
            good.end = line.end;
            match &line.content {
                // A line without its end is not whole, whatever it says.
                _ if !line.is_ended() => {
                    good.is_blank &= without_room(line.text).is_empty();
                    continue;
                }
                Ok(Line::Record { number, .. }) => {
                    good.records += 1;
                    good.last_number = *number;
                }
                Ok(Line::Sealed { .. }) => good.is_sealed = true,
                Ok(Line::Entry { .. }) => {}
                Err(_) => {
                    good.is_blank &= without_room(line.text).is_empty();
                    continue;
                }
            }
            good.length = line.end;
        }
        Ok(Some(good))
    }
}
