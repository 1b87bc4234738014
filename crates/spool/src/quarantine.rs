//! Quarantine: damaged files, lines and records go to `failed/` with a reason. They stay there
//! until a limit of `failed/` or a person deletes them.

use std::io::{self, Read as _};
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::disk::{Disk, DiskReader};
use crate::error::Error;
use crate::files::{self, move_file, read_bounded, write_atomically};
use crate::journal::{decode, encode};
use crate::time::Moment;

const VERSION: u32 = 1;
const ENDING: &str = ".reason.json";

/// Writes these bytes to `failed/` under this name, with a file that has the reason. A repetition
/// after a crash changes nothing.
pub(crate) fn set_aside(
    disk: &dyn Disk,
    failed: &Path,
    name: &str,
    bytes: &[u8],
    reason: &str,
) -> Result<(), Error> {
    let checksum = format!("{:08x}", crc32fast::hash(bytes));
    let (name, is_there) = free_name(disk, failed, name, &checksum)?;
    if is_there {
        // The file has been in `failed/` since a run that may have crashed before it synced the
        // directory. Sync the directory now: otherwise a power failure could still lose the file's
        // name.
        return disk
            .sync_dir(failed)
            .map_err(|error| Error::new("sync", failed, error));
    }
    // The reason is written first, so that a crash leaves no file without a reason.
    Reason::new(&name, reason, Some(checksum)).write(disk, failed)?;
    write_atomically(disk, failed, &name, bytes)?;
    disk.sync_dir(failed)
        .map_err(|error| Error::new("sync", failed, error))
}

/// Moves a file to `failed/`, with a file that has the reason. Unlike [`set_aside`], it reads the
/// file in bounded memory.
pub(crate) fn move_aside(
    disk: &dyn Disk,
    path: &Path,
    failed: &Path,
    name: &str,
    reason: &str,
) -> Result<(), Error> {
    let checksum = checksum_of(disk, path).map_err(|error| Error::read(path, error))?;
    let (name, _) = free_name(disk, failed, name, &checksum)?;
    Reason::new(&name, reason, Some(checksum)).write(disk, failed)?;
    move_file(disk, path, &failed.join(name))
}

/// Returns the name under which a file can be moved to `failed/`, and `false`: `name`, with a
/// number added if another file has that name. Files in `failed/` are never replaced. If a file
/// with such a name and the same checksum is there already, returns its name and `true`.
fn free_name(
    disk: &dyn Disk,
    failed: &Path,
    name: &str,
    checksum: &str,
) -> Result<(String, bool), Error> {
    let mut free = name.to_owned();
    for number in 1.. {
        let path = failed.join(&free);
        let exists = files::exists(disk, &path);
        if !exists.map_err(|error| Error::read(&path, error))? {
            break;
        }
        if checksum_of(disk, &path).is_ok_and(|found| found == checksum) {
            return Ok((free, true));
        }
        free = format!("{name}.{number}");
    }
    Ok((free, false))
}

pub(crate) fn checksum_of(disk: &dyn Disk, path: &Path) -> io::Result<String> {
    if let Some(bytes) = files::held(disk, path)? {
        return Ok(format!("{:08x}", crc32fast::hash(&bytes)));
    }
    let (mut file, mut checksum) = (DiskReader::open(disk, path)?, crc32fast::Hasher::new());
    let mut piece = vec![0; 64 * 1024];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(format!("{:08x}", checksum.finalize())),
            read => checksum.update(&piece[..read]),
        }
    }
}

/// Damaged lines of one entry, which are written to `failed/` in one file.
#[derive(Debug)]
pub(crate) struct QuarantineBuffer {
    name: String,
    bytes: Vec<u8>,
    reasons: Vec<String>,
    count: u64,
}

/// Number of bytes of damaged lines in memory at which they are written to `failed/`. Bounds
/// memory.
const MAX_BUFFERED: usize = 4 << 20;
/// Maximum number of damaged lines that the reason file describes one by one; the others are only
/// counted.
const MAX_REASONS: usize = 20;

impl QuarantineBuffer {
    pub(crate) fn new(name: String) -> Self {
        Self {
            name,
            bytes: Vec::new(),
            reasons: Vec::new(),
            count: 0,
        }
    }

    /// True if the lines must be written now to bound memory. The result depends only on the lines,
    /// so that a repetition after a crash writes the same files.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() > MAX_BUFFERED
    }

    pub(crate) fn add(&mut self, line: u64, bytes: &[u8], why: &str) {
        self.bytes.extend(bytes);
        if !bytes.ends_with(b"\n") {
            self.bytes.push(b'\n');
        }
        if self.reasons.len() < MAX_REASONS {
            self.reasons.push(format!("line {line}: {why}"));
        }
        self.count += 1;
    }

    /// Writes the lines to `failed/`, and empties the buffer. A repetition after a crash changes
    /// nothing.
    pub(crate) fn set_aside(&mut self, disk: &dyn Disk, failed: &Path) -> Result<(), Error> {
        if self.count == 0 {
            return Ok(());
        }
        let lines = std::mem::replace(self, Self::new(self.name.clone()));
        lines.write(disk, failed)
    }

    fn write(self, disk: &dyn Disk, failed: &Path) -> Result<(), Error> {
        let mut why = self.reasons.join("; ");
        if self.count > MAX_REASONS as u64 {
            why = format!("{why}; and so on, {} lines in all", self.count);
        }
        set_aside(disk, failed, &self.name, &self.bytes, &why)
    }
}

/// Reason why a file is in `failed/`. It is stored beside the file in `{name}.reason.json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Reason {
    version: u32,
    pub(crate) name: String,
    #[serde(rename = "reason")]
    pub(crate) why: String,
    pub(crate) at: Moment,
    /// Checksum of the file. `None` for a batch, whose file contains a checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) checksum: Option<String>,
    /// Details of a batch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) batch: Option<BatchReason>,
}

/// Delivery history of a batch in `failed/`, stored in the batch's reason file: the number of
/// records, and the attempts to deliver the batch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BatchReason {
    pub(crate) records: u64,
    pub(crate) attempts: u32,
    pub(crate) first_attempt: Option<Moment>,
    /// True if an attempt has an unknown outcome: the destination may have the batch.
    pub(crate) ambiguous: bool,
}

impl Reason {
    pub(crate) fn new(name: &str, reason: &str, checksum: Option<String>) -> Self {
        Self {
            version: VERSION,
            name: name.to_owned(),
            why: reason.to_owned(),
            at: SystemTime::now().into(),
            checksum,
            batch: None,
        }
    }

    /// Parses the file of a reason, and checks its version.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let reason: Self = decode(bytes)?;
        if reason.version == VERSION {
            Ok(reason)
        } else {
            Err(format!(
                "the file has version {}, not {VERSION}",
                reason.version
            ))
        }
    }

    pub(crate) fn file_name(name: &str) -> String {
        format!("{name}{ENDING}")
    }

    /// Returns the name of the file that this reason is about; `None` if the file is not a reason.
    pub(crate) fn parse_file_name(file_name: &str) -> Option<&str> {
        file_name.strip_suffix(ENDING)
    }

    pub(crate) fn write(&self, disk: &dyn Disk, failed: &Path) -> Result<(), Error> {
        let path = failed.join(&self.name);
        tracing::warn!(path = %path.display(), reason = self.why, "set aside");
        write_atomically(disk, failed, &Self::file_name(&self.name), &encode(self))?;
        // Writes the reason file, which must be on the disk before the file that it explains
        // appears in `failed/`. Otherwise a crash could leave a file there without a known reason.
        disk.sync_dir(failed)
            .map_err(|error| Error::new("sync", failed, error))
    }

    pub(crate) fn read(disk: &dyn Disk, failed: &Path, name: &str) -> Result<Option<Self>, Error> {
        let path = failed.join(Self::file_name(name));
        match read_bounded(disk, &path) {
            Ok(bytes) => decode(&bytes.unwrap_or_default())
                .map(Some)
                .map_err(|why| Error::damage(&path, why)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::read(&path, error)),
        }
    }
}
