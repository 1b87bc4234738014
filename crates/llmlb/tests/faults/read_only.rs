//! A disk, or a directory, that can only be read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use crate::books::Policy;
use crate::elsewhere::{run_elsewhere, small_world};
use crate::fault::Mix;
use crate::process::Running;
use crate::reckoning::Reckoning;
use crate::world::World;
use testkit::until;

#[test]
fn delivery_pauses_on_a_read_only_disk_and_resumes() {
    run_elsewhere("read_only::pauses");
}

/// `false`: somebody has a file open for writing just now.
fn remount(how: &str, path: &Path) -> bool {
    let options = format!("remount,{how}");
    let mut command = Command::new("mount");
    command.args(["-o", &options]).arg(path);
    command.output().unwrap().status.success()
}

#[test]
#[ignore = "another test runs it where it can mount"]
fn pauses() {
    let world = small_world(Policy::ByRecord, Mix::none(), 8);
    let mut delivered = 0;
    // From the start, and in the middle of its life.
    let mut deliverer = None;
    for round in 0..2 {
        if deliverer.is_some() {
            world.stage_fresh(60, 0).assert_code(0);
            until("it delivers", || world.waiting() == 0);
        } else {
            world.stage_fresh(60, 0).assert_code(0);
        }
        until("nobody writes just now", || remount("ro", world.data()));
        let said = world.log().len();
        let asked = world.receiver.state().tally.requests;
        let running = deliverer.take().unwrap_or_else(|| world.start_deliverer());
        until("it says so", || {
            world.log()[said..].to_lowercase().contains("read-only")
        });
        let refused = world.stage_fresh(1, 0);
        refused.assert_code(1);
        assert!(
            refused.stderr.to_lowercase().contains("read-only"),
            "{refused:#?}"
        );
        let once = world.deliver_now();
        if round == 0 {
            // What waits cannot be delivered.
            once.assert_code(1);
            assert!(
                once.stderr.to_lowercase().contains("read-only"),
                "{once:#?}"
            );
        }
        for words in ["pending", "failed", "verify", "pending --json"] {
            world.run(words).assert_code(0);
        }
        // Nothing is sent whose delivery could not be noted.
        assert_eq!(world.receiver.state().tally.requests, asked);
        assert!(remount("rw", world.data()));
        world.stage_fresh(60, 0).assert_code(0);
        until("it delivers again", || world.waiting() == 0);
        delivered += 1;
        deliverer = Some(running);
    }
    deliverer.unwrap().terminate();
    let what = format!("read-only disk, {delivered} times");
    Reckoning::of(&what, &world).must_be_clean();
}

#[test]
fn delivery_pauses_in_a_read_only_directory_and_resumes() {
    if !testkit::has_root("who can become a user with a read-only directory").unwrap() {
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
    until("it says so", || world.log().contains("permission denied"));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(world.receiver.state().tally.requests, 0);
    shell("find . -type d -exec chmod 755 {} +");
    until("it delivers", || world.waiting() == 0);
    deliverer.terminate();
    Reckoning::of("read-only directory", &world).must_be_clean();
}
