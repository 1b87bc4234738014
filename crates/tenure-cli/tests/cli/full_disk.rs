//! Tests of locks on a full disk. They need root, which can mount a small file system.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use crate::process::until;
use crate::support::{Sandbox, skip};
use crate::unix::{is_alive, is_root};

/// Sandbox whose lock directory is on its own small file system.
struct SmallDisk {
    sandbox: Sandbox,
}

impl SmallDisk {
    /// Returns `None` if file systems cannot be mounted here.
    fn new() -> Option<Self> {
        if !is_root() {
            skip("only root can mount a small file system");
            return None;
        }
        let sandbox = Sandbox::new();
        fs::create_dir(sandbox.locks()).expect("the lock directory");
        let mount = sandbox
            .program("mount")
            .words("-t tmpfs -o size=64k,mode=755 tmpfs");
        if mount.arg(sandbox.locks()).finish().code == Some(0) {
            Some(Self { sandbox })
        } else {
            skip("no file system can be mounted here");
            None
        }
    }

    fn filler(&self) -> PathBuf {
        self.sandbox.locks().join("filler")
    }

    fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("a file");
        until("the disk is full", || filler.write_all(&[0; 512]).is_err());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let umount = self.sandbox.program("umount").arg("--lazy");
        umount.arg(self.sandbox.locks()).finish();
    }
}

// T3, T6: ownership is the lock, not the lock record. One warning is logged, and no file is left.
#[test]
fn full_disk_is_reported_and_the_command_runs_under_the_lock() {
    let Some(disk) = SmallDisk::new() else { return };
    disk.fill();
    let outcome = disk.sandbox.tenure("run x -- echo in").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.text(), "in\n");
    let path = disk.sandbox.lock_file("x").display().to_string();
    assert!(outcome.stderr.contains(&path), "{outcome:?}");
    assert!(outcome.stderr.contains("no space left"), "{outcome:?}");
    assert!(!disk.sandbox.has_lock_file("x"));
}

// T1, T5: an owner without a lock record excludes others and is not mistaken for another process.
#[test]
fn owner_without_a_lock_record_refuses_others() {
    let Some(disk) = SmallDisk::new() else { return };
    disk.fill();
    let started = disk.sandbox.path("started");
    let script = format!("touch {}; sleep 300", started.display());
    let launch = disk.sandbox.tenure("run x -- sh -c").arg(script);
    let mut owner = launch.start();
    until("the command is running", || started.exists());
    let refused = disk.sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    assert!(refused.stderr.contains("an unknown process"), "{refused:?}");
    assert!(owner.is_running());
}

// T1, T8: an owner that acquired its key before the disk was full keeps the key and can be stopped.
#[test]
fn owner_keeps_its_key_while_the_disk_is_full() {
    let Some(disk) = SmallDisk::new() else { return };
    let owner = disk.sandbox.hold("x");
    disk.fill();
    let refused = disk.sandbox.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(disk.sandbox.status("x")["pid"], owner.wrapper);
    let stopped = disk.sandbox.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
    assert!(!disk.sandbox.has_lock_file("x"));
}
