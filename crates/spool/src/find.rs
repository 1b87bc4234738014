//! Records that are still on disk, found by a text that they contain.
//!
//! No lock is taken, and no file is changed. The files are searched for the text before they are parsed, so
//! that a search among millions of records takes about as long as reading the files.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::data_dir::DataDir;
use crate::error::Error;
use crate::files::read_bounded;
use crate::record::Record;
use crate::record_files::{self, Place};

/// Maximum number of listings of the directories. Later listings find files that moved meanwhile.
const MAX_LISTINGS: usize = 3;

/// A record that was found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FoundRecord {
    /// The record.
    pub record: Record,
    /// Directory of the record's file.
    pub place: Place,
    /// File of the record.
    pub path: PathBuf,
}

/// Returns at most `max` records whose JSON contains a text, and the errors of files that cannot be read. Each
/// record is returned once, in the last directory in which it was found. `is_wanted` decides about a record
/// that contains the text.
///
/// ```
/// use spool::{Durability, Place, Record, Staging, find};
///
/// let data = tempfile::tempdir()?;
/// let staging = Staging::open(data.path().join("_staging"))?;
/// staging.stage(&Record::parse(r#"{"request_id":"a-1"}"#)?, Durability::Process)?;
///
/// let (found, problems) = find(data.path(), r#""a-1""#, 10, |_| true)?;
/// assert_eq!((found.len(), problems.len()), (1, 0));
/// assert_eq!(found[0].place, Place::Staged);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn find(
    data: &Path,
    text: &str,
    max: usize,
    mut is_wanted: impl FnMut(&Record) -> bool,
) -> Result<(Vec<FoundRecord>, Vec<Error>), Error> {
    let data = DataDir::new(data);
    let (mut found, mut problems) = (Vec::<FoundRecord>::new(), Vec::new());
    for _ in 0..MAX_LISTINGS {
        let mut has_moved = false;
        found.clear();
        problems.clear();
        for file in record_files::list(&data)? {
            match read_bounded(&*data.disk, &file.path) {
                Ok(bytes) if !may_contain(bytes.as_deref(), text) => continue,
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    has_moved = true;
                    continue;
                }
                Err(error) => {
                    problems.push(Error::read(&file.path, error));
                    continue;
                }
            }
            let read = file.read(&data, &mut |record| {
                let is_found = record.json().contains(text) && is_wanted(record);
                if is_found {
                    found.retain(|one| one.record.id() != record.id());
                    if found.len() < max {
                        found.push(FoundRecord {
                            record: record.clone(),
                            place: file.place,
                            path: file.path.clone(),
                        });
                    }
                }
                ControlFlow::Continue(())
            });
            problems.extend(read.err());
        }
        if !found.is_empty() || !has_moved {
            break;
        }
    }
    Ok((found, problems))
}

/// True if a file contains a text, or is damaged, so that its readable parts may contain it.
fn may_contain(bytes: Option<&[u8]>, text: &str) -> bool {
    let text_of = |bytes| str::from_utf8(bytes).ok();
    bytes.is_some_and(|bytes| text_of(bytes).is_none_or(|bytes| bytes.contains(text)))
}
