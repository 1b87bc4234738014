//! Reads and creates the file `fleet/fleet.json`: the id of the data directory and its lease store.
//!
//! The id is the name of the lease, so hosts that mount the directory under different paths compete
//! for the same lease. Each server also compares the store in the file with its own: servers with
//! different stores, or with none, would each elect a deliverer.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{DIR, FleetError};
use crate::sys::data_file;
use crate::text;

const FILE: &str = "fleet.json";
const VERSION: u32 = 1;
/// Maximum number of bytes that are read from a file in `fleet/`, so that a damaged file cannot use
/// up memory.
pub(super) const MAX_FILE: u64 = 64 << 10;

#[derive(Debug, Serialize, Deserialize)]
struct FleetFile {
    version: u32,
    id: Uuid,
    /// Lease store of the fleet, without its credentials. A server with another store is refused.
    store: String,
    /// Inode number of this file when it was created. A copy of the data directory has another
    /// inode number and is refused: with the same id, runs on the copy and on the original would
    /// exclude each other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
}

/// Returns the id of the data directory, by which its servers find the same lease. The first server
/// of a fleet creates the file with the id.
pub(super) fn id(data: &Path, store: &str) -> Result<Uuid, FleetError> {
    let path = path(data);
    let failed = |error| FleetError::disk(&path, error);
    let mut found = read(&path).map_err(failed)?;
    if found.is_none() {
        create(&path, store).map_err(failed)?;
        // Read the file again: another host may have created it first, and then its id counts.
        found = read(&path).map_err(failed)?;
    }
    let (file, inode) = found.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    if file.inode.is_some() && inode.is_some() && file.inode != inode {
        return Err(FleetError::Copied { file: path });
    }
    if file.store != store {
        return Err(FleetError::OtherStore {
            file: path,
            stored: text::escaped(&file.store).into_owned(),
            configured: store.to_owned(),
        });
    }
    Ok(file.id)
}

/// Fails if the data directory belongs to a fleet although no lease store is configured: this
/// server would deliver without the fleet's lease.
pub(super) fn check_without_store(data: &Path) -> Result<(), FleetError> {
    let path = path(data);
    match read(&path).map_err(|error| FleetError::disk(&path, error))? {
        Some((file, _)) => Err(FleetError::NoStore {
            stored: text::escaped(&file.store).into_owned(),
            file: path,
        }),
        None => Ok(()),
    }
}

fn path(data: &Path) -> PathBuf {
    data.join(DIR).join(FILE)
}

/// Returns the content of `fleet.json` and its present inode number, which differs from the stored
/// one in a copy; `None` if there is no such file.
fn read(path: &Path) -> io::Result<Option<(FleetFile, Option<u64>)>> {
    let file = match data_file::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        // The data directory is itself a file and no directory, so it belongs to no fleet. The run
        // that follows reports the error.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(None),
        opened => opened?,
    };
    let inode = data_file::inode(&file)?;
    let mut text = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut text)?;
    let damaged = |why: String| {
        let why = format!(
            "{why}; stop llmlb on all hosts and remove the file, then the next start creates it again"
        );
        io::Error::new(io::ErrorKind::InvalidData, why)
    };
    let file: FleetFile = serde_json::from_slice(&text).map_err(|error| {
        damaged(format!(
            "the content of the fleet file is not valid ({error})"
        ))
    })?;
    if file.version != VERSION {
        let (found, known) = (file.version, VERSION);
        return Err(damaged(format!(
            "the fleet file has version {found}, and this llmlb knows only version {known}"
        )));
    }
    Ok(Some((file, inode)))
}

/// Creates the file `fleet.json` with a new id, complete or not at all. Does nothing if it exists.
fn create(path: &Path, store: &str) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        data_file::make_dir(dir)?;
    }
    let id = Uuid::now_v7();
    let new = path.with_extension(format!("{}.tmp", id.simple()));
    let mut opened = data_file::append(&new)?;
    let mut write = || {
        let mut text = serde_json::to_vec(&FleetFile {
            version: VERSION,
            id,
            store: store.to_owned(),
            inode: data_file::inode(&opened)?,
        })?;
        text.push(b'\n');
        opened.write_all(&text)?;
        opened.sync_all()
    };
    let linked = write()
        // Link the new file to its name. A rename would replace a file, and so the id, that another
        // host has created first.
        .and_then(|()| std::fs::hard_link(&new, path));
    let _ = std::fs::remove_file(&new);
    match linked {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_created_once_and_the_store_is_compared() {
        let dir = tempfile::tempdir().unwrap();
        let first = id(dir.path(), "redis://h").unwrap();
        assert_eq!(id(dir.path(), "redis://h").unwrap(), first);
        create(&path(dir.path()), "redis://other").unwrap();
        assert_eq!(id(dir.path(), "redis://h").unwrap(), first);
        let other = id(dir.path(), "redis://other").unwrap_err();
        assert!(matches!(other, FleetError::OtherStore { .. }), "{other:?}");
        let names = std::fs::read_dir(dir.path().join(DIR)).unwrap().count();
        assert_eq!(names, 1, "no temporary file is left");
    }

    #[test]
    fn copy_of_a_data_directory_is_refused_until_its_file_is_removed() {
        let [original, copy] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let first = id(original.path(), "redis://h").unwrap();
        let file = std::fs::File::open(path(original.path())).unwrap();
        if data_file::inode(&file).unwrap().is_none() {
            return; // Windows: copies are not recognized.
        }
        std::fs::create_dir(copy.path().join(DIR)).unwrap();
        std::fs::copy(path(original.path()), path(copy.path())).unwrap();
        let error = id(copy.path(), "redis://h").unwrap_err();
        assert!(matches!(error, FleetError::Copied { .. }), "{error:?}");
        let hint = error.hint().unwrap();
        let rm = format!("rm {}", path(copy.path()).display());
        assert!(hint.ends_with(&rm), "{hint}");
        // The original data directory keeps its id, even after it was moved.
        let moved = tempfile::tempdir().unwrap();
        std::fs::rename(original.path().join(DIR), moved.path().join(DIR)).unwrap();
        assert_eq!(id(moved.path(), "redis://h").unwrap(), first);
        std::fs::remove_file(path(copy.path())).unwrap();
        assert_ne!(id(copy.path(), "redis://h").unwrap(), first);
    }

    #[test]
    fn file_without_an_inode_number_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(DIR)).unwrap();
        let old = format!(
            "{{\"version\":1,\"id\":\"{}\",\"store\":\"redis://h\"}}",
            Uuid::nil()
        );
        std::fs::write(path(dir.path()), old).unwrap();
        assert_eq!(id(dir.path(), "redis://h").unwrap(), Uuid::nil());
    }

    #[test]
    fn damaged_and_newer_files_are_reported_and_not_replaced() {
        for text in ["", "{", "{\"version\":1}", "\0\0", "[]"] {
            let dir = tempfile::tempdir().unwrap();
            std::fs::create_dir(dir.path().join(DIR)).unwrap();
            std::fs::write(path(dir.path()), text).unwrap();
            let error = id(dir.path(), "redis://h").unwrap_err().to_string();
            assert!(error.contains("not valid"), "{error}");
            assert!(check_without_store(dir.path()).is_err());
            assert_eq!(std::fs::read_to_string(path(dir.path())).unwrap(), text);
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(DIR)).unwrap();
        let newer = format!(
            "{{\"version\":2,\"id\":\"{}\",\"store\":\"x\"}}",
            Uuid::nil()
        );
        std::fs::write(path(dir.path()), newer).unwrap();
        let error = id(dir.path(), "redis://h").unwrap_err().to_string();
        assert!(error.contains("has version 2"), "{error}");
    }
}
