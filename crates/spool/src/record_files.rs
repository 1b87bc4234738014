//! The files that have records: staged entries, and batches that are pending, archived or failed.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::batch::{self, Batch};
use crate::data_dir::DataDir;
use crate::entry::{EntryKind, EntryName};
use crate::entry_reader::{EntryReader, SingleRecordFile};
use crate::error::Error;
use crate::files::{for_each_file, read_bounded};
use crate::line::Line;
use crate::record::Record;

/// Directory in which a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// `_staging/`: the record is in no batch yet.
    Staged,
    /// `spool/`: its batch waits for delivery.
    Pending,
    /// `archive/`: its batch is kept, because there is no destination.
    Archived,
    /// `failed/`: its batch cannot be delivered.
    Failed,
}

/// A file that may have records.
pub(crate) struct RecordFile {
    pub(crate) path: PathBuf,
    pub(crate) place: Place,
    /// Name of a staged entry; `None` for a batch.
    pub(crate) entry: Option<EntryName>,
}

/// Lists the directories in the order in which records pass through them, so that a record that
/// moves meanwhile is listed twice rather than missed.
pub(crate) fn list(data: &DataDir) -> Result<Vec<RecordFile>, Error> {
    let mut files = Vec::new();
    for_each_file(&*data.disk, &data.staging, |name| {
        if let Some(entry) = EntryName::parse(name.as_ref()) {
            files.push(RecordFile {
                path: data.staging.join(name),
                place: Place::Staged,
                entry: Some(entry),
            });
        }
    })?;
    for (dir, place) in [
        (&data.spool, Place::Pending),
        (&data.archive, Place::Archived),
        (&data.failed, Place::Failed),
    ] {
        for_each_file(&*data.disk, dir, |name| {
            if batch::is_batch_name(name) {
                let (path, entry) = (dir.join(name), None);
                files.push(RecordFile { path, place, entry });
            }
        })?;
    }
    Ok(files)
}

impl RecordFile {
    /// Calls `each` with the records of the file. Skips a file that was moved or deleted since it was listed.
    pub(crate) fn read(
        &self,
        data: &DataDir,
        each: &mut dyn FnMut(&Record) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let Some(entry) = self.entry else {
            return read_batch(data, &self.path, each);
        };
        if entry.kind == EntryKind::Single {
            let single = SingleRecordFile::read(&*data.disk, &self.path, entry.id)?;
            return Ok(match single {
                Some(SingleRecordFile::Record(record)) => each(&record),
                // Skip a file that is not a record: consolidation will move it to `failed/`.
                _ => ControlFlow::Continue(()),
            });
        }
        let mut lines = EntryReader::open(&*data.disk, &self.path)?;
        if lines.is_none() && entry.kind == EntryKind::Open {
            let kind = EntryKind::Sealed;
            let sealed = EntryName { kind, ..entry };
            lines = EntryReader::open(&*data.disk, &sealed.path_in(&data.staging))?;
        }
        let Some(mut lines) = lines else {
            return Ok(ControlFlow::Continue(()));
        };
        while let Some(line) = lines.next()? {
            if let Ok(Line::Record { record, .. }) = line.content
                && each(&record).is_break()
            {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn read_batch(
    data: &DataDir,
    path: &Path,
    each: &mut dyn FnMut(&Record) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, Error> {
    let bytes = match read_bounded(&*data.disk, path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(ControlFlow::Continue(()));
        }
        read => read.map_err(|error| Error::read(path, error))?,
    };
    let batch = Batch::decode(&bytes.unwrap_or_default())
        .map_err(|damage| Error::damage(path, damage.to_string()))?;
    for record in batch.records() {
        if each(record).is_break() {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}
