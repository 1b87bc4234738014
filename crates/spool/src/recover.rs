//! Entries whose writer is gone: what is whole is kept and sealed, the rest is set aside.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::entry::{Kind, Name};
use crate::error::Error;
use crate::line::{self, Line};
use crate::quarantine::set_aside;

/// Seals an open entry, unless somebody still writes it. `true`: it is sealed now, or gone because
/// there was nothing in it.
pub(crate) fn seal_abandoned(disk: &dyn Disk, data: &DataDir, name: Name) -> Result<bool, Error> {
    let path = name.path_in(&data.staging);
    let failed = |error| Error::new("recover", &path, error);
    let file = match File::options().read(true).append(true).open(&path) {
        Ok(file) => file,
        // Sealed by its writer just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(failed(error)),
    };
    if !tenure::file::try_lock(&file).map_err(failed)? {
        return Ok(false);
    }
    // Locked, but perhaps a moment too late: the writer may have sealed it in between.
    if !path.exists() {
        return Ok(true);
    }
    let bytes = std::fs::read(&path).map_err(failed)?;
    let good = Good::of(&bytes);
    if good.length < bytes.len() {
        let tail = without_room(&bytes[good.length..]);
        if !tail.is_empty() {
            let name = format!("{}.torn", name.id);
            let why = "the end of an entry whose writer was interrupted";
            set_aside(disk, &data.failed, &name, tail, why)?;
        }
        disk.truncate(&file, good.length as u64).map_err(failed)?;
    }
    if good.records == 0 {
        disk.remove(&path).map_err(failed)?;
        sync(disk, &data.staging)?;
        return Ok(true);
    }
    if !good.is_sealed {
        let mut seal = Vec::new();
        line::write_sealed(&mut seal, good.last_number);
        disk.append(&file, &seal).map_err(failed)?;
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

/// How much of an entry is whole.
struct Good {
    /// To the end of the last good line.
    length: usize,
    records: u64,
    last_number: u64,
    is_sealed: bool,
}

impl Good {
    fn of(bytes: &[u8]) -> Self {
        let mut good = Self {
            length: 0,
            records: 0,
            last_number: 0,
            is_sealed: false,
        };
        let mut end = 0;
        for text in bytes.split_inclusive(|byte| *byte == b'\n') {
            end += text.len();
            let Some(Ok(line)) = text.strip_suffix(b"\n").map(line::read) else {
                continue;
            };
            good.length = end;
            match line {
                Line::Record { number, .. } => {
                    good.records += 1;
                    good.last_number = number;
                }
                Line::Sealed { .. } => good.is_sealed = true,
                Line::Entry { .. } => {}
            }
        }
        good
    }
}
