//! The promises of `tenure`, each tried with real processes. The numbers (T1, T2, ..) are those of
//! docs/lock-protocol.md.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on must fail"
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

/// The program that owns as it is told.
const OWNER: &str = env!("CARGO_BIN_EXE_owner");

/// A directory of its own for each test, with one key in it.
struct Scene {
    dir: TempDir,
    store: Store,
    key: Key,
}

impl Scene {
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

    fn take(&self) -> Result<Tenure, Error> {
        self.store.claim(&self.key).try_acquire()
    }

    fn status(&self) -> Status {
        self.store.status(&self.key).unwrap()
    }

    /// Another process that holds the key.
    fn owner(&self) -> Owner {
        Owner::holding(OWNER, self.dir(), "k")
    }
}

/// A process that nobody waits for; killed when dropped, so that a failed test leaves none behind.
#[cfg(unix)]
struct Orphan(rustix::process::Pid);

#[cfg(unix)]
impl Orphan {
    /// From what an owner answers to `fork`.
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

/// A `sleep` that has nothing to do with any key; killed when dropped.
#[cfg(unix)]
struct Stranger(std::process::Child);

#[cfg(unix)]
#[cfg_attr(
    target_os = "macos",
    expect(dead_code, reason = "some tests need Linux")
)]
impl Stranger {
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

    fn lives(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

#[cfg(unix)]
impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// True if this test runs as root. Otherwise it is skipped and says so, or fails where everything that
/// tests need is promised to be there.
#[cfg(unix)]
fn root(what: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        tenure_tests::skip(&format!("{what} needs root"));
    }
    root
}
