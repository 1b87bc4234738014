//! A place of one's own, the tool, and owners of keys.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

#[cfg(unix)]
use crate::process::until;
use crate::process::{Launch, Outcome, Process, eventually};

/// The tool under test.
pub(crate) const TENURE: &str = env!("CARGO_BIN_EXE_tenure");

/// A directory of one test's own, with a directory for locks in it.
pub(crate) struct Place {
    dir: TempDir,
    launched: Cell<u32>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().expect("a temporary directory"),
            launched: Cell::new(0),
        }
    }

    /// A path beside the lock directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The lock directory. The tool makes it when it first needs it.
    pub(crate) fn locks(&self) -> PathBuf {
        self.path("locks")
    }

    /// The lock file of a name.
    pub(crate) fn lock_file(&self, name: &str) -> PathBuf {
        self.locks().join(format!("name_{name}.lock"))
    }

    /// Whether anything lies at the place of a name's lock file.
    pub(crate) fn has_lock_file(&self, name: &str) -> bool {
        fs::symlink_metadata(self.lock_file(name)).is_ok()
    }

    /// Writes a lock file by hand, as a crashed or foreign program would have left it.
    pub(crate) fn leave_lock_file(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::create_dir_all(self.locks()).expect("the lock directory");
        fs::write(self.lock_file(name), content).expect("a lock file");
    }

    /// What the lock file of a name says, if it is readable just now.
    pub(crate) fn record(&self, name: &str) -> Option<Value> {
        read_record(&self.lock_file(name))
    }

    /// Prepares `tenure` with these words.
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

    /// Starts an owner of a name that does nothing, and waits until its record is complete.
    pub(crate) fn hold(&self, name: &str) -> Owner {
        self.hold_with(name, self.tenure(&format!("run {name} --")).args(sleeper()))
    }

    /// The same with a command line of one's own.
    pub(crate) fn hold_with(&self, name: &str, launch: Launch) -> Owner {
        let file = self.lock_file(name);
        Owner::found(launch.start(), &file)
    }

    /// Lets another program hold the lock of a name whose file exists, whatever the record says.
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

    /// What `status --json` says about one name.
    pub(crate) fn status(&self, name: &str) -> Value {
        let outcome = self.tenure("status --json").arg(name).finish();
        json(&outcome)["locks"][0].clone()
    }

    /// A process that has nothing to do with any lock.
    #[cfg(unix)]
    pub(crate) fn stranger(&self) -> Process {
        let [program, arguments @ ..] = &sleeper()[..] else {
            panic!("no sleeper");
        };
        self.program(program).args(arguments).start()
    }
}

/// A `tenure run` that has its key and runs its command.
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
        until("the command is gone", || {
            !crate::unix::is_alive(self.command)
        });
    }

    /// Waits until a process that was started has written the whole record into a file.
    pub(crate) fn found(process: Process, file: &Path) -> Self {
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

/// A process id in a JSON document.
pub(crate) fn pid_in(value: &Value) -> Option<u32> {
    value.as_u64()?.try_into().ok()
}

/// The record in a lock file, if it is readable just now.
pub(crate) fn read_record(file: &Path) -> Option<Value> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// The document that a program printed.
pub(crate) fn json(outcome: &Outcome) -> Value {
    match serde_json::from_slice(&outcome.stdout) {
        Ok(value) => value,
        Err(error) => panic!("no JSON: {error}: {outcome:?}"),
    }
}

/// A command that does nothing for much longer than any test has patience.
pub(crate) fn sleeper() -> Vec<&'static str> {
    if cfg!(windows) {
        vec!["ping", "-n", "300", "127.0.0.1"]
    } else {
        vec!["sleep", "300"]
    }
}

/// The same with a word among its arguments that changes nothing.
pub(crate) fn sleeper_with(word: &str) -> Vec<String> {
    if cfg!(windows) {
        let line = format!("ping -n 300 127.0.0.1 & rem {word}");
        vec!["cmd".to_owned(), "/C".to_owned(), line]
    } else {
        let line = "sleep 300 & trap 'kill $!' EXIT; wait";
        ["sh", "-c", line, word].map(str::to_owned).to_vec()
    }
}

/// A command that ends with a code.
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
