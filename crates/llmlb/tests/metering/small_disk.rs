//! A disk of one's own that can be filled: a test that runs in a mount namespace of its own.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use testkit::Sandbox;

/// Runs one of the ignored tests where it can mount what it likes.
pub(crate) fn run_elsewhere(role: &str) {
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        let is_root = rustix::process::geteuid().is_root();
        command.arg(if is_root { "-m" } else { "-rm" }).args(words);
        command
    };
    let can = unshare(&["true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return testkit::skip("the right to make a mount namespace").unwrap();
    }
    testkit::run_role(&mut unshare(&[]), role).unwrap();
}

/// The data directory of a place, on a disk of so many mebibytes.
pub(crate) struct SmallDisk {
    filler: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(place: &Sandbox, size: u32) -> Self {
        let data = place.path("data");
        fs::create_dir(&data).unwrap();
        let mount = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={size}m,mode=777"),
                "tmpfs",
            ])
            .arg(&data)
            .status();
        assert!(mount.unwrap().success());
        Self {
            filler: data.join("data-of-others"),
        }
    }

    /// Others take all that is free, to the last byte.
    pub(crate) fn fill(&self) {
        let mut options = OpenOptions::new();
        let mut file = options
            .append(true)
            .create(true)
            .open(&self.filler)
            .unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while file.write(&vec![7; size]).is_ok_and(|count| count > 0) {}
        }
    }

    /// They give it back.
    pub(crate) fn empty(&self) {
        fs::remove_file(&self.filler).unwrap();
    }
}
