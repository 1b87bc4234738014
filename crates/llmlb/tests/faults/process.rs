//! Processes that write to a log and do not outlive their test.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Never a measure of speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

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

pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    eventually(what, || is_so().then_some(()));
}

/// A process that runs until it is killed.
pub(crate) struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a command; what it says is appended to the log.
    pub(crate) fn start(command: &mut Command, log: &Path) -> Self {
        let file = append(log);
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().unwrap())
            .stderr(file)
            .spawn()
            .unwrap();
        Self {
            child,
            log: log.to_owned(),
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Kills it; until then it must have lived.
    pub(crate) fn kill(mut self) {
        if let Some(status) = self.ended() {
            panic!("it ended by itself, {status}; {}", self.last_words());
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks it to end, and waits until it has, which is a success.
    #[track_caller]
    pub(crate) fn terminate(mut self) {
        let asked = Command::new("kill").arg(self.pid().to_string()).status();
        assert!(asked.unwrap().success());
        let status = eventually("it ends when asked to", || self.ended());
        assert!(status.success(), "{status}; {}", self.last_words());
    }

    /// It does nothing from now on, and keeps what it has.
    pub(crate) fn halt(&self) {
        let mut kill = Command::new("kill");
        let halted = kill.arg("-STOP").arg(self.pid().to_string()).output();
        // It may have ended, which is fine: it has not been waited for.
        assert!(halted.unwrap().status.success());
    }

    fn last_words(&self) -> String {
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let end: Vec<_> = said.lines().rev().take(20).collect();
        format!("last words first: {end:#?}")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a process ended and what it said.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Outcome {
    /// Runs a command to its end, with this as its input.
    pub(crate) fn of(command: &mut Command, input: &[u8]) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        let input = input.to_vec();
        // It may say much before it has read all.
        let feeder = thread::spawn(move || {
            let _ = pipe.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// It ended as programs end, whatever it had to say.
    pub(crate) fn assert_civil(&self) {
        let is_civil = matches!(self.code, Some(0 | 1)) && !self.err.contains("panicked");
        assert!(is_civil, "{self:#?}");
    }

    pub(crate) fn assert_code(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{self:#?}");
    }
}

pub(crate) fn append(path: &Path) -> File {
    let mut options = OpenOptions::new();
    options.append(true).create(true).open(path).unwrap()
}
