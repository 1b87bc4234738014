//! Directories that belong to one test, and llmlb commands that use no other directories.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::process::{Finished, Process};
use crate::records;
use crate::serve::{LlmlbServer, ServeBuilder};

/// Temporary directory with the lock directory, the data directory and the output of every llmlb
/// process started in it. Dropping it removes the directory.
pub struct Sandbox {
    dir: TempDir,
    llmlb: PathBuf,
    launched: AtomicU32,
}

/// Returns an empty [`Sandbox`] for the llmlb program that cargo built for the calling test.
#[macro_export]
macro_rules! sandbox {
    () => {
        $crate::Sandbox::new(env!("CARGO_BIN_EXE_llmlb"))
    };
}

impl Sandbox {
    /// Returns an empty sandbox for this llmlb program.
    #[track_caller]
    pub fn new(llmlb: impl AsRef<Path>) -> Self {
        Self::try_new(llmlb).expect("a temporary directory")
    }

    /// Like [`Sandbox::new`], but returns a failure instead of panicking.
    pub fn try_new(llmlb: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self {
            dir: tempfile::Builder::new().prefix("llmlb-test-").tempdir()?,
            llmlb: llmlb.as_ref().to_owned(),
            launched: AtomicU32::new(0),
        })
    }

    /// Path of the sandbox itself.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// Path of a file in the sandbox.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file in the sandbox and returns its path.
    #[track_caller]
    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, content).expect("the file is written");
        path
    }

    /// Path of the data directory. llmlb creates it.
    pub fn data_dir(&self) -> PathBuf {
        self.path("data")
    }

    /// Path of the lock directory. llmlb creates it.
    pub fn locks(&self) -> PathBuf {
        self.path("locks")
    }

    /// Path of the lock file of a server's port.
    pub fn lock_file(&self, port: u16) -> PathBuf {
        self.locks().join(format!("serve_{port}.lock"))
    }

    /// Names of the files in the lock directory.
    pub fn lock_files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.locks()) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()
    }

    /// Path of the llmlb program.
    pub fn llmlb(&self) -> &Path {
        &self.llmlb
    }

    /// Returns an llmlb command with these arguments, separated by spaces. Its environment has no
    /// `LLMLB_` variables but those that name the directories of the sandbox.
    pub fn command(&self, words: &str) -> Command {
        let words: Vec<_> = words.split_whitespace().collect();
        self.command_of(&self.llmlb, &words)
    }

    /// Returns a command like [`Sandbox::command`] that runs another program, such as a wrapper.
    pub fn command_of(&self, program: impl AsRef<Path>, args: &[&str]) -> Command {
        let mut command = Command::new(program.as_ref());
        command.args(args).current_dir(self.dir.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LLMLB_") {
                command.env_remove(name);
            }
        }
        command
            .env("LLMLB_LOCK_DIR", self.locks())
            .env("LLMLB_DATA_DIR", self.data_dir())
            .env_remove("NOTIFY_SOCKET");
        command
    }

    /// Starts a command with its output in files of the sandbox.
    #[track_caller]
    pub fn start(&self, command: &mut Command) -> Process {
        self.try_start(command).expect("the process starts")
    }

    /// Like [`Sandbox::start`], but returns a failure instead of panicking.
    pub fn try_start(&self, command: &mut Command) -> io::Result<Process> {
        let number = self.launched.fetch_add(1, Ordering::Relaxed);
        let stdout = self.path(&format!("{number}.out"));
        let stderr = self.path(&format!("{number}.err"));
        Process::start(command, &stdout, &stderr)
    }

    /// Runs llmlb with these arguments, which are separated by spaces, and waits until it has
    /// exited.
    #[track_caller]
    pub fn run(&self, words: &str) -> Finished {
        self.start(&mut self.command(words)).finish()
    }

    /// Like [`Sandbox::run`], but returns a failure instead of panicking.
    pub fn try_run(&self, words: &str) -> io::Result<Finished> {
        self.try_finish(&mut self.command(words))
    }

    /// Runs a command to its end. A process that does not end within the deadline is killed.
    pub fn try_finish(&self, command: &mut Command) -> io::Result<Finished> {
        self.try_start(command)?.try_finish()
    }

    /// Starts `llmlb serve` on a free port, with these further arguments, which are separated by
    /// spaces. Waits until the server serves.
    #[track_caller]
    pub fn serve(&self, words: &str) -> LlmlbServer {
        self.serve_with(&mut self.command(&format!("serve -p 0 {words}")))
    }

    /// Starts a command that is an llmlb server and waits until it serves.
    #[track_caller]
    pub fn serve_with(&self, command: &mut Command) -> LlmlbServer {
        let server = LlmlbServer::wait_for(self.start(command));
        server.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Returns the options of an llmlb server that is not started yet.
    pub fn server(&self) -> ServeBuilder<'_> {
        ServeBuilder::new(self)
    }

    /// Returns the report of `llmlb status --json` on one port, and the exit code.
    #[track_caller]
    pub fn status(&self, port: u16) -> (Value, Option<i32>) {
        let finished = self.run(&format!("status --json -p {port}"));
        (finished.json()["servers"][0].clone(), finished.code)
    }

    /// True if llmlb knows this setting and accepts this TOML value for it. Attacks on a limit
    /// check this first, because earlier versions of llmlb do not have the setting.
    pub fn accepts_setting(&self, name: &str, value: &str) -> io::Result<bool> {
        let text = toml(&[(name.to_owned(), value.to_owned())], &[]);
        fs::write(self.path("setting.toml"), text)?;
        let checked = self.try_run("check --config setting.toml")?;
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
}

/// Returns the text of a configuration file. Names of settings are like `server.queue`, values are
/// TOML.
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
