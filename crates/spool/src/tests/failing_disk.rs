//! A disk on which chosen files cannot be read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use crate::disk::{Disk, RealDisk};

/// Way in which reading a file fails.
#[derive(Clone, Copy, Debug)]
pub(super) enum ReadFault {
    /// The file cannot be opened.
    Open,
    /// The file can be opened, and reads fail from this byte on.
    AfterByte(u64),
}

#[derive(Debug, Default)]
pub(super) struct FailingDisk {
    files: Mutex<BTreeMap<PathBuf, ReadFault>>,
}

impl FailingDisk {
    pub(super) fn fail(&self, path: &Path, fault: ReadFault) {
        self.files.lock().unwrap().insert(path.to_owned(), fault);
    }

    pub(super) fn clear_faults(&self) {
        self.files.lock().unwrap().clear();
    }

    fn fault_at(&self, path: &Path) -> Option<ReadFault> {
        self.files.lock().unwrap().get(path).copied()
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(5)
}

impl Disk for FailingDisk {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.make_dir(dir)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        RealDisk.create(path)
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        RealDisk.write_at(file, at, bytes)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        RealDisk.append(file, bytes)
    }

    fn sync(&self, _file: &File) -> io::Result<()> {
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn truncate(&self, file: &File, length: u64) -> io::Result<()> {
        RealDisk.truncate(file, length)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        match self.fault_at(path) {
            Some(ReadFault::Open) => Err(eio()),
            _ => RealDisk.open(path),
        }
    }

    fn open_to_write(&self, path: &Path) -> io::Result<File> {
        match self.fault_at(path) {
            Some(ReadFault::Open) => Err(eio()),
            _ => RealDisk.open_to_write(path),
        }
    }

    fn read(&self, mut file: &File, into: &mut [u8]) -> io::Result<usize> {
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        if let Some(ReadFault::AfterByte(end)) = self.fault_at(&path) {
            let at = io::Seek::stream_position(&mut file)?;
            let left = usize::try_from(end.saturating_sub(at)).unwrap();
            if left == 0 {
                return Err(eio());
            }
            let max_bytes = left.min(into.len());
            return RealDisk.read(file, &mut into[..max_bytes]);
        }
        RealDisk.read(file, into)
    }
}
