//! Opens files that contain a secret, such as a private key.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

const OTHER_USERS: u32 = 0o077;
const GROUP_READ: u32 = 0o040;
const ROOT: u32 = 0;

/// Opens a regular file that contains a secret. The second value is the mode of the file if other
/// users may access it, for an error message.
///
/// As with ssh, the mode counts only if the file belongs to this user, who can change it. A file of
/// another user was shared on purpose, and so was a file of root that its group may read: a service
/// that is not root reads its key there, and root can check the configuration of that service.
pub(crate) fn open(path: &Path) -> io::Result<(File, Option<u32>)> {
    // Open with NONBLOCK, because opening a FIFO would otherwise block until it has a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(io::Error::other("the path does not name a regular file"));
    }
    let mode = exposed(found.mode(), found.uid(), geteuid().as_raw());
    Ok((file, mode))
}

fn exposed(mode: u32, owner: u32, user: u32) -> Option<u32> {
    let mode = mode & 0o7777;
    let allowed = if owner == ROOT { GROUP_READ } else { 0 };
    (owner == user && mode & OTHER_USERS & !allowed != 0).then_some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_this_user_is_exposed_when_others_have_any_permission() {
        assert_eq!(exposed(0o100_600, 1000, 1000), None);
        assert_eq!(exposed(0o100_400, 1000, 1000), None);
        for mode in [0o644, 0o640, 0o604, 0o610] {
            assert_eq!(exposed(0o100_000 | mode, 1000, 1000), Some(mode));
            assert_eq!(exposed(0o100_000 | mode, 0, 1000), None, "root's file");
        }
    }

    #[test]
    fn file_of_root_may_be_readable_by_its_group() {
        assert_eq!(exposed(0o100_640, ROOT, ROOT), None);
        assert_eq!(exposed(0o100_440, ROOT, ROOT), None);
        for mode in [0o644, 0o660, 0o641, 0o650] {
            assert_eq!(exposed(0o100_000 | mode, ROOT, ROOT), Some(mode));
        }
    }
}
