//! Opens and creates files in a data directory. Links are not followed, so that another user cannot
//! redirect a write, and a FIFO is an error instead of a hang.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, fchown, lchown};
use std::path::Path;

use super::users;
use crate::sys::Exposed;

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Opens a regular file of the data directory for reading.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path)
}

/// Opens a regular file of the data directory for appending. A missing file is created with mode
/// 0600. A file that root creates is given to the owner of its directory, because the server of
/// that user could not open it otherwise.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = regular(options.append(true).create(true).mode(0o600), path)?;
    give_to_owner_of_dir(&file, path)?;
    Ok(file)
}

/// Creates a file for reading and writing at any offset, with the mode and owner that [`append`]
/// gives. Fails if the file exists.
pub(crate) fn create_new(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    let file = regular(&mut options, path)?;
    give_to_owner_of_dir(&file, path)?;
    Ok(file)
}

fn give_to_owner_of_dir(file: &File, path: &Path) -> io::Result<()> {
    if geteuid().is_root() && file.metadata()?.uid() == 0 {
        let dir = parent(path).metadata()?;
        // Ignore an error: root in a container may lack the right to change owners, and the file
        // then stays root's.
        if dir.uid() != 0 {
            let _ = fchown(file, Some(dir.uid()), Some(dir.gid()));
        }
    }
    Ok(())
}

/// Opens a regular file for reading, and checks the open descriptor: no other user may have written
/// or replaced the file. Returns `Ok(Err)` if another user may. Root also trusts the owner of the
/// file's directory, to whom the files belong that root creates.
pub(crate) fn open_trusted(path: &Path) -> io::Result<Result<File, Exposed>> {
    trusted(open(path)?, path)
}

/// As [`open_trusted`], but for reading and writing at any offset. Network file systems require the
/// right to write for a lock.
pub(crate) fn open_trusted_to_change(path: &Path) -> io::Result<Result<File, Exposed>> {
    let file = regular(OpenOptions::new().read(true).write(true), path)?;
    trusted(file, path)
}

fn trusted(file: File, path: &Path) -> io::Result<Result<File, Exposed>> {
    let found = file.metadata()?;
    let directory = parent(path).metadata()?;
    let (user, owner) = (geteuid(), found.uid());
    let is_trusted =
        owner == user.as_raw() || owner == 0 || (user.is_root() && directory.uid() == owner);
    // In a directory with the sticky bit, users can replace only files of their own, so other users
    // cannot replace this file.
    let is_replaceable = directory.mode() & 0o1002 == 0o002;
    Ok(match found.mode() {
        _ if !is_trusted => Err(Exposed::Owner(users::shown(owner))),
        mode if mode & 0o002 != 0 => Err(Exposed::Others),
        mode if mode & 0o020 != 0 => Err(Exposed::Group(found.gid())),
        _ if is_replaceable => Err(Exposed::Directory(parent(path).to_owned())),
        _ => Ok(file),
    })
}

/// Creates a file with mode 0600 that belongs to the owner of its directory. Fails for a user who is
/// neither this owner nor root: the owner could not read the file.
pub(crate) fn create_for_owner(path: &Path) -> io::Result<File> {
    let dir = parent(path).metadata()?;
    let user = geteuid();
    if !user.is_root() && dir.uid() != user.as_raw() {
        let owner = users::shown(dir.uid());
        let message = format!("the directory belongs to another user, {owner}");
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, message));
    }
    let mut options = OpenOptions::new();
    let file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    if dir.uid() != user.as_raw() {
        fchown(&file, Some(dir.uid()), Some(dir.gid()))?;
    }
    Ok(file)
}

/// Checks that only users who may write the data directory could have put files into this
/// subdirectory of it. The subdirectory must belong to this user, root, or the owner of the data
/// directory.
pub(crate) fn check_dir(dir: &Path) -> io::Result<()> {
    let refused = |why: String| io::Error::new(io::ErrorKind::PermissionDenied, why);
    let found = dir.symlink_metadata()?;
    let (user, owner) = (geteuid(), found.uid());
    let is_owner_of_data = || -> io::Result<bool> { Ok(parent(dir).metadata()?.uid() == owner) };
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    if owner != user.as_raw() && owner != 0 && !(user.is_root() && is_owner_of_data()?) {
        let owner = users::shown(owner);
        return Err(refused(format!(
            "the directory belongs to another user, {owner}"
        )));
    }
    if found.mode() & 0o002 != 0 {
        return Err(refused("other users may write the directory".to_owned()));
    }
    Ok(())
}

/// Syncs the names in a directory, so that a new or renamed file is not lost in a power failure.
pub(crate) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// True if opening failed because the file, or a directory that would contain it, does not exist.
pub(crate) fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Properties of a file that differ after a change of its content, its owner or its mode, and after
/// its replacement. A reader sees by them that it must read the file again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp([i64; 9]);

/// Returns the properties of a file; `None` if it does not exist. Links are not followed.
pub(crate) fn stamp(path: &Path) -> io::Result<Option<FileStamp>> {
    let found = match path.symlink_metadata() {
        Err(error) if is_absent(&error) => return Ok(None),
        found => found?,
    };
    Ok(Some(FileStamp([
        found.dev().cast_signed(),
        found.ino().cast_signed(),
        found.size().cast_signed(),
        found.mtime(),
        found.mtime_nsec(),
        found.ctime(),
        found.ctime_nsec(),
        found.uid().into(),
        found.mode().into(),
    ])))
}

pub(crate) fn append_existing(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().append(true), path)
}

/// Returns the inode number of a file. It is the same on all hosts that share the file system, and
/// a copy of the file has another one.
pub(crate) fn inode(file: &File) -> io::Result<Option<u64>> {
    Ok(Some(file.metadata()?.ino()))
}

/// Creates a directory and its missing parents with mode 0700. A directory that root creates is
/// given to the owner of its parent.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    if geteuid().is_root() {
        let parent = parent(dir).metadata()?;
        // Ignore an error, as for files: only root can then use the directory.
        let _ = lchown(dir, Some(parent.uid()), Some(parent.gid()));
    }
    Ok(())
}

/// Returns the directory of a file, which is `.` for a relative path without a directory.
fn parent(path: &Path) -> &Path {
    let parent = path.parent();
    parent
        .filter(|dir| !dir.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

fn regular(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options
        .custom_flags(flags.bits().cast_signed())
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ))
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn open_rejects_links_and_does_not_block_on_a_fifo() {
        let dir = tempfile::tempdir().unwrap();
        let (link, other) = (dir.path().join("link"), dir.path().join("other"));
        std::os::unix::fs::symlink(&other, &link).unwrap();
        append(&link).unwrap_err();
        assert!(!other.exists());
        let fifo = dir.path().join("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert_eq!(open(&fifo).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        append(&fifo).unwrap_err();
    }

    #[test]
    fn directory_of_another_user_is_not_trusted() {
        let data = tempfile::tempdir().unwrap();
        let dir = data.path().join("dir");
        make_dir(&dir).unwrap();
        check_dir(&dir).unwrap();
        let link = data.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        check_dir(&link).unwrap_err();
        set_permissions(&dir, Permissions::from_mode(0o1777)).unwrap();
        check_dir(&dir).unwrap_err();
        set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        check_dir(&dir).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&dir, Some(65_534), None).unwrap();
            let error = check_dir(&dir).unwrap_err();
            assert!(error.to_string().contains("another user"), "{error}");
            std::os::unix::fs::chown(data.path(), Some(65_534), None).unwrap();
            check_dir(&dir).unwrap();
        }
    }

    /// In a directory that every user may write, another user could restore an old file, whose keys
    /// have been revoked.
    #[test]
    fn file_that_others_can_write_or_replace_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "").unwrap();
        for (of_dir, of_file, is_trusted) in [
            (0o700, 0o600, true),
            (0o755, 0o644, true),
            (0o1777, 0o600, true),
            (0o777, 0o600, false),
            (0o703, 0o600, false),
            (0o700, 0o602, false),
            (0o700, 0o620, false),
        ] {
            set_permissions(dir.path(), Permissions::from_mode(of_dir)).unwrap();
            set_permissions(&path, Permissions::from_mode(of_file)).unwrap();
            for open in [open_trusted, open_trusted_to_change] {
                let opened = open(&path).unwrap();
                assert_eq!(opened.is_ok(), is_trusted, "{of_dir:o} {of_file:o}");
            }
        }
    }
}
