//! Two users on one machine. The tests need root, which can become another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tenure_tests::run_as::RunAs;

use crate::busy_machine::LockTraffic;
use crate::process::Launch;
use crate::support::{Owner, Sandbox, TENURE, skip};
use crate::unix::is_root;

const NOBODY: u32 = 65534;

/// Temporary directory that root and another user share, and a copy of the command that both can
/// execute.
struct Shared {
    sandbox: Sandbox,
    temp: PathBuf,
    tool: PathBuf,
}

impl Shared {
    /// Returns `None` if this process cannot become another user.
    fn new() -> Option<Self> {
        if !is_root() {
            skip("only root can become another user");
            return None;
        }
        let sandbox = Sandbox::new();
        let (temp, tool) = (sandbox.path("tmp"), sandbox.path("tool"));
        fs::create_dir(&temp).expect("a shared directory");
        fs::copy(TENURE, &tool).expect("a copy of the tool");
        set_mode(&sandbox.path(""), 0o755);
        set_mode(&tool, 0o755);
        set_mode(&temp, 0o1777);
        let shared = Self {
            sandbox,
            temp,
            tool,
        };
        let probe = shared.as_user("--version").finish();
        if probe.code != Some(0) {
            skip("setpriv cannot switch to another user here");
            return None;
        }
        Some(shared)
    }

    fn launch(&self, program: impl AsRef<std::ffi::OsStr>) -> Launch {
        let launch = self.sandbox.program(program).env("TENURE_DIR", "");
        launch.env("TMPDIR", &self.temp)
    }

    fn as_root(&self, words: &str) -> Launch {
        self.launch(&self.tool).words(words)
    }

    fn as_user(&self, words: &str) -> Launch {
        let launch = self.launch("setpriv");
        let launch = launch.words("--reuid=65534 --regid=65534 --clear-groups");
        launch.arg(&self.tool).words(words)
    }

    fn file(&self, path: &str) -> PathBuf {
        self.temp.join(path)
    }

    fn root_holds_x(&self) -> Owner {
        let process = self.as_root("run x -- sleep 300").start();
        Owner::wait_for(process, &self.file("tenure/name_x.lock"))
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a new mode");
}

// T1, T5: root and the user have separate lock directories. A key that is held in one of them is
// held for both users.
#[test]
fn key_held_by_another_user_is_refused() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let refused = shared.as_user("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    assert!(
        refused.stderr.contains("another user's process"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("root"), "{refused:?}");
    assert!(!shared.file("tenure-65534/name_x.lock").exists());
}

// T5: the message of `stop` names the directory and its owner, not a lock file that it cannot see.
#[test]
fn stop_names_the_directory_that_it_may_not_search() {
    let Some(shared) = Shared::new() else { return };
    let closed = shared.file("closed");
    fs::create_dir(&closed).expect("a directory");
    set_mode(&closed, 0o744);
    let file = closed.join("x.lock");
    let refused = shared.as_user("stop --file").arg(&file).finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let expected = format!("{} belongs to root", closed.display());
    assert!(refused.stderr.contains(&expected), "{refused:?}");
}

// T1: only the kernel's lock table shows the owner, and reads of it may miss lines.
#[test]
fn key_held_by_another_user_is_refused_under_lock_traffic() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let _bustle = LockTraffic::start(&shared.sandbox);
    for attempt in 0..200 {
        let refused = shared.as_user("run x -- echo in").finish();
        assert_eq!(refused.code, Some(75), "attempt {attempt}: {refused:?}");
    }
}

#[test]
fn status_shows_that_another_user_holds_the_key() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let table = shared.as_user("status x").finish();
    assert_eq!(table.code, Some(0), "{table:?}");
    assert!(table.text().contains("held (another user's)"), "{table:?}");
}

// T8
#[test]
fn stop_refuses_the_owner_of_another_user() {
    let Some(shared) = Shared::new() else { return };
    let mut owner = shared.root_holds_x();
    let refused = shared.as_user("stop --force x").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("another user"), "{refused:?}");
    assert!(owner.process.is_running());
}

// T8: root may stop the owner of any user, and removes the lock file of an owner that it killed.
#[test]
fn root_kills_the_owner_of_another_user_with_force() {
    let Some(shared) = Shared::new() else { return };
    let script = "trap '' TERM; while :; do sleep 1; done";
    let launch = shared.as_user("run x -- sh -c").arg(script);
    let mut owner = Owner::wait_for(launch.start(), &shared.file("tenure/name_x.lock"));
    // Suspend the wrapper, so that it cannot remove its lock file and `stop` must do so.
    crate::unix::send(owner.wrapper, libc::SIGSTOP);
    let stopped = shared.as_root("stop --force --timeout 0.2 x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.text().contains("was killed"), "{stopped:?}");
    assert!(!owner.process.is_running());
    assert!(!shared.file("tenure/name_x.lock").exists());
    let next = shared.as_user("run x -- echo in").finish();
    assert_eq!(next.text(), "in\n", "{next:?}");
}

// T8
#[test]
fn root_removes_the_stale_file_of_another_user() {
    let Some(shared) = Shared::new() else { return };
    let process = shared.as_user("run x -- sleep 300").start();
    let mut owner = Owner::wait_for(process, &shared.file("tenure/name_x.lock"));
    owner.crash();
    let stopped = shared.as_root("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(
        stopped.text().contains("removed a stale lock file"),
        "{stopped:?}"
    );
    assert!(!shared.file("tenure/name_x.lock").exists());
}

// T1: following the hint must not admit a second owner.
#[test]
fn unknown_key_is_refused_with_a_safe_hint() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let file = shared.file("tenure/name_x.lock").display().to_string();
    let blind = RunAs::user(NOBODY)
        .in_pid_namespace()
        .in_network_namespace();
    let tool = |words: &str| {
        let prefix = blind.words();
        let launch = shared.launch(&prefix[0]).args(&prefix[1..]);
        launch.arg(&shared.tool).words(words).finish()
    };
    let refused = tool("run x -- echo in");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert_eq!(refused.text(), "", "the command was started");
    for part in [
        &file,
        "root",
        "cannot determine whether",
        "admit a second owner",
    ] {
        assert!(refused.stderr.contains(part), "{part:?} in {refused:?}");
    }
    assert!(!refused.stderr.contains("repair"), "{refused:?}");

    let table = tool("status x");
    assert_eq!(table.code, Some(1), "{table:?}");
    assert!(table.text().contains("unknown"), "{table:?}");
    let printed = tool("status --json x");
    let lock = &crate::support::json(&printed)["locks"][0];
    assert_eq!(
        (&lock["state"], &lock["user"]),
        (&"unknown".into(), &"root".into())
    );
    let stopped = tool("stop x");
    assert_eq!(stopped.code, Some(1), "{stopped:?}");
    assert!(
        stopped.stderr.contains("cannot determine whether"),
        "{stopped:?}"
    );
}

// T5: a stop command is shown only for locks of the caller's own user.
#[test]
fn refusal_shows_no_stop_command_of_another_user() {
    let Some(shared) = Shared::new() else { return };
    let process = shared.as_user("run x -- sleep 300").start();
    let _owner = Owner::wait_for(process, &shared.file("tenure/name_x.lock"));
    for (launch, shown) in [
        (shared.as_root("run x -- echo in"), false),
        (shared.as_user("run x -- echo in"), true),
    ] {
        let refused = launch.finish();
        assert_eq!(refused.code, Some(75), "{refused:?}");
        assert!(refused.stderr.contains("user nobody"), "{refused:?}");
        assert_eq!(
            refused.stderr.contains("stop the owner with"),
            shown,
            "{refused:?}"
        );
    }
}

// The first lock directory belongs to another user, so that this user gets a second one.
#[test]
fn free_key_is_acquired_in_the_users_own_directory() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let process = shared.as_user("run y -- sleep 300").start();
    let file = shared.file("tenure-65534/name_y.lock");
    let _other = Owner::wait_for(process, &file);
    assert!(!shared.file("tenure/name_y.lock").exists());
    let refused = shared.as_user("run y -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
}

// T1: both users check both directories, whichever user acquired the key first.
#[test]
fn root_is_refused_while_the_user_of_the_first_directory_holds_the_key() {
    let Some(shared) = Shared::new() else { return };
    let process = shared.as_user("run x -- sleep 300").start();
    let owner = Owner::wait_for(process, &shared.file("tenure/name_x.lock"));
    let refused = shared.as_root("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let named = format!("pid {}", owner.wrapper);
    assert!(refused.stderr.contains(&named), "{refused:?}");
}

// T9: another user who owns the lock directory could replace lock files in it.
#[test]
fn tenure_dir_of_another_user_is_refused() {
    let Some(shared) = Shared::new() else { return };
    let theirs = shared.file("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY - 1), None).unwrap();
    set_mode(&theirs, 0o777 & !0o002);
    let launch = shared.as_user("run x -- echo in");
    let refused = launch.env("TENURE_DIR", &theirs).finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("belongs to"), "{refused:?}");
    assert!(refused.stderr.contains("theirs"), "{refused:?}");
}

// T9: the lock directory may be written only by its owner, who is another user.
#[test]
fn directory_without_write_permission_is_refused() {
    let Some(shared) = Shared::new() else { return };
    let launch = shared
        .as_user("run --file")
        .arg(shared.sandbox.path("my.lock"));
    let refused = launch.words("-- echo in").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("my.lock"), "{refused:?}");
    assert!(refused.stderr.contains("permission denied"), "{refused:?}");
}

// T9: a directory that other users may write must be sticky.
#[test]
fn shared_directory_that_is_not_sticky_is_refused() {
    let Some(shared) = Shared::new() else { return };
    set_mode(&shared.temp, 0o777);
    let refused = shared.as_user("run x -- echo in").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("not sticky"), "{refused:?}");
    assert_eq!(fs::read_dir(&shared.temp).unwrap().count(), 0);
}

// T9: in a sticky directory other users cannot replace the lock file, so `--file` is accepted.
#[test]
fn own_file_in_a_sticky_directory_is_accepted() {
    let Some(shared) = Shared::new() else { return };
    let launch = shared.as_user("run --file").arg(shared.file("my.lock"));
    let outcome = launch.words("-- echo in").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.text(), "in\n");
    assert!(!shared.file("my.lock").exists());
}

// T9: a file of another user is never overwritten, whatever its mode permits.
#[test]
fn file_of_another_user_is_refused_and_unchanged() {
    let Some(shared) = Shared::new() else { return };
    let file = shared.file("their.lock");
    for mode in [0o600, 0o666] {
        fs::write(&file, "theirs").unwrap();
        set_mode(&file, mode);
        let launch = shared.as_user("run --file").arg(&file);
        let refused = launch.words("-- echo in").finish();
        assert_eq!(refused.code, Some(1), "{mode:o}: {refused:?}");
        assert!(refused.stderr.contains("belongs to root"), "{refused:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    }
}

// T9: root could overwrite any file, and is refused nevertheless.
#[test]
fn file_of_another_user_is_refused_for_root() {
    let Some(shared) = Shared::new() else { return };
    let file = shared.file("their.lock");
    fs::write(&file, "theirs").unwrap();
    chown(&file, Some(NOBODY), None).unwrap();
    let launch = shared.as_root("run --file").arg(&file);
    let refused = launch.words("-- echo in").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("belongs to nobody"), "{refused:?}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
}
