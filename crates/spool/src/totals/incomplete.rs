//! The file `usage/.incomplete`: it exists while the totals lack records, because a file of totals
//! could not be read when records were added to it.

use std::io;

use crate::data_dir::DataDir;
use crate::disk::Disk;
use crate::error::Error;
use crate::files::{self, write_atomically};

const NAME: &str = ".incomplete";

/// True if the totals lack records, that is, if the file `usage/.incomplete` exists.
pub(crate) fn are_incomplete(disk: &dyn Disk, data: &DataDir) -> Result<bool, Error> {
    let path = data.usage.join(NAME);
    files::exists(disk, &path).map_err(|error| Error::new("find", &path, error))
}

/// Notes that the totals lack records, because of this error. The caller syncs the directory.
pub(super) fn note_incomplete(disk: &dyn Disk, data: &DataDir, error: &Error) -> Result<(), Error> {
    write_atomically(disk, &data.usage, NAME, format!("{error}\n").as_bytes())
}

/// Notes that the totals have all records again, by deleting the file `usage/.incomplete`.
pub(crate) fn note_complete(disk: &dyn Disk, data: &DataDir) -> Result<(), Error> {
    let path = data.usage.join(NAME);
    match files::remove(disk, &path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::new("delete", &path, error))
        }
        _ => Ok(()),
    }
}
