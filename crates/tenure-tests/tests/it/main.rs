//! Tests of each promise of `tenure` with real processes. The numbers (T1, T2, ..) are those of
//! docs/lock-protocol.md.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "an error in a helper must fail its test"
)]

mod bad_files;
#[cfg(unix)]
mod fork;
mod guard;
#[cfg(unix)]
mod hostile;
mod kept_file;
mod lost_file;
mod moved;
#[cfg(target_os = "linux")]
mod namespaces;
#[cfg(unix)]
mod never_two;
#[cfg(target_os = "linux")]
mod pid_reuse;
mod read_lock;
mod recovery;
mod refusals;
#[cfg(target_os = "linux")]
mod squatter;
mod stop;
mod tokens;
#[cfg(target_os = "linux")]
mod two_users;
mod waiting;

use std::path::{Path, PathBuf};

use tempfile::TempDir;
use tenure::{Error, Key, Status, Store, Tenure};
use tenure_tests::Owner;

/// Path of the `owner` program, which acquires a key and executes the requests that a test writes
/// to its stdin.
const OWNER: &str = env!("CARGO_BIN_EXE_owner");

/// Temporary store of one test, with one key.
struct Fixture {
    dir: TempDir,
    store: Store,
    key: Key,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::in_dir(dir.path());
        Self {
            dir,
            store,
            key: Key::name("k").unwrap(),
        }
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn file(&self) -> PathBuf {
        self.store.path_of(&self.key)
    }

    fn try_acquire(&self) -> Result<Tenure, Error> {
        self.store.claim(&self.key).try_acquire()
    }

    fn status(&self) -> Status {
        self.store.status(&self.key).unwrap()
    }

    fn owner(&self) -> Owner {
        Owner::holding(OWNER, self.dir(), "k")
    }
}

/// A process whose parent does not wait for it; killed when dropped, so that a failed test leaves
/// no process running.
#[cfg(unix)]
struct Orphan(rustix::process::Pid);

#[cfg(unix)]
impl Orphan {
    fn new(answer: &str) -> Self {
        Self(rustix::process::Pid::from_raw(answer.parse().unwrap()).unwrap())
    }
}

#[cfg(unix)]
impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(self.0, rustix::process::Signal::KILL);
    }
}

/// A `sleep` process that owns no key, so it must never be named or signalled as an owner. It is
/// killed when dropped.
#[cfg(unix)]
struct UnrelatedProcess(std::process::Child);

#[cfg(unix)]
#[cfg_attr(
    target_os = "macos",
    expect(dead_code, reason = "only tests for Linux use these")
)]
impl UnrelatedProcess {
    fn new() -> Self {
        Self(
            std::process::Command::new("sleep")
                .arg("60")
                .spawn()
                .unwrap(),
        )
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

#[cfg(unix)]
impl Drop for UnrelatedProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(unix)]
fn root(purpose: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        tenure_tests::skip(&format!("{purpose} needs root"));
    }
    root
}
