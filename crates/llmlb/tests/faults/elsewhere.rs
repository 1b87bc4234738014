//! Tests that run in a mount namespace of their own: what they mount is gone with them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::geteuid;

use crate::books::Policy;
use crate::fault::Mix;
use crate::receiver::Receiver;
use crate::world::World;

/// Runs one of the ignored tests where it can mount what it likes.
pub(crate) fn run_elsewhere(role: &str) {
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .arg(if geteuid().is_root() { "-m" } else { "-rm" })
            .args(words);
        command
    };
    if !unshare(&["true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return testkit::skip("the right to make a mount namespace").unwrap();
    }
    let out = testkit::run_role(&mut unshare(&[]), role).unwrap();
    print!("{}", counts(&out));
}

/// The lines of a test's output that are not the test runner's.
fn counts(out: &str) -> String {
    let ours = out.lines().filter(|line| line.contains(": "));
    let ours = ours.filter(|line| !line.starts_with("test result"));
    ours.flat_map(|line| [line, "\n"]).collect()
}

/// A world whose data is on a disk of its own, of this many mebibytes.
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

/// A file system in a file, with the smallest size that its tools allow.
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

/// Runs one of the ignored tests if it can make and mount such a file system.
pub(crate) fn run_on_image(image: Image, role: &str) {
    if !testkit::has_root("loop devices").unwrap() {
        return;
    }
    let known = Command::new(image.mkfs()).arg("-V").output();
    if !known.is_ok_and(|ran| ran.status.success()) {
        return testkit::skip(image.mkfs()).unwrap();
    }
    run_elsewhere(role);
}

/// A world whose data is on a file system of its own.
pub(crate) fn world_on_image(policy: Policy, mix: Mix, image: Image) -> World {
    let sandbox = testkit::sandbox!();
    let (data, file) = (sandbox.data_dir(), sandbox.path("image"));
    fs::create_dir(&data).unwrap();
    let bytes = image.mebibytes() << 20;
    fs::File::create(&file).unwrap().set_len(bytes).unwrap();
    let made = Command::new(image.mkfs()).arg("-q").arg(&file).output();
    assert!(made.as_ref().unwrap().status.success(), "{made:?}");
    let mounted = Command::new("mount")
        .args(["-o", "loop"])
        .args([&file, &data])
        .output();
    assert!(mounted.as_ref().unwrap().status.success(), "{mounted:?}");
    World::around(sandbox, data, Receiver::start(policy, mix))
}

/// What fills a disk: the data of others.
#[derive(Clone)]
pub(crate) struct Filler(PathBuf);

impl Filler {
    pub(crate) fn of(world: &World) -> Self {
        Self(world.data().join("data-of-others"))
    }

    /// Takes all that is free, to the last byte.
    pub(crate) fn fill(&self) {
        let mut file = testkit::append(&self.0).unwrap();
        for size in [1 << 16, 1 << 12, 1] {
            while std::io::Write::write(&mut file, &vec![7; size]).is_ok_and(|count| count > 0) {}
        }
    }

    pub(crate) fn empty(&self) {
        fs::remove_file(&self.0).unwrap();
    }
}
