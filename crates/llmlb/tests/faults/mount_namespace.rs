//! Tests in a mount namespace of their own. Their mounts disappear with the process.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::geteuid;

use crate::billing::Policy;
use crate::fault::Mix;
use crate::receiver::Receiver;
use crate::world::World;

/// Starts this test program again in a mount namespace of its own, where it runs the ignored test
/// `role`. Mounting a disk needs this namespace and changes nothing for other processes.
pub(crate) fn run_in_mount_namespace(role: &str) {
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .arg(if geteuid().is_root() { "-m" } else { "-rm" })
            .args(arguments);
        command
    };
    if !unshare(&["true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return testkit::skip("the right to create a mount namespace").unwrap();
    }
    let out = testkit::run_role(&mut unshare(&[]), role).unwrap();
    print!("{}", without_runner_lines(&out));
}

/// Returns the lines of a test's output that do not come from the test runner.
fn without_runner_lines(out: &str) -> String {
    let lines = out.lines().filter(|line| line.contains(": "));
    let lines = lines.filter(|line| !line.starts_with("test result"));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns a world whose data directory is a tmpfs of this many mebibytes.
pub(crate) fn small_world(policy: Policy, mix: Mix, size: u32) -> World {
    let sandbox = testkit::sandbox!();
    let data = sandbox.data_dir();
    fs::create_dir(&data).unwrap();
    let options = format!("size={size}m,mode=777");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
        .arg(&data)
        .status();
    assert!(mount.unwrap().success());
    World::around(sandbox, data, Receiver::start(policy, mix))
}

/// File system in a file, of the smallest size that its tools allow.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Image {
    Ext4,
    Xfs,
}

impl Image {
    pub(crate) fn mkfs(self) -> &'static str {
        match self {
            Self::Ext4 => "mkfs.ext4",
            Self::Xfs => "mkfs.xfs",
        }
    }

    fn mebibytes(self) -> u64 {
        match self {
            Self::Ext4 => 32,
            Self::Xfs => 300,
        }
    }
}

pub(crate) fn run_on_image(image: Image, role: &str) {
    if !testkit::has_root("for loop devices").unwrap() {
        return;
    }
    let version = Command::new(image.mkfs()).arg("-V").output();
    if !version.is_ok_and(|outcome| outcome.status.success()) {
        return testkit::skip(image.mkfs()).unwrap();
    }
    run_in_mount_namespace(role);
}

/// Returns a world whose data directory is a file system of its own.
pub(crate) fn world_on_image(policy: Policy, mix: Mix, image: Image) -> World {
    let sandbox = testkit::sandbox!();
    let (data, file) = (sandbox.data_dir(), sandbox.path("image"));
    fs::create_dir(&data).unwrap();
    let bytes = image.mebibytes() << 20;
    fs::File::create(&file).unwrap().set_len(bytes).unwrap();
    let created = Command::new(image.mkfs()).arg("-q").arg(&file).output();
    assert!(created.as_ref().unwrap().status.success(), "{created:?}");
    let mounted = Command::new("mount")
        .args(["-o", "loop"])
        .args([&file, &data])
        .output();
    assert!(mounted.as_ref().unwrap().status.success(), "{mounted:?}");
    World::around(sandbox, data, Receiver::start(policy, mix))
}

/// File of another program that fills the disk.
#[derive(Clone)]
pub(crate) struct Filler(PathBuf);

impl Filler {
    pub(crate) fn new(world: &World) -> Self {
        Self(world.data().join("data-of-others"))
    }

    /// Allocates all free space, to the last byte.
    pub(crate) fn fill(&self) {
        let mut file = testkit::append(&self.0).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while std::io::Write::write(&mut file, &vec![7; size]).is_ok_and(|count| count > 0) {}
        }
    }

    /// Frees the space.
    pub(crate) fn empty(&self) {
        fs::remove_file(&self.0).unwrap();
    }
}
