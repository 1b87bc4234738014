//! Delivery is refused where file locks are not visible between hosts. bindfs, mounted twice over the
//! same directory, is such a file system: the kernel keeps the locks of each mount apart.

use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Finished, UsageReceiver, until};

use crate::world::World;

/// Two views of one directory, on which locks are not shared.
struct TwoMounts {
    mounts: [PathBuf; 2],
}

impl TwoMounts {
    /// Mounts the two views; returns `None` if bindfs or FUSE is missing.
    fn new(of: &Path, root: &Path) -> Option<Self> {
        if !testkit::has_tool("bindfs").unwrap() {
            return None;
        }
        std::fs::create_dir_all(of).unwrap();
        let mounts = ["one", "two"].map(|name| root.join(name));
        let views = Self { mounts };
        for mount in &views.mounts {
            std::fs::create_dir(mount).unwrap();
            let mounted = Command::new("bindfs")
                .arg("--no-allow-other")
                .args([of, mount])
                .output();
            if !mounted.is_ok_and(|mounted| mounted.status.success()) {
                testkit::skip("FUSE").unwrap();
                return None;
            }
        }
        Some(views)
    }
}

impl Drop for TwoMounts {
    fn drop(&mut self) {
        for mount in &self.mounts {
            // A lazy unmount also succeeds if a failed test left a process that uses the mount.
            // Without it the mount would stay on the machine.
            let _ = Command::new("umount").arg("-l").arg(mount).output();
            let _ = Command::new("fusermount3").arg("-uz").arg(mount).output();
        }
    }
}

#[test]
fn deliverers_refuse_a_file_system_that_does_not_share_locks() {
    let Some(world) = World::new() else { return };
    let data = world.sandbox.data_dir();
    let Some(views) = TwoMounts::new(&data, world.sandbox.root()) else {
        return;
    };
    let receiver = UsageReceiver::always(200);
    world.stage(3);
    let words = ["deliver", "--to", &receiver.url, "--every", "100ms"];
    let runs = views.mounts.each_ref().map(|mount| {
        let mut command = world.command(&words);
        world.sandbox.start(command.env("LLMLB_DATA_DIR", mount))
    });
    let marker = data.join("fleet/locks-not-shared.json");
    until("one of them reports it", || marker.exists());
    for run in &runs {
        let text = run.until_output("are not visible on other hosts");
        assert!(text.contains("rm "), "{text}");
    }
    for run in runs {
        run.terminate().unwrap();
        run.end();
    }
    world.stage(1);
    // No deliverer may run on a file system that does not share locks: not through a mount, not in
    // the directory itself, and not without a lease store.
    for store in [true, false] {
        let mut command = world.command(&["deliver", "--to", &receiver.url]);
        if !store {
            command.env_remove("LLMLB_FLEET_STORE");
        }
        let refused = Finished::run(&mut command);
        refused.assert_code(1);
        let hint = format!("rm {}", marker.display());
        assert!(refused.stderr.contains(&hint), "{}", refused.output());
    }
    // Once the marker is removed, delivery works again. An operator does this after moving the data
    // to a file system that shares locks.
    std::fs::remove_file(&marker).unwrap();
    world
        .usage(&["deliver", "--to", &receiver.url])
        .assert_code(0);
    assert_eq!(receiver.distinct_records().len(), 4);
    assert_eq!(receiver.repeated_records(), 0);
}

#[test]
fn deliverers_that_share_locks_never_report_otherwise() {
    let Some(world) = World::new() else { return };
    let receiver = UsageReceiver::always(200);
    let mut runs: Vec<_> = (0..3)
        .map(|_| world.deliver_every(&receiver.url, "100ms"))
        .collect();
    for round in 1..=8 {
        world.stage(1);
        // A killed member leaves its file without a lock. Other members must not conclude that
        // locks are not shared.
        let killed = runs.remove(0);
        killed.kill();
        runs.push(world.deliver_every(&receiver.url, "100ms"));
        until("the record arrives", || {
            receiver.distinct_records().len() == round
        });
    }
    assert!(
        !world
            .sandbox
            .data_dir()
            .join("fleet/locks-not-shared.json")
            .exists()
    );
    for run in &runs {
        assert!(!run.output().contains("not visible"), "{}", run.output());
    }
}
