//! Linux and macOS.
//!
//! Root may work in the data directory of another user, such as a service's. Root's own files there
//! would lock that user out, so everything root creates belongs to the owner of its directory. The
//! owner is set on the open descriptor: a path could name another file by then.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::not_a_file;

/// Makes a directory for its owner alone: this user or, for root, the owner of the directory above.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(dir)?;
    if !geteuid().is_root() {
        return Ok(());
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let made = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(dir)?;
    give_to_owner_of_parent(&made, dir)
}

/// Makes a file for its owner alone: this user or, for root, the owner of the directory.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    if geteuid().is_root() {
        give_to_owner_of_parent(&file, path)?;
    }
    Ok(file)
}

/// Called by root alone, for a file or directory that root has just created at this path.
fn give_to_owner_of_parent(made: &File, path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).metadata()?;
    // Another process's file that came to this path meanwhile is not ours to give away.
    if parent.uid() == 0 || made.metadata()?.uid() != 0 {
        return Ok(());
    }
    match fchown(made.as_fd(), Some(parent.uid()), Some(parent.gid())) {
        // A container's root may have no right to do so, or not know the owner: the file is usable
        // for root alone then.
        Err(error) if is_beyond_this_root(&error) => Ok(()),
        given => given,
    }
}

fn is_beyond_this_root(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
    )
}

/// Opens a file that is there. Links are not followed; a FIFO or a device is not waited for.
pub(crate) fn open(path: &Path, to_write: bool) -> io::Result<File> {
    // What is no regular file is closed at once, so that the flag changes nothing for one that is.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = File::options()
        .read(true)
        .write(to_write)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = match opened.as_ref().map_err(Errno::from_io_error) {
        // A link; a socket, or a FIFO that nobody reads; a directory.
        Err(Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR)) => return Err(not_a_file()),
        _ => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    Ok(file)
}

/// Writes to a place in a file.
pub(crate) fn write_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, at)
}

/// Waits until the names in a directory are on the disk.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NONBLOCK;
    let dir = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(dir)?;
    dir.sync_all()
}

/// True if a path names this open file.
pub(crate) fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let named = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        named => named?,
    };
    let ours = file.metadata()?;
    Ok((named.dev(), named.ino()) == (ours.dev(), ours.ino()))
}

/// APFS copies on write and has no flag against that: on a full disk of macOS the reserve may not be
/// writable, and delivery resumes when there is space.
#[cfg(not(target_os = "linux"))]
pub(crate) fn overwrite_in_place(_file: &File) {}
