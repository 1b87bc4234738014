//! Small file system for tests of locks on a full or read-only disk. Mounting it needs root.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mounted tmpfs, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    dir: tempfile::TempDir,
}

impl SmallDisk {
    /// Mounts a file system of 64 KiB.
    pub fn mount() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let disk = Self { dir };
        fs::create_dir(disk.path()).expect("a mount point");
        disk.run(
            "mount",
            &["-t", "tmpfs", "-o", "size=64k,mode=755", "tmpfs"],
        );
        disk
    }

    /// Mount point.
    pub fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    /// Fills the file system to the last byte.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("a file");
        while filler.write_all(&[0; 512]).is_ok() {}
    }

    /// Frees the space that `fill` took.
    pub fn empty(&self) {
        fs::remove_file(self.filler()).expect("a filled disk");
    }

    /// Remounts the file system read-only.
    pub fn make_read_only(&self) {
        self.run("mount", &["-o", "remount,ro"]);
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let done = command(program, arguments, &self.path()).status();
        assert!(done.is_ok_and(|status| status.success()), "{program}");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = command("umount", &["--lazy"], &self.path()).status();
    }
}

fn command(program: &str, arguments: &[&str], path: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).arg(path);
    command
}
