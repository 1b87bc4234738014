//! Usage records of requests that were in flight when their server was killed.
//!
//! A list whose lock is free has no owner. Its requests are staged under the ids that their records would
//! have had, and the list is removed once they are synced. If a record was staged just before the kill, or this
//! recovery is repeated after a crash, the spool finds the same id twice and counts the earlier record.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use spool::{Durability, Staging};

use super::row::{self, ROW_BYTES};
use super::{DIR, Header, LIST, MAX_SEGMENTS, NEW, SEGMENT_BYTES, VERSION};
use crate::config::Instance;
use crate::sys::data_file;

/// Maximum number of lists that one recovery reads.
const MAX_LISTS: usize = 1000;
/// Maximum number of rows that are read from a list.
const MAX_ROWS: usize = MAX_SEGMENTS * SEGMENT_BYTES / ROW_BYTES;
/// Number of records that are staged at a time.
const GROUP: usize = 1000;

/// Result of a recovery.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Recovered {
    /// Number of requests that have a record now.
    pub(crate) requests: usize,
    /// Number of lists that could not be read, or whose records could not be staged.
    pub(crate) failed: usize,
}

/// Outcome for one list.
enum Outcome {
    Recovered(usize),
    /// The server that wrote the list runs, or may run on another host: its requests may still end.
    InUse,
}

/// Stages a record for each request in the lists of servers that have ended, and removes the lists.
/// `host` is the name of this host.
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
    // In a directory that other users may write, the list of another user could bill any key.
    let mut file = data_file::open_trusted_to_change(path)?
        .map_err(|_| io::Error::other("other users may have written it"))?;
    if !tenure::file::try_lock(&file)? {
        return Ok(Outcome::InUse);
    }
    let Some(header) = read_header(&mut file)? else {
        // A header of zeros: a power failure has lost the content, so no request is known.
        std::fs::remove_file(path)?;
        return Ok(Outcome::Recovered(0));
    };
    // On a network file system the lock of another host may not be visible.
    if is_shared && host != Some(&header.host) {
        return Ok(Outcome::InUse);
    }
    let requests = stage_rows(&mut file, &header.instance, staging)?;
    // The lock is held until the file is gone: no other server reads it meanwhile.
    remove(path, file)?;
    Ok(Outcome::Recovered(requests))
}

/// Reads the header. Returns `None` if it has only zeros.
fn read_header(file: &mut File) -> io::Result<Option<Header>> {
    let mut bytes = Vec::new();
    file.take(ROW_BYTES as u64).read_to_end(&mut bytes)?;
    parse_header(&bytes)
}

/// Parses the first row of a list.
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
        .map_err(|error| invalid(format!("its header is not valid ({error})")))?;
    if header.version != VERSION {
        let (found, known) = (header.version, VERSION);
        return Err(invalid(format!(
            "its version is {found}, this program knows {known}"
        )));
    }
    if Instance::parse(&header.instance).is_none() {
        return Err(invalid("its header names no valid instance".to_owned()));
    }
    Ok(Some(header))
}

/// Stages the requests of all rows, and returns their number.
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

/// Removes a list whose creation did not finish, unless its server is creating it now.
fn remove_incomplete(path: &PathBuf) {
    let is_free = |file: &File| tenure::file::try_lock(file).unwrap_or(false);
    let file = data_file::open_trusted_to_change(path);
    if file.is_ok_and(|file| file.is_ok_and(|file| is_free(&file))) {
        let _ = std::fs::remove_file(path);
    }
}
