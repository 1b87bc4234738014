//! Directories of one test's own, and llmlb commands that use nothing else.

use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::records;
use crate::serve::ServeBuilder;
use crate::wait::eventually;

/// Temporary directory with the lock directory, the data directory and the output of every llmlb
/// process started in it. Dropping it removes the directory.
pub struct Sandbox {
    dir: TempDir,
    llmlb: PathBuf,
    launched: AtomicU32,
}

/// Exit code and output of a process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error, with invalid UTF-8 replaced.
    pub stderr: String,
}

/// A child process with its output in files.
pub(crate) struct Launched {
    pub(crate) child: Child,
    pub(crate) stdout: PathBuf,
    pub(crate) stderr: PathBuf,
}

impl Sandbox {
    /// Returns an empty sandbox for this llmlb program.
    pub fn new(llmlb: &Path) -> io::Result<Self> {
        Ok(Self {
            dir: tempfile::Builder::new().prefix("llmlb-test-").tempdir()?,
            llmlb: llmlb.to_owned(),
            launched: AtomicU32::new(0),
        })
    }

    /// Path of a file in the sandbox.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Path of the data directory.
    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// Path of the llmlb program.
    pub fn llmlb(&self) -> &Path {
        &self.llmlb
    }

    /// Returns an llmlb command. Its environment has no `LLMLB_` variables but those that name the
    /// directories of the sandbox.
    pub fn command(&self, args: &[&str]) -> Command {
        self.command_of(&self.llmlb, args)
    }

    /// Returns a command like [`Sandbox::command`] that runs another program, such as a wrapper.
    pub fn command_of(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.dir.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LLMLB_") {
                command.env_remove(name);
            }
        }
        command
            .env("LLMLB_LOCK_DIR", self.path("locks"))
            .env("LLMLB_DATA_DIR", self.data_dir())
            .env_remove("NOTIFY_SOCKET");
        command
    }

    /// Runs llmlb to its end.
    pub fn run(&self, args: &[&str]) -> io::Result<Finished> {
        self.finish(&mut self.command(args))
    }

    /// Runs a command to its end. A process that does not end within the deadline is killed.
    pub fn finish(&self, command: &mut Command) -> io::Result<Finished> {
        let mut launched = self.launch(command)?;
        let status = eventually("the process ends", || launched.child.try_wait().transpose());
        let Ok(status) = status else {
            launched.child.kill()?;
            launched.child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        };
        Ok(Finished {
            code: status?.code(),
            stdout: fs::read(&launched.stdout)?,
            stderr: text(&launched.stderr),
        })
    }

    /// Returns the options of an llmlb server that is not started yet.
    pub fn serve(&self) -> ServeBuilder<'_> {
        ServeBuilder::new(self)
    }

    /// True if llmlb knows this setting and accepts this TOML value for it. Attacks on limits that
    /// earlier versions did not have use it.
    pub fn accepts_setting(&self, name: &str, value: &str) -> io::Result<bool> {
        let file = self.path("setting.toml");
        fs::write(&file, toml(&[(name.to_owned(), value.to_owned())], &[]))?;
        let file = file.to_string_lossy();
        let checked = self.run(&["check", "--config", &file])?;
        Ok(checked.code == Some(0))
    }

    /// Returns all usage records of the sandbox.
    pub fn records(&self) -> io::Result<Vec<Value>> {
        records::all(&self.data_dir())
    }

    /// Returns the one record of the request with this id; `None` if there is none yet.
    pub fn record_of(&self, request_id: &str) -> io::Result<Option<Value>> {
        Ok(records::of_request(&self.data_dir(), request_id)?.pop())
    }

    pub(crate) fn launch(&self, command: &mut Command) -> io::Result<Launched> {
        let number = self.launched.fetch_add(1, Ordering::Relaxed);
        let stdout = self.path(&format!("{number}.out"));
        let stderr = self.path(&format!("{number}.err"));
        let child = command
            .stdin(Stdio::null())
            .stdout(File::create(&stdout)?)
            .stderr(File::create(&stderr)?)
            .spawn()?;
        Ok(Launched {
            child,
            stdout,
            stderr,
        })
    }
}

/// Returns the text of a file that may be in the middle of a character.
pub(crate) fn text(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

/// Returns a configuration file. Names are like `server.queue`, values are TOML.
pub(crate) fn toml(settings: &[(String, String)], backends: &[String]) -> String {
    let mut sections: Vec<(&str, String)> = Vec::new();
    for (name, value) in settings {
        let (section, key) = name.split_once('.').unwrap_or(("", name));
        let line = format!("{key} = {value}\n");
        match sections.iter_mut().find(|(own, _)| *own == section) {
            Some((_, lines)) => lines.push_str(&line),
            None => sections.push((section, line)),
        }
    }
    let mut text = String::new();
    for (section, lines) in sections {
        let _ = write!(text, "[{section}]\n{lines}\n");
    }
    for backend in backends {
        let _ = write!(text, "[[backend]]\n{backend}\n");
    }
    text
}
