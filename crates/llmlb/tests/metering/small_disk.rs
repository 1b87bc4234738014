//! A small disk that a test can fill, in a mount namespace of its own.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use testkit::Sandbox;

/// Runs an ignored test of this program in a mount namespace of its own.
pub(crate) fn run_in_mount_namespace(role: &str) {
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        let is_root = rustix::process::geteuid().is_root();
        command.arg(if is_root { "-m" } else { "-rm" }).args(words);
        command
    };
    let probe = unshare(&["true"]).status();
    if !probe.is_ok_and(|status| status.success()) {
        return testkit::skip("the right to make a mount namespace").unwrap();
    }
    testkit::run_role(&mut unshare(&[]), role).unwrap();
}

/// Data directory of a sandbox on a disk of its own.
pub(crate) struct SmallDisk {
    filler: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(sandbox: &Sandbox, size: u32) -> Self {
        let data = sandbox.path("data");
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

    pub(crate) fn empty(&self) {
        fs::remove_file(&self.filler).unwrap();
    }
}
