//! Two users on one machine. Needs root, who can become another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use tenure_tests::run_as::RunAs;

use crate::busy_machine::Bustle;
use crate::process::Launch;
use crate::support::{Owner, Place, TENURE, skip};
use crate::unix::is_root;

const NOBODY: u32 = 65534;

/// A temporary directory that root and another user share, and the tool where both can run it.
struct Shared {
    here: Place,
    temp: PathBuf,
    tool: PathBuf,
}

impl Shared {
    /// `None` if this process cannot become another user.
    fn new() -> Option<Self> {
        if !is_root() {
            skip("only root can become another user");
            return None;
        }
        let here = Place::new();
        let (temp, tool) = (here.path("tmp"), here.path("tool"));
        fs::create_dir(&temp).expect("a shared directory");
        fs::copy(TENURE, &tool).expect("a copy of the tool");
        set_mode(&here.path(""), 0o755);
        set_mode(&tool, 0o755);
        set_mode(&temp, 0o1777);
        let shared = Self { here, temp, tool };
        let probe = shared.as_nobody("--version").finish();
        if probe.code != Some(0) {
            skip("setpriv cannot make another user of us");
            return None;
        }
        Some(shared)
    }

    fn launch(&self, program: impl AsRef<std::ffi::OsStr>) -> Launch {
        let launch = self.here.program(program).env("TENURE_DIR", "");
        launch.env("TMPDIR", &self.temp)
    }

    fn as_root(&self, words: &str) -> Launch {
        self.launch(&self.tool).words(words)
    }

    fn as_nobody(&self, words: &str) -> Launch {
        let launch = self.launch("setpriv");
        let launch = launch.words("--reuid=65534 --regid=65534 --clear-groups");
        launch.arg(&self.tool).words(words)
    }

    fn file(&self, path: &str) -> PathBuf {
        self.temp.join(path)
    }

    fn root_holds_x(&self) -> Owner {
        let process = self.as_root("run x -- sleep 300").start();
        Owner::found(process, &self.file("tenure/name_x.lock"))
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("a new mode");
}

// T1, T5, Where: a key that is held in either directory is held.
#[test]
fn a_key_that_another_user_holds_is_refused() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let refused = shared.as_nobody("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    assert_eq!(refused.text(), "");
    assert!(
        refused.stderr.contains("another user's process"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("root"), "{refused:?}");
    assert!(!shared.file("tenure-65534/name_x.lock").exists());
}

// T1: the kernel's table of locks is all that says so, and it must be read with care.
#[test]
fn a_key_that_another_user_holds_is_refused_on_a_busy_machine_too() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let _bustle = Bustle::start(&shared.here);
    for attempt in 0..200 {
        let refused = shared.as_nobody("run x -- echo in").finish();
        assert_eq!(refused.code, Some(75), "attempt {attempt}: {refused:?}");
    }
}

// Command: `status` says another user's.
#[test]
fn status_says_that_another_user_holds_it() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let table = shared.as_nobody("status x").finish();
    assert_eq!(table.code, Some(0), "{table:?}");
    assert!(table.text().contains("held (another user's)"), "{table:?}");
}

// T8: not ours to stop.
#[test]
fn another_users_owner_is_not_stopped() {
    let Some(shared) = Shared::new() else { return };
    let mut owner = shared.root_holds_x();
    let refused = shared.as_nobody("stop --force x").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("another user"), "{refused:?}");
    assert!(owner.process.is_running());
}

// T8: root may stop every user's owner, and cleans up what a killed one left.
#[test]
fn root_stops_another_users_owner_by_force() {
    let Some(shared) = Shared::new() else { return };
    let script = "trap '' TERM; while :; do sleep 1; done";
    let launch = shared.as_nobody("run x -- sh -c").arg(script);
    let mut owner = Owner::found(launch.start(), &shared.file("tenure/name_x.lock"));
    // The wrapper cannot clean up.
    crate::unix::send(owner.wrapper, libc::SIGSTOP);
    let stopped = shared.as_root("stop --force --timeout 0.2 x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.text().contains("was killed"), "{stopped:?}");
    assert!(!owner.process.is_running());
    assert!(!shared.file("tenure/name_x.lock").exists());
    let next = shared.as_nobody("run x -- echo in").finish();
    assert_eq!(next.text(), "in\n", "{next:?}");
}

// T8: the same for what another user's crashed owner left.
#[test]
fn root_cleans_up_what_another_users_owner_left() {
    let Some(shared) = Shared::new() else { return };
    let process = shared.as_nobody("run x -- sleep 300").start();
    let mut owner = Owner::found(process, &shared.file("tenure/name_x.lock"));
    owner.crash();
    let stopped = shared.as_root("stop x").finish();
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(
        stopped.text().contains("removed a stale file"),
        "{stopped:?}"
    );
    assert!(!shared.file("tenure/name_x.lock").exists());
}

// T1, Command: the hint must not lead to a second owner.
#[test]
fn key_that_another_user_may_hold_is_refused_and_the_hint_is_harmless() {
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
    assert_eq!(refused.text(), "", "the command ran");
    for part in [&file, "root", "cannot be told", "let in a second owner"] {
        assert!(refused.stderr.contains(part), "{part:?} in {refused:?}");
    }
    assert!(!refused.stderr.contains("remove or repair"), "{refused:?}");

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
    assert!(stopped.stderr.contains("cannot be told"), "{stopped:?}");
}

// T5: a command that stops it is shown only for locks of our own user.
#[test]
fn refusal_by_another_users_owner_shows_no_stop_command() {
    let Some(shared) = Shared::new() else { return };
    let process = shared.as_nobody("run x -- sleep 300").start();
    let _owner = Owner::found(process, &shared.file("tenure/name_x.lock"));
    for (launch, shown) in [
        (shared.as_root("run x -- echo in"), false),
        (shared.as_nobody("run x -- echo in"), true),
    ] {
        let refused = launch.finish();
        assert_eq!(refused.code, Some(75), "{refused:?}");
        assert!(refused.stderr.contains("user nobody"), "{refused:?}");
        assert_eq!(refused.stderr.contains("stops it"), shown, "{refused:?}");
    }
}

// Where: a directory of one's own beside that of another user.
#[test]
fn another_key_works_in_a_directory_of_ones_own() {
    let Some(shared) = Shared::new() else { return };
    let _owner = shared.root_holds_x();
    let process = shared.as_nobody("run y -- sleep 300").start();
    let file = shared.file("tenure-65534/name_y.lock");
    let _other = Owner::found(process, &file);
    assert!(!shared.file("tenure/name_y.lock").exists());
    let refused = shared.as_nobody("run y -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
}

// Where, T1: whoever came first, the other one looks into both directories.
#[test]
fn root_sees_a_key_that_the_owner_of_the_first_directory_holds() {
    let Some(shared) = Shared::new() else { return };
    let process = shared.as_nobody("run x -- sleep 300").start();
    let owner = Owner::found(process, &shared.file("tenure/name_x.lock"));
    let refused = shared.as_root("run x -- echo in").finish();
    assert_eq!(refused.code, Some(75), "{refused:?}");
    let named = format!("pid {}", owner.wrapper);
    assert!(refused.stderr.contains(&named), "{refused:?}");
}

// T9: our lock directory, owned by someone else.
#[test]
fn a_chosen_directory_of_another_user_is_refused() {
    let Some(shared) = Shared::new() else { return };
    let theirs = shared.file("theirs");
    fs::create_dir(&theirs).unwrap();
    chown(&theirs, Some(NOBODY - 1), None).unwrap();
    set_mode(&theirs, 0o777 & !0o002);
    let launch = shared.as_nobody("run x -- echo in");
    let refused = launch.env("TENURE_DIR", &theirs).finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("belongs to"), "{refused:?}");
    assert!(refused.stderr.contains("theirs"), "{refused:?}");
}

// T9: a directory that only its owner may write.
#[test]
fn a_directory_without_permission_is_a_clear_refusal() {
    let Some(shared) = Shared::new() else { return };
    let launch = shared
        .as_nobody("run --file")
        .arg(shared.here.path("my.lock"));
    let refused = launch.words("-- echo in").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("my.lock"), "{refused:?}");
    assert!(refused.stderr.contains("permission denied"), "{refused:?}");
}

// T9: any directory that others may write without the sticky bit.
#[test]
fn a_shared_directory_that_is_not_sticky_is_refused() {
    let Some(shared) = Shared::new() else { return };
    set_mode(&shared.temp, 0o777);
    let refused = shared.as_nobody("run x -- echo in").finish();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("not sticky"), "{refused:?}");
    assert_eq!(fs::read_dir(&shared.temp).unwrap().count(), 0);
}

// T9: `--file` in a sticky directory is fine.
#[test]
fn a_file_of_ones_own_in_a_sticky_directory_works() {
    let Some(shared) = Shared::new() else { return };
    let launch = shared.as_nobody("run --file").arg(shared.file("my.lock"));
    let outcome = launch.words("-- echo in").finish();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.text(), "in\n");
    assert!(!shared.file("my.lock").exists());
}

// T9: another user's file at the path.
#[test]
fn another_users_file_is_refused_and_not_touched() {
    let Some(shared) = Shared::new() else { return };
    let file = shared.file("their.lock");
    for mode in [0o600, 0o666] {
        fs::write(&file, "theirs").unwrap();
        set_mode(&file, mode);
        let launch = shared.as_nobody("run --file").arg(&file);
        let refused = launch.words("-- echo in").finish();
        assert_eq!(refused.code, Some(1), "{mode:o}: {refused:?}");
        assert!(refused.stderr.contains("belongs to root"), "{refused:?}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "theirs");
    }
}

// T9: root is no exception.
#[test]
fn another_users_file_is_refused_for_root_too() {
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
