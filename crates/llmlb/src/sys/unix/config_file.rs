//! Opens configuration files that only this user and root can have written, so that another user
//! cannot change the server's configuration.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, StatVfsMountFlags, fcntl_setfl, statvfs};
use rustix::process::{getegid, geteuid};

use super::users;
use crate::sys::Exposed;

const ROOT: u32 = 0;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Properties of a configuration file that differ after it was changed or replaced. Symbolic links
/// are followed, so that a switched link, as of a Kubernetes ConfigMap, counts as a change as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    /// Time of the last change of content, owner or mode.
    changed: (i64, i64),
}

/// Returns the signature of a configuration file; `None` if the file does not exist or cannot be
/// reached.
pub(crate) fn signature(path: &Path) -> Option<Signature> {
    let found = fs::metadata(path).ok()?;
    Some(Signature {
        device: found.dev(),
        inode: found.ino(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
        changed: (found.ctime(), found.ctime_nsec()),
    })
}

/// Opens a configuration file and checks the open descriptor: the file must belong to this user or
/// root, and no other user may write or replace it. Returns `Ok(Err)` if another user may.
pub(crate) fn open(path: &Path) -> io::Result<Result<File, Exposed>> {
    // Open with NONBLOCK, because opening another user's FIFO would otherwise block until the FIFO
    // has a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if let Some(exposed) = exposed(&found, path)? {
        return Ok(Err(exposed));
    }
    if found.is_file() || found.is_dir() {
        return Ok(Ok(file));
    }
    // The file is this user's own pipe, such as a shell's `<(…)`. Keep the descriptor and wait for
    // data: the writer may write and close at once, and a second descriptor would then find an
    // empty pipe.
    let _ = poll(&mut [PollFd::new(&file, PollFlags::IN)], None);
    fcntl_setfl(&file, OFlags::empty())?;
    Ok(Ok(file))
}

/// Returns the way in which another user could have written the opened file, if there is one.
fn exposed(found: &Metadata, path: &Path) -> io::Result<Option<Exposed>> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    if let Some(exposed) = by_owner(found.uid(), user) {
        return Ok(Some(exposed));
    }
    // Pipes and terminals need no further check: they cannot be replaced in a directory, and the
    // mode of a terminal lets its group write.
    if !found.is_file() {
        return Ok(None);
    }
    if let Some(exposed) = by_mode(found.mode(), found.gid(), user, group) {
        return Ok(Some(exposed));
    }
    let real = fs::canonicalize(path)?;
    let current = fs::metadata(&real)?;
    if (current.dev(), current.ino()) != (found.dev(), found.ino()) {
        return Ok(Some(Exposed::Replaced));
    }
    for directory in [parent(path), parent(&real)] {
        if is_open(&directory)? {
            return Ok(Some(Exposed::Directory(directory)));
        }
    }
    Ok(None)
}

fn by_owner(owner: u32, user: u32) -> Option<Exposed> {
    let is_trusted = owner == user || owner == ROOT;
    (!is_trusted).then(|| Exposed::Owner(users::shown(owner)))
}

/// Returns the users besides the owner that may write a file with this mode. A group with the same
/// number as the user is private to the user, as many systems set it up, and may write.
fn by_mode(mode: u32, owning_group: u32, user: u32, group: u32) -> Option<Exposed> {
    let is_own_group = owning_group == group && owning_group == user;
    if mode & OTHERS_WRITE != 0 {
        Some(Exposed::Others)
    } else if mode & GROUP_WRITES != 0 && !is_own_group {
        Some(Exposed::Group(owning_group))
    } else {
        None
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// True if every user may replace files in a directory, and so a configuration file in it. With the
/// sticky bit only their owners may, and on a read-only file system, such as a Kubernetes volume,
/// no user may.
fn is_open(directory: &Path) -> io::Result<bool> {
    let mode = fs::metadata(directory)?.mode();
    if mode & OTHERS_WRITE == 0 || mode & STICKY != 0 {
        return Ok(false);
    }
    let mount = statvfs(directory)?;
    Ok(!mount.f_flag.contains(StatVfsMountFlags::RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_exposed_unless_this_user_or_root_owns_it() {
        assert_eq!(by_owner(1000, 1000), None);
        assert_eq!(by_owner(0, 1000), None);
        assert_eq!(by_owner(0, 0), None);
        for (owner, user) in [(1001, 1000), (1000, 0)] {
            let exposed = by_owner(owner, user);
            assert!(matches!(exposed, Some(Exposed::Owner(_))), "{owner} {user}");
        }
    }

    #[test]
    fn file_is_exposed_when_others_or_a_shared_group_may_write() {
        let judged = |mode, group| by_mode(mode, group, 1000, 1000);
        assert_eq!(judged(0o644, 5), None);
        assert_eq!(judged(0o640, 5), None);
        assert_eq!(judged(0o664, 1000), None, "the user's own group");
        assert_eq!(judged(0o664, 5), Some(Exposed::Group(5)));
        assert_eq!(judged(0o666, 1000), Some(Exposed::Others));
        assert_eq!(judged(0o602, 1000), Some(Exposed::Others));
        // Group 100 is shared by several users, so its members could change the file.
        assert_eq!(by_mode(0o664, 100, 1000, 100), Some(Exposed::Group(100)));
    }
}
