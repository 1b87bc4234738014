//! Writes usage records at start for requests that were in flight when their server was killed.
//!
//! An in-flight list whose lock is free has no owner. Its requests are staged under the ids that
//! their records would have had, and the list is removed once they are synced. If a record was
//! staged just before the kill, or the recovery is repeated after a crash, the spool finds the same
//! id twice and counts the earlier record.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use spool::{Durability, Staging};

use super::row::{self, ROW_BYTES};
use super::{DIR, Header, LIST, MAX_SEGMENTS, NEW, SEGMENT_BYTES, VERSION};
use crate::config::Instance;
use crate::sys::data_file;

/// Maximum number of in-flight lists that one start reads, so that a directory full of files cannot
/// delay it forever.
const MAX_LISTS: usize = 1000;
/// Maximum number of rows that are read from one in-flight list. It is the size to which a server
/// lets its list grow; more can only be damage.
const MAX_ROWS: usize = MAX_SEGMENTS * SEGMENT_BYTES / ROW_BYTES;
/// Number of recovered records that are staged in one call, which bounds the memory.
const GROUP: usize = 1000;

/// Result of a recovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    pub(crate) requests: usize,
    pub(crate) failed: usize,
}

/// Outcome of the recovery of one in-flight list.
enum Outcome {
    Recovered(usize),
    /// The server that wrote the list may still run, here or on another host. Its requests may
    /// still end and write their own records, so the list is left alone.
    InUse,
}

/// Stages a usage record for each request in the in-flight lists of servers that have ended, and
/// removes the lists. `host` is the name of this host.
pub(crate) fn recover(data: &Path, host: Option<&str>, staging: &Staging) -> Recovered {
    let mut done = Recovered::default();
    let dir = data.join(DIR);
    let Ok(files) = std::fs::read_dir(&dir) else {
        return done; // No server has created a list yet.
    };
    if let Err(error) = data_file::check_dir(&dir) {
        done.failed += 1;
        tracing::warn!(
            "usage: cannot record the requests in {}: {error}; the directory is kept",
            dir.display()
        );
        return done;
    }
    let is_shared = tenure::file::is_on_network(&dir);
    for path in files.flatten().map(|file| file.path()).take(MAX_LISTS) {
        let extension = path.extension().and_then(|end| end.to_str());
        match extension {
            Some(LIST) => {}
            Some(NEW) => {
                remove_incomplete(&path);
                continue;
            }
            _ => continue,
        }
        match recover_list(&path, host.filter(|_| is_shared), is_shared, staging) {
            Ok(Outcome::Recovered(requests)) => done.requests += requests,
            Ok(Outcome::InUse) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {} // Another server was faster.
            Err(error) => {
                done.failed += 1;
                tracing::warn!(
                    "usage: cannot record the requests in {}: {error}; the file is kept",
                    path.display()
                );
            }
        }
    }
    if done.requests > 0 {
        tracing::warn!(
            "usage: recorded {} requests that were in flight when a server was killed (outcome interrupted)",
            done.requests
        );
    }
    done
}

fn recover_list(
    path: &Path,
    host: Option<&str>,
    is_shared: bool,
    staging: &Staging,
) -> io::Result<Outcome> {
    // Reject a file that another user may have written: its rows could bill any key.
    let mut file = data_file::open_trusted_to_change(path)?
        .map_err(|_| io::Error::other("other users may have written this file"))?;
    if !tenure::file::try_lock(&file)? {
        return Ok(Outcome::InUse);
    }
    let Some(header) = read_header(&mut file)? else {
        // A header of zeros means that a power failure has lost the content of the list. No request
        // in it is known, so remove it.
        std::fs::remove_file(path)?;
        return Ok(Outcome::Recovered(0));
    };
    // On a network file system the kernel lock of another host may not be visible. Leave that
    // host's list alone: its server may still run.
    if is_shared && host != Some(&header.host) {
        return Ok(Outcome::InUse);
    }
    let requests = stage_rows(&mut file, &header.instance, staging)?;
    // Hold the lock until the file is removed, so that no other server reads the list and stages
    // its requests again.
    remove(path, file)?;
    Ok(Outcome::Recovered(requests))
}

fn read_header(file: &mut File) -> io::Result<Option<Header>> {
    let mut bytes = Vec::new();
    file.take(ROW_BYTES as u64).read_to_end(&mut bytes)?;
    parse_header(&bytes)
}

/// Parses the first row of an in-flight list. Returns `None` if it has only zeros, as a power
/// failure leaves it.
pub(super) fn parse_header(bytes: &[u8]) -> io::Result<Option<Header>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(None);
    }
    let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let end = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    let header: Header = serde_json::from_slice(&bytes[..end])
        .map_err(|error| invalid(format!("the header of the list is not valid ({error})")))?;
    if header.version != VERSION {
        let (found, known) = (header.version, VERSION);
        return Err(invalid(format!(
            "the list has version {found}, and this llmlb knows only version {known}"
        )));
    }
    if Instance::parse(&header.instance).is_none() {
        return Err(invalid(
            "the header of the list names no valid instance".to_owned(),
        ));
    }
    Ok(Some(header))
}

/// Stages a usage record for each request in the rows, and returns the number of records.
fn stage_rows(file: &mut File, instance: &str, staging: &Staging) -> io::Result<usize> {
    let mut records = Vec::new();
    let mut count = 0;
    let mut bytes = [0; ROW_BYTES];
    for _ in 0..MAX_ROWS {
        match file.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(error),
        }
        records.extend(row::read(&bytes).map(|request| request.record(instance)));
        if records.len() == GROUP {
            count += stage(&mut records, staging)?;
        }
    }
    Ok(count + stage(&mut records, staging)?)
}

fn stage(records: &mut Vec<spool::Record>, staging: &Staging) -> io::Result<usize> {
    if !records.is_empty() {
        let staged = staging.stage_all(records, Durability::Power);
        staged.map_err(|error| io::Error::other(error.to_string()))?;
    }
    Ok(records.drain(..).count())
}

fn remove(path: &Path, file: File) -> io::Result<()> {
    let removed = std::fs::remove_file(path);
    drop(file);
    removed
}

/// Removes a list whose creation did not finish, unless its server holds the lock and is creating
/// it now.
fn remove_incomplete(path: &PathBuf) {
    let is_free = |file: &File| tenure::file::try_lock(file).unwrap_or(false);
    let file = data_file::open_trusted_to_change(path);
    if file.is_ok_and(|file| file.is_ok_and(|file| is_free(&file))) {
        let _ = std::fs::remove_file(path);
    }
}
