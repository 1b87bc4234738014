//! Child processes that write their output to files and do not outlive their test.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::wait::{eventually, try_eventually};

/// A child process with its output in files. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    child: Mutex<Child>,
    pid: u32,
    stdout: PathBuf,
    stderr: PathBuf,
}

/// Exit code and output of a process that has ended. Bytes that are not UTF-8 are replaced.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Process {
    /// Starts a command without input. Its output is appended to these files, which may be the same.
    pub fn start(command: &mut Command, stdout: &Path, stderr: &Path) -> io::Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .stdout(append(stdout)?)
            .stderr(append(stderr)?)
            .spawn()?;
        Ok(Self {
            pid: child.id(),
            child: Mutex::new(child),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        })
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Standard output so far.
    pub fn stdout(&self) -> String {
        text(&self.stdout)
    }

    /// Standard error so far.
    pub fn stderr(&self) -> String {
        text(&self.stderr)
    }

    /// Standard output and standard error so far.
    pub fn output(&self) -> String {
        let mut output = self.stdout();
        if self.stderr != self.stdout {
            output += &self.stderr();
        }
        output
    }

    /// Waits until the output contains these words and returns the output. A line may be written a
    /// moment after the event that it reports.
    #[track_caller]
    pub fn until_output(&self, words: &str) -> String {
        eventually(&format!("the output contains: {words}"), || {
            Some(self.output()).filter(|output| output.contains(words))
        })
    }

    /// Waits until the process ends by itself and returns its exit code.
    #[track_caller]
    pub fn end(&self) -> Option<i32> {
        eventually("the process ends", || self.exit_status().transpose())
            .expect("an exit status")
            .code()
    }

    /// True while the process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.exit_status(), Ok(None))
    }

    /// Exit status of the process; `None` while it runs.
    pub fn exit_status(&self) -> io::Result<Option<ExitStatus>> {
        self.child().try_wait()
    }

    /// Waits until the process ends by itself.
    #[track_caller]
    pub fn finish(self) -> Finished {
        match self.try_finish() {
            Ok(finished) => finished,
            Err(error) => panic!("{error}: {}{}", self.stdout(), self.stderr()),
        }
    }

    /// Waits until the process ends by itself. The error is `TimedOut` if it does not.
    pub fn try_finish(&self) -> io::Result<Finished> {
        let status = try_eventually("the process ends", || self.exit_status().transpose())
            .map_err(|timed_out| io::Error::new(io::ErrorKind::TimedOut, timed_out))??;
        Ok(Finished {
            code: status.code(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        })
    }

    /// Kills the process and waits until it has ended.
    pub fn kill(&self) {
        let mut child = self.child();
        let _ = child.kill();
        let _ = child.wait();
    }

    /// Sends SIGTERM to the process. On systems other than Unix the process is killed.
    pub fn terminate(&self) -> io::Result<()> {
        #[cfg(unix)]
        return self.signal(rustix::process::Signal::TERM);
        #[cfg(not(unix))]
        return self.child().kill();
    }

    /// Sends a signal.
    #[cfg(unix)]
    pub fn signal(&self, signal: rustix::process::Signal) -> io::Result<()> {
        use rustix::process::{Pid, kill_process};
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        kill_process(pid.ok_or(io::ErrorKind::InvalidInput)?, signal)?;
        Ok(())
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Finished {
    /// Runs a command to its end, without input.
    #[track_caller]
    pub fn run(command: &mut Command) -> Self {
        Self::run_with(command, "")
    }

    /// Runs a command to its end, with this input.
    #[track_caller]
    pub fn run_with(command: &mut Command, input: impl AsRef<[u8]>) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let stdin = child.stdin.take();
        let input = input.as_ref().to_vec();
        // Input is written while the output is read: a program may block on its output before it has
        // read all input.
        let feeder = thread::spawn(move || {
            // A write error is ignored, because the program need not read its input.
            stdin.map(|mut stdin| stdin.write_all(&input))
        });
        let output = child.wait_with_output().expect("the program ends");
        let _ = feeder.join();
        output.into()
    }

    /// Panics unless the program exited with this code.
    #[track_caller]
    pub fn assert_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:#?}");
    }

    /// Standard output and standard error.
    pub fn output(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }

    /// Standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code(),
            stdout: text(&output.stdout),
            stderr: text(&output.stderr),
        }
    }
}

/// Opens a file for appending, so that output which it contains is kept. Creates it if it does not
/// exist.
pub fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).open(path)
}

/// Copies a program so that every user can run the copy. A child process writes the copy. If this
/// process wrote it, a process that another thread starts could inherit the open descriptor. A
/// program that is open for writing cannot be executed.
#[cfg(unix)]
pub fn copy_program(program: impl AsRef<Path>, copy: &Path) -> io::Result<()> {
    let status = Command::new("install")
        .args(["-m", "755"])
        .args([program.as_ref(), copy])
        .status()?;
    if status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("install: {status}")))
}

/// Returns the text of a file; empty if it cannot be read. A file that is being written may end
/// within a character, so invalid UTF-8 is replaced.
pub(crate) fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
