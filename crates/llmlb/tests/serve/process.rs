//! Processes whose output is kept and which do not outlive their test.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Never a measure of speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is there.
pub(crate) fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}

/// A process with its output in files, killed when dropped.
pub(crate) struct Process {
    pub(crate) child: Child,
    out: PathBuf,
    err: PathBuf,
}

/// How a process ended and what it said.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Process {
    /// Starts a command. Its output goes to these files.
    pub(crate) fn start(command: &mut Command, out: PathBuf, err: PathBuf) -> Self {
        let file = |path: &PathBuf| File::create(path).expect("a file for output");
        let child = command
            .stdin(Stdio::null())
            .stdout(file(&out))
            .stderr(file(&err))
            .spawn()
            .expect("the process starts");
        Self { child, out, err }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn out(&self) -> String {
        read(&self.out)
    }

    pub(crate) fn err(&self) -> String {
        read(&self.err)
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_none()
    }

    /// Waits until it ends by itself.
    pub(crate) fn finish(mut self) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            match self.child.try_wait().expect("its state") {
                Some(status) => break status,
                None if Instant::now() > deadline => {
                    panic!("it does not end: {}{}", self.out(), self.err())
                }
                None => thread::sleep(Duration::from_millis(2)),
            }
        };
        Outcome {
            code: status.code(),
            out: self.out(),
            err: self.err(),
        }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A process may be in the middle of a character.
fn read(path: &PathBuf) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}
