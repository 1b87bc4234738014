//! Tests that run in a mount namespace of their own: what they mount is gone with them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::books::Policy;
use crate::fault::Mix;
use crate::process::Outcome;
use crate::receiver::Receiver;
use crate::world::World;

/// Says that a test is skipped because whoever runs it may not do what it takes.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
}

/// Says that a test is skipped for lack of a tool; where tools were installed it is not.
pub(crate) fn skip_without(tool: &str) {
    assert!(
        std::env::var_os("REQUIRE_TEST_TOOLS").is_none(),
        "{tool} is not installed: scripts/install-test-tools"
    );
    skip(&format!("{tool} is not installed"));
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs one of the ignored tests where it can mount what it likes.
pub(crate) fn run_elsewhere(role: &str) {
    let unshare = |words: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .arg(if is_root() { "-m" } else { "-rm" })
            .args(words);
        command
    };
    if !unshare(&["true"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip("no mount namespace can be had here");
    }
    let mut command = unshare(&[]);
    command.arg(std::env::current_exe().unwrap()).args([
        "--exact",
        role,
        "--ignored",
        "--nocapture",
    ]);
    let outcome = Outcome::of(&mut command, b"");
    print!("{}", counts(&outcome.out));
    assert_eq!(outcome.code, Some(0), "{}{}", outcome.out, outcome.err);
}

/// The lines of a test's output that are not the test runner's.
fn counts(out: &str) -> String {
    let ours = out.lines().filter(|line| line.contains(": "));
    let ours = ours.filter(|line| !line.starts_with("test result"));
    ours.flat_map(|line| [line, "\n"]).collect()
}

/// A world whose data is on a disk of its own, of this many mebibytes.
pub(crate) fn small_world(policy: Policy, mix: Mix, size: u32) -> World {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    fs::create_dir(&data).unwrap();
    let options = format!("size={size}m,mode=777");
    let mount = Command::new("mount")
        .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
        .arg(&data)
        .status();
    assert!(mount.unwrap().success());
    World::around(dir, data, Receiver::start(policy, mix))
}

/// What fills a disk: the data of others.
pub(crate) struct Filler(PathBuf);

impl Filler {
    pub(crate) fn of(world: &World) -> Self {
        Self(world.data().join("data-of-others"))
    }

    /// Takes all that is free, to the last byte.
    pub(crate) fn fill(&self) {
        let mut file = crate::process::append(&self.0);
        for size in [1 << 16, 1 << 12, 1] {
            while std::io::Write::write(&mut file, &vec![7; size]).is_ok_and(|count| count > 0) {}
        }
    }

    pub(crate) fn empty(&self) {
        fs::remove_file(&self.0).unwrap();
    }
}
