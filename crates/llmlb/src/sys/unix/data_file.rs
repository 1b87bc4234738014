//! Files in a data directory: other users' links are not followed, and FIFOs are not waited for.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;

use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Opens a file to read it.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    regular(OpenOptions::new().read(true), path)
}

/// Opens a file to append to it, and creates it for its owner alone if it is missing. A file that
/// root creates belongs to the owner of its directory, who could not use it otherwise.
pub(crate) fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = regular(options.append(true).create(true).mode(0o600), path)?;
    if geteuid().is_root()
        && file.metadata()?.uid() == 0
        && let Some(dir) = path.parent()
    {
        let dir = dir.metadata()?;
        // A container's root may have no right to do so; the file is root's then.
        if dir.uid() != 0 {
            let _ = fchown(&file, Some(dir.uid()), Some(dir.gid()));
        }
    }
    Ok(file)
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
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn link_is_not_followed_and_fifo_is_not_waited_for() {
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
}
