//! Directory of a test, the command under test, and owners of keys.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

#[cfg(unix)]
use crate::process::until;
use crate::process::{Launch, Outcome, Process, eventually};

/// Command under test.
pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// Temporary directory of one test, which contains a lock directory.
pub(crate) struct Sandbox {
    dir: TempDir,
    launched: Cell<u32>,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            launched: Cell::new(0),
        }
    }

    /// Path of a file with this name in the temporary directory, beside the lock directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Lock directory. The command creates it on first use.
    pub(crate) fn locks(&self) -> PathBuf {
        self.path("locks")
    }

    pub(crate) fn lock_file(&self, name: &str) -> PathBuf {
        self.locks().join(format!("name_{name}.lock"))
    }

    /// True if a file or another object is at the path of a name's lock file.
    pub(crate) fn has_lock_file(&self, name: &str) -> bool {
        fs::symlink_metadata(self.lock_file(name)).is_ok()
    }

    /// Writes a lock file as a crashed owner or another program would have left it.
    pub(crate) fn leave_lock_file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.locks()).expect("the lock directory");
        fs::write(self.lock_file(name), content).expect("a lock file");
    }

    /// Content of the lock record of the key with this name; `None` if it is not readable now.
    pub(crate) fn record(&self, name: &str) -> Option<Value> {
        read_record(&self.lock_file(name))
    }

    pub(crate) fn tenure(&self, words: &str) -> Launch {
        self.program(TENURE).words(words)
    }

    /// Prepares any program.
    pub(crate) fn program(&self, program: impl AsRef<OsStr>) -> Launch {
        let number = self.launched.get();
        self.launched.set(number + 1);
        let out = self.path(&format!("{number}.out"));
        let err = self.path(&format!("{number}.err"));
        let mut launch = Launch::new(program, out, err);
        launch
            .command
            .env("TENURE_DIR", self.locks())
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        launch
    }

    /// Starts an owner that holds the key with this name and sleeps, and waits until its lock
    /// record is complete.
    pub(crate) fn hold(&self, name: &str) -> Owner {
        self.hold_with(name, self.tenure(&format!("run {name} --")).args(sleeper()))
    }

    /// Starts an owner with the given command line, and waits until its lock record is complete.
    pub(crate) fn hold_with(&self, name: &str, launch: Launch) -> Owner {
        let file = self.lock_file(name);
        Owner::wait_for(launch.start(), &file)
    }

    /// Starts `flock`, which holds the lock of an existing file, whatever its lock record names.
    #[cfg(target_os = "linux")]
    pub(crate) fn hold_by_flock(&self, name: &str) -> Process {
        let flock = self.program("flock").arg("--no-fork");
        let holder = flock.arg(self.lock_file(name)).words("sleep 300").start();
        until("flock has the lock", || {
            let locked = self.program("flock").arg("--nonblock");
            locked.arg(self.lock_file(name)).arg("true").finish().code == Some(1)
        });
        holder
    }

    pub(crate) fn status(&self, name: &str) -> Value {
        let outcome = self.tenure("status --json").arg(name).finish();
        json(&outcome)["locks"][0].clone()
    }

    /// Asserts that the key `x` is free, by running a command under it.
    #[cfg(unix)]
    pub(crate) fn assert_free(&self) {
        let next = self.tenure("run x -- echo in").finish();
        let outcome = (next.code, next.text());
        assert_eq!(outcome, (Some(0), "in\n".to_owned()), "{next:?}");
    }

    /// Starts a process that holds no lock, so `stop` and `status` must never take it for an owner.
    #[cfg(unix)]
    pub(crate) fn unrelated_process(&self) -> Process {
        let [program, arguments @ ..] = &sleeper()[..] else {
            panic!("no sleeper");
        };
        self.program(program).args(arguments).start()
    }
}

pub(crate) struct Owner {
    pub(crate) process: Process,
    pub(crate) wrapper: u32,
    pub(crate) command: u32,
}

impl Owner {
    /// Kills the wrapper and the command, as a crash would.
    #[cfg(unix)]
    pub(crate) fn crash(&mut self) {
        crate::unix::kill_group(self.wrapper);
        self.process.kill();
        until("the command has exited", || {
            !crate::unix::is_alive(self.command)
        });
    }

    /// Waits until a process has written its complete lock record into a file.
    pub(crate) fn wait_for(process: Process, file: &Path) -> Self {
        let waiting_for = format!("{} names the command", file.display());
        let (wrapper, command) = eventually(waiting_for, || {
            let record = read_record(file)?;
            Some((pid_in(&record["pid"])?, pid_in(&record["command"]["pid"])?))
        });
        Self {
            process,
            wrapper,
            command,
        }
    }
}

pub(crate) fn pid_in(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

pub(crate) fn read_record(file: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

pub(crate) fn json(outcome: &Outcome) -> Value {
    match serde_json::from_slice(&outcome.stdout) {
        Ok(value) => value,
        Err(error) => panic!("invalid JSON: {error}: {outcome:?}"),
    }
}

/// A command that sleeps for much longer than any test runs.
pub(crate) fn sleeper() -> Vec<&'static str> {
    if cfg!(windows) {
        vec!["ping", "-n", "300", "127.0.0.1"]
    } else {
        vec!["sleep", "300"]
    }
}

/// A sleeping command with an additional argument that has no effect. Tests check that the argument
/// is neither stored nor printed.
pub(crate) fn sleeper_with(word: &str) -> Vec<String> {
    if cfg!(windows) {
        let line = format!("ping -n 300 127.0.0.1 & rem {word}");
        vec!["cmd".to_owned(), "/C".to_owned(), line]
    } else {
        let line = "sleep 300 & trap 'kill $!' EXIT; wait";
        ["sh", "-c", line, word].map(str::to_owned).to_vec()
    }
}

pub(crate) fn exit_with(code: i32) -> Vec<String> {
    let [shell, option] = if cfg!(windows) {
        ["cmd", "/C"]
    } else {
        ["sh", "-c"]
    };
    vec![shell.to_owned(), option.to_owned(), format!("exit {code}")]
}

#[cfg(target_os = "linux")]
pub(crate) use tenure_tests::skip;
