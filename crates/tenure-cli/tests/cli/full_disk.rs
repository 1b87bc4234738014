//! No space left. Needs root, who can mount a small file system.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use crate::process::until;
use crate::support::{Place, skip};
use crate::unix::{is_alive, is_root};

/// A place whose lock directory is on a small file system of its own.
struct SmallDisk {
    here: Place,
}

impl SmallDisk {
    /// `None` if nothing can be mounted here.
    fn new() -> Option<Self> {
        if !is_root() {
            skip("only root can mount a small file system");
            return None;
        }
        let here = Place::new();
        fs::create_dir(here.locks()).expect("the lock directory");
        let mount = here
            .program("mount")
            .words("-t tmpfs -o size=64k,mode=755 tmpfs");
        if mount.arg(here.locks()).finish().code == Some(0) {
            Some(Self { here })
        } else {
            skip("no file system can be mounted here");
            None
        }
    }

    fn filler(&self) -> PathBuf {
        self.here.locks().join("filler")
    }

    fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("a file");
        until("the disk is full", || filler.write_all(&[0; 512]).is_err());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let umount = self.here.program("umount").arg("--lazy");
        umount.arg(self.here.locks()).finish();
    }
}

// T3, T6: the lock decides, not the record; one warning, and nothing is left.
#[test]
fn full_disk_is_reported_and_the_command_runs_under_the_lock() {
    let Some(disk) = SmallDisk::new() else { return };
    disk.fill();
    let outcome = disk.here.tenure("run x -- echo in").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.text(), "in\n");
    let path = disk.here.lock_file("x").display().to_string();
    assert!(outcome.stderr.contains(&path), "{outcome:?}");
    assert!(outcome.stderr.contains("no space left"), "{outcome:?}");
    assert!(!disk.here.has_lock_file("x"));
}

// T1, T5: an owner without a record keeps others out, and is not mistaken for another process.
#[test]
fn owner_without_a_record_keeps_others_out() {
    let Some(disk) = SmallDisk::new() else { return };
    disk.fill();
    let started = disk.here.path("started");
    let script = format!("touch {}; sleep 300", started.display());
    let launch = disk.here.tenure("run x -- sh -c").arg(script);
    let mut owner = launch.start();
    until("the command runs", || started.exists());
    let refused = disk.here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    assert!(refused.stderr.contains("an unknown process"), "{refused:?}");
    assert!(owner.is_running());
}

// T1, T8: an owner from before is still one, and can still be stopped.
#[test]
fn an_owner_keeps_its_key_while_the_disk_is_full() {
    let Some(disk) = SmallDisk::new() else { return };
    let owner = disk.here.hold("x");
    disk.fill();
    let refused = disk.here.tenure("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(disk.here.status("x")["pid"], owner.wrapper);
    let stopped = disk.here.tenure("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!is_alive(owner.command));
    assert!(!disk.here.has_lock_file("x"));
}
