//! Functions for Linux and macOS.
//!
//! Root may work in the data directory of another user, such as a service's. That user could not
//! use files of root, so the files that root creates belong to the owner of their directory. The
//! owner is set on the open descriptor, because the path could name another file by then.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::process::geteuid;

use super::not_a_file;

/// Creates a directory with mode 0700. Its owner is this user, or for root the owner of the parent.
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

/// Creates a file with mode 0600. Its owner is this user, or for root the owner of the directory.
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

/// Gives a file or directory that root has just created at this path to the owner of the parent.
fn give_to_owner_of_parent(made: &File, path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new(".")).metadata()?;
    // A file that does not belong to root was put at this path by another process. Its owner is not
    // changed.
    if parent.uid() == 0 || made.metadata()?.uid() != 0 {
        return Ok(());
    }
    match fchown(made.as_fd(), Some(parent.uid()), Some(parent.gid())) {
        // Ignore the error: the root of a container may lack the permission, or the owner may have
        // no id there. Then only root can use the file.
        Err(error) if is_owner_change_denied(&error) => Ok(()),
        changed => changed,
    }
}

fn is_owner_change_denied(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput
    )
}

/// Opens an existing regular file. Does not follow links, and does not block on a FIFO or a device.
pub(crate) fn open(path: &Path, to_write: bool) -> io::Result<File> {
    // `O_NONBLOCK` keeps `open` from blocking on a FIFO or a device, which is closed at once below.
    // The flag has no effect on regular files.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = File::options()
        .read(true)
        .write(to_write)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = match opened.as_ref().map_err(Errno::from_io_error) {
        // `open` fails with ELOOP for a link, with ENXIO for a socket or a FIFO without a reader,
        // and with EISDIR for a directory. Report all of them as "not a regular file".
        Err(Some(Errno::LOOP | Errno::NXIO | Errno::ISDIR)) => return Err(not_a_file()),
        _ => opened?,
    };
    if !file.metadata()?.is_file() {
        return Err(not_a_file());
    }
    Ok(file)
}

pub(crate) fn write_at(file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
    file.write_all_at(bytes, at)
}

/// Syncs a directory, so that the names of its files survive a power failure.
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
    let at_path = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        at_path => at_path?,
    };
    let open = file.metadata()?;
    Ok((at_path.dev(), at_path.ino()) == (open.dev(), open.ino()))
}

/// Does nothing: APFS copies on write and has no flag against it. On a full disk of macOS the
/// reserve may not be writable; delivery resumes when the disk has space.
#[cfg(not(target_os = "linux"))]
pub(crate) fn overwrite_in_place(_file: &File) {}
