//! Data directories on a read-only disk or with read-only permissions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::audit::Audit;
use crate::billing::Policy;
use crate::fault::Mix;
use crate::mount_namespace::{run_in_mount_namespace, small_world};
use crate::process::Running;
use crate::world::World;
use testkit::until;

#[test]
fn delivery_pauses_on_a_read_only_disk_and_resumes() {
    run_in_mount_namespace("read_only::deliver_on_read_only_disk");
}

/// Remounts a disk. Returns false if that failed, for example because a file is open for writing;
/// the caller then tries again.
fn remount(mode: &str, path: &Path) -> bool {
    let options = format!("remount,{mode}");
    let mut command = Command::new("mount");
    command.args(["-o", &options]).arg(path);
    command.output().unwrap().status.success()
}

#[test]
#[ignore = "runs in a mount namespace that another test creates"]
fn deliver_on_read_only_disk() {
    let world = small_world(Policy::ByRecord, Mix::none(), 8);
    let mut delivered = 0;
    // In the first round the deliverer starts on the read-only disk. In the second round the disk
    // becomes read-only while the deliverer runs.
    let mut deliverer = None;
    for round in 0..2 {
        if deliverer.is_some() {
            world.stage_fresh(60, 0).assert_code(0);
            until("everything is delivered", || world.waiting() == 0);
        } else {
            world.stage_fresh(60, 0).assert_code(0);
        }
        until("the disk is remounted", || remount("ro", world.data()));
        let log_length = world.log().len();
        let requests = world.receiver.state().tally.requests;
        let running = deliverer.take().unwrap_or_else(|| world.start_deliverer());
        until("the problem is logged", || {
            world.log()[log_length..]
                .to_lowercase()
                .contains("read-only")
        });
        let rejected = world.stage_fresh(1, 0);
        rejected.assert_code(1);
        assert!(
            rejected.stderr.to_lowercase().contains("read-only"),
            "{rejected:#?}"
        );
        let once = world.deliver_now();
        if round == 0 {
            // In the first round records are staged but not consolidated. A read-only disk prevents
            // consolidation, so the run must fail with this reason.
            once.assert_code(1);
            assert!(
                once.stderr.to_lowercase().contains("read-only"),
                "{once:#?}"
            );
        }
        for arguments in ["pending", "failed", "verify", "pending --json"] {
            world.run(arguments).assert_code(0);
        }
        // No batch is sent while its delivery state cannot be stored: a restart could not know of the
        // attempt.
        assert_eq!(world.receiver.state().tally.requests, requests);
        assert!(remount("rw", world.data()));
        world.stage_fresh(60, 0).assert_code(0);
        until("everything is delivered again", || world.waiting() == 0);
        delivered += 1;
        deliverer = Some(running);
    }
    deliverer.unwrap().terminate();
    let title = format!("read-only disk, {delivered} times");
    Audit::new(&title, &world).print_and_assert_clean();
}

#[test]
fn delivery_pauses_in_a_read_only_directory_and_resumes() {
    if !testkit::has_root("to run as a user with a read-only directory").unwrap() {
        return;
    }
    let world = World::new(Policy::ByRecord, Mix::none());
    world.stage_fresh(60, 0).assert_code(0);
    world.run("pending").assert_code(0);
    let above = world.data().parent().unwrap().to_owned();
    fs::set_permissions(&above, PermissionsExt::from_mode(0o777)).unwrap();
    let shell = |line: &str| {
        let status = Command::new("sh")
            .args(["-ec", line])
            .current_dir(world.data())
            .status();
        assert!(status.unwrap().success(), "{line}");
    };
    shell("chown -R 65534:65534 . && find . -type d -exec chmod 555 {} +");
    let usage = world.usage("deliver --every 200ms --timeout 1s --max-wait 2s");
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(usage.get_program())
        .args(usage.get_args())
        .current_dir(&above);
    for (name, value) in usage.get_envs() {
        if let Some(value) = value {
            command.env(name, value);
        }
    }
    let deliverer = Running::start(&mut command, &world.path("log"));
    until("the problem is logged", || {
        world.log().contains("permission denied")
    });
    thread::sleep(Duration::from_millis(500));
    assert_eq!(world.receiver.state().tally.requests, 0);
    shell("find . -type d -exec chmod 755 {} +");
    until("everything is delivered", || world.waiting() == 0);
    deliverer.terminate();
    Audit::new("read-only directory", &world).print_and_assert_clean();
}
