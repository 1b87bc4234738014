//! Entries whose writer is gone: what is whole is kept and sealed, the rest is set aside.

use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::path::Path;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::entry::{Kind, Name};
use crate::entry_reader::UNKNOWN_VERSION;
use crate::error::Error;
use crate::line::{self, Line};
use crate::lines::Lines;
use crate::quarantine::{move_aside, set_aside};

/// Seals an open entry, unless somebody still writes it. `true`: it is sealed now, or gone because
/// there was nothing in it.
pub(crate) fn seal_abandoned(disk: &dyn Disk, data: &DataDir, name: Name) -> Result<bool, Error> {
    let path = name.path_in(&data.staging);
    let failed = |error| Error::new("recover", &path, error);
    let file = match File::options().read(true).write(true).open(&path) {
        Ok(file) => file,
        // Sealed by its writer just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        // Not ours, or not ours to write: it must not hold up the others.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            tracing::warn!(path = %path.display(), %error, "an entry that cannot be recovered");
            return Ok(false);
        }
        Err(error) => return Err(failed(error)),
    };
    if !tenure::file::try_lock(&file).map_err(failed)? {
        return Ok(false);
    }
    // Locked, but perhaps a moment too late: the writer may have sealed it in between.
    if !path.exists() {
        return Ok(true);
    }
    let good = Good::of(&file).map_err(failed)?;
    if good.is_foreign {
        let name = format!("{}.jsonl.open", name.id);
        move_aside(disk, &path, &data.failed, &name, UNKNOWN_VERSION)?;
        sync(disk, &data.staging)?;
        return Ok(true);
    }
    let why = "the end of an entry whose writer was interrupted";
    if good.records == 0 {
        // Nothing was staged in it. What is in it all the same is kept as it is.
        if good.is_blank {
            disk.remove(&path).map_err(failed)?;
        } else {
            let name = format!("{}.torn", name.id);
            move_aside(disk, &path, &data.failed, &name, why)?;
        }
        sync(disk, &data.staging)?;
        return Ok(true);
    }
    if good.length < good.end {
        let tail = read_from(&file, good.length).map_err(failed)?;
        let tail = without_room(&tail);
        if !tail.is_empty() {
            let name = format!("{}.torn", name.id);
            set_aside(disk, &data.failed, &name, tail, why)?;
        }
        disk.truncate(&file, good.length).map_err(failed)?;
    }
    if !good.is_sealed {
        let mut seal = Vec::new();
        line::write_sealed(&mut seal, good.last_number);
        disk.write_at(&file, good.length, &seal).map_err(failed)?;
    }
    disk.sync(&file).map_err(failed)?;
    let sealed = Name {
        kind: Kind::Sealed,
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

fn read_from(mut file: &File, start: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(io::SeekFrom::Start(start))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// How much of an entry is whole.
#[derive(Default)]
struct Good {
    /// To the end of the last good line.
    length: u64,
    /// The length of the file.
    end: u64,
    records: u64,
    last_number: u64,
    is_sealed: bool,
    /// There is nothing in it but what every entry begins with, and room.
    is_blank: bool,
    /// It is of another version: not ours to cut.
    is_foreign: bool,
}

impl Good {
    fn of(file: &File) -> io::Result<Self> {
        let mut good = Self {
            is_blank: true,
            ..Self::default()
        };
        let mut lines = Lines::new(file);
        while let Some(text) = lines.next()? {
            let line = text.strip_suffix(b"\n").map(line::read);
            match line {
                Some(Ok(Line::Record { number, .. })) => {
                    good.records += 1;
                    good.last_number = number;
                }
                Some(Ok(Line::Sealed { .. })) => good.is_sealed = true,
                Some(Ok(Line::Entry { version, .. })) => {
                    good.is_foreign |= version != line::VERSION;
                }
                _ => {
                    good.is_blank &= without_room(text).is_empty();
                    continue;
                }
            }
            good.length = lines.end;
        }
        good.end = lines.end;
        Ok(good)
    }
}
