//! Processes that are killed when their test ends, and helpers that wait for them.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit of every wait. It is far longer than any wait takes, so that only a failed test
/// reaches it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

pub(crate) struct Launch {
    pub(crate) command: Command,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    out: PathBuf,
    err: PathBuf,
}

impl Launch {
    /// Prepares a program without input. Its stdout and stderr are written to two files.
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

    /// Adds arguments, separated by spaces.
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

    pub(crate) fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Starts the program. It is killed, with its process group, when the result is dropped.
    pub(crate) fn start(mut self) -> Process {
        let out = File::create(&self.out).expect("a file for stdout");
        let err = File::create(&self.err).expect("a file for stderr");
        self.command
            .stdout(self.stdout.take().unwrap_or_else(|| out.into()))
            .stderr(self.stderr.take().unwrap_or_else(|| err.into()));
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut self.command, 0);
        self.spawn()
    }

    /// Starts the program without redirecting its output.
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

    pub(crate) fn finish(self) -> Outcome {
        self.start().finish()
    }
}

/// Methods that only tests for Unix use.
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

    pub(crate) fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }
}

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

    /// Kills the process without its children, and waits until it has exited.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("the process is killed");
        self.child.wait().expect("the process is waited for");
    }

    /// Waits until the process exits by itself, and kills the rest of its process group.
    pub(crate) fn finish(mut self) -> Outcome {
        self.wait()
    }

    pub(crate) fn wait(&mut self) -> Outcome {
        drop(self.child.stdin.take());
        let ended = poll(|| self.child.try_wait().expect("the process is waited for"));
        let Some(status) = ended else {
            panic!("the process did not exit; stderr: {:?}", self.stderr());
        };
        Outcome {
            code: status.code(),
            stdout: fs::read(&self.out).unwrap_or_default(),
            stderr: self.stderr(),
        }
    }
}

/// Methods that only tests for Unix use.
#[cfg(unix)]
impl Process {
    pub(crate) fn write_line(&mut self, line: &str) {
        let input = self.child.stdin.as_mut().expect("stdin is a pipe");
        let line = format!("{line}\n");
        std::io::Write::write_all(input, line.as_bytes()).expect("the process reads stdin");
    }

    pub(crate) fn stdout(&self) -> String {
        text(&self.out)
    }

    pub(crate) fn until_stdout_has(&self, part: &str) {
        until(format!("stdout contains {part:?}"), || {
            self.stdout().contains(part)
        });
    }

    pub(crate) fn until_stderr_has(&self, part: &str) {
        until(format!("stderr contains {part:?}"), || {
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

#[derive(Debug)]
pub(crate) struct Outcome {
    /// Exit code; `None` if a signal ended the program.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// Waits until `find` returns a value. A test fails if that does not happen within [`TIMEOUT`].
pub(crate) fn eventually<T>(what: impl Display, find: impl FnMut() -> Option<T>) -> T {
    poll(find).unwrap_or_else(|| panic!("timed out waiting until {what}"))
}

pub(crate) fn until(what: impl Display, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

fn poll<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        thread::sleep(POLL_INTERVAL);
    }
}

fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
