//! Inspection of the staging directory, which changes nothing.

use std::path::Path;

use crate::data_dir::DataDir;
use crate::entry::EntryName;
use crate::entry_reader::probe;
use crate::error::Error;

/// Maximum number of foreign files that are named and of unreadable entries whose errors are kept.
/// All others are only counted.
const MAX_NAMED: usize = 100;

/// Numbers of entries and foreign files in a staging directory, and the entries that cannot be
/// read.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Staged {
    /// Number of entries in the staging directory. Consolidation deletes an entry once its records
    /// are in batches.
    pub entries: u64,
    /// Number of entries that cannot be read now, or that have a newer version. They are included
    /// in `entries`.
    pub unreadable: u64,
    /// Errors of the first 100 unreadable entries.
    pub errors: Vec<Error>,
    /// Number of foreign files, which spool leaves alone. An entry is a regular file named
    /// `{uuid}.json` or `{uuid}.jsonl`, with a lower-case UUIDv7.
    pub foreign: u64,
    /// Names of the first 100 foreign files.
    pub foreign_names: Vec<String>,
}

/// Counts the entries that are staged in a data directory. Reads every entry to find those that
/// cannot be read. A missing directory counts as empty.
///
/// ```
/// use spool::{Durability, Record, Staging, staged};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"tokens":42}"#)?, Durability::Power)?;
/// staging.close()?;
/// std::fs::write(data.path().join("_staging/mine.json"), "{}")?;
///
/// let staged = staged(data.path())?;
/// assert_eq!((staged.entries, staged.unreadable), (1, 0));
/// assert_eq!(staged.foreign_names, ["mine.json"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn staged(data: &Path) -> Result<Staged, Error> {
    staged_in(&DataDir::new(data))
}

pub(crate) fn staged_in(data: &DataDir) -> Result<Staged, Error> {
    let (mut staged, mut names) = (Staged::default(), Vec::new());
    let listed = data.disk.list(&data.staging, &mut |name, is_file| {
        match EntryName::parse(name).filter(|_| is_file) {
            Some(name) => names.push(name),
            // Names that begin with a dot are spool's own files, such as its lock and its reserve.
            None if name.to_string_lossy().starts_with('.') => {}
            None => {
                staged.foreign += 1;
                if staged.foreign_names.len() < MAX_NAMED {
                    staged
                        .foreign_names
                        .push(name.to_string_lossy().into_owned());
                }
            }
        }
    });
    match listed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        listed => listed.map_err(|error| Error::new("list", &data.staging, error))?,
    }
    names.sort_unstable();
    staged.foreign_names.sort_unstable();
    for name in names {
        match probe(&*data.disk, &data.staging, name) {
            // The entry was consolidated since it was listed.
            Ok(None) => continue,
            Ok(Some(_)) => {}
            Err(error) => {
                staged.unreadable += 1;
                if staged.errors.len() < MAX_NAMED {
                    staged.errors.push(error);
                }
            }
        }
        staged.entries += 1;
    }
    Ok(staged)
}
