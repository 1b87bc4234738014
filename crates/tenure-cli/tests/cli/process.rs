//! Processes that never outlive their test, and waiting for what they do.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for what must happen. Far longer than it ever takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// A program that is about to be started.
pub(crate) struct Launch {
    pub(crate) command: Command,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    out: PathBuf,
    err: PathBuf,
}

impl Launch {
    /// Prepares a program without input, whose output and messages are kept in two files.
    pub(crate) fn new(program: impl AsRef<OsStr>, out: PathBuf, err: PathBuf) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        #[cfg(unix)]
        crate::unix::default_signals(&mut command);
        Self {
            command,
            stdout: None,
            stderr: None,
            out,
            err,
        }
    }

    /// Adds arguments that contain no spaces.
    pub(crate) fn words(self, words: &str) -> Self {
        self.args(words.split_ascii_whitespace())
    }

    pub(crate) fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item: AsRef<OsStr>>) -> Self {
        self.command.args(arguments);
        self
    }

    /// Instead of a file that the outcome is read from.
    pub(crate) fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Starts it. It is killed, with all of its process group, when the guard is dropped.
    pub(crate) fn start(mut self) -> Process {
        let out = File::create(&self.out).expect("a file for the output");
        let err = File::create(&self.err).expect("a file for the messages");
        self.command
            .stdout(self.stdout.take().unwrap_or_else(|| out.into()))
            .stderr(self.stderr.take().unwrap_or_else(|| err.into()));
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut self.command, 0);
        self.spawn()
    }

    /// Starts it as it is.
    pub(crate) fn spawn(mut self) -> Process {
        let child = match self.command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("{:?} cannot be started: {error}", self.command),
        };
        Process {
            child,
            out: self.out,
            err: self.err,
        }
    }

    /// Starts it and waits for its end.
    pub(crate) fn finish(self) -> Outcome {
        self.start().finish()
    }
}

/// What only tests for Unix need.
#[cfg(unix)]
impl Launch {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn stdin(mut self, stdin: impl Into<Stdio>) -> Self {
        self.command.stdin(stdin);
        self
    }

    /// Instead of a file that the messages are read from.
    pub(crate) fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }
}

/// A running program, killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Process {
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    pub(crate) fn stderr(&self) -> String {
        text(&self.err)
    }

    /// Kills it alone, not what it started, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it can be waited for");
    }

    /// Waits until it ends by itself, and kills what it left in its process group.
    pub(crate) fn finish(mut self) -> Outcome {
        self.wait()
    }

    /// Waits until it ends by itself.
    pub(crate) fn wait(&mut self) -> Outcome {
        drop(self.child.stdin.take());
        let ended = patiently(|| self.child.try_wait().expect("it can be waited for"));
        let Some(status) = ended else {
            panic!("it did not end, having said {:?}", self.stderr());
        };
        Outcome {
            code: status.code(),
            stdout: fs::read(&self.out).unwrap_or_default(),
            stderr: self.stderr(),
        }
    }
}

/// What only tests for Unix need.
#[cfg(unix)]
impl Process {
    /// Writes a line to its input.
    pub(crate) fn say(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("an input to write to");
        let line = format!("{line}\n");
        std::io::Write::write_all(input, line.as_bytes()).expect("it reads its input");
    }

    pub(crate) fn stdout(&self) -> String {
        text(&self.out)
    }

    /// Waits until its output contains a text.
    pub(crate) fn until_stdout_has(&self, part: &str) {
        until(format!("the output has {part:?}"), || {
            self.stdout().contains(part)
        });
    }

    /// Waits until its messages contain a text.
    pub(crate) fn until_stderr_has(&self, part: &str) {
        until(format!("the messages have {part:?}"), || {
            self.stderr().contains(part)
        });
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        #[cfg(unix)]
        crate::unix::kill_group(self.child.id());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Waits until a look finds something.
pub(crate) fn eventually<T>(what: impl Display, look: impl FnMut() -> Option<T>) -> T {
    patiently(look).unwrap_or_else(|| panic!("waited in vain until {what}"))
}

/// Waits until a condition holds.
pub(crate) fn until(what: impl Display, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

fn patiently<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(LOOK_AGAIN);
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
