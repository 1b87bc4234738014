//! A place of one's own, and servers in it.

use std::cell::Cell;
use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tempfile::TempDir;

use crate::http;
use crate::mock::stop_listening;
use crate::process::{Outcome, Process, eventually};

/// The program under test.
pub(crate) const LLMLB: &str = env!("CARGO_BIN_EXE_llmlb");

/// A directory of one test's own: lock files, configuration, output.
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

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn locks(&self) -> PathBuf {
        self.path("locks")
    }

    pub(crate) fn lock_file(&self, port: u16) -> PathBuf {
        self.locks().join(format!("serve_{port}.lock"))
    }

    /// The names of the lock files that lie there.
    pub(crate) fn lock_files(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.locks()) else {
            return Vec::new();
        };
        entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect()
    }

    /// `llmlb` with these words, in this place and with nothing else in its environment that
    /// concerns it.
    pub(crate) fn command(&self, words: &str) -> Command {
        let mut command = Command::new(LLMLB);
        command
            .args(words.split_whitespace())
            .current_dir(self.dir.path());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LLMLB_") {
                command.env_remove(name);
            }
        }
        command
            .env("LLMLB_LOCK_DIR", self.locks())
            .env("LLMLB_DATA_DIR", self.path("data"))
            .env_remove("NOTIFY_SOCKET");
        command
    }

    pub(crate) fn start(&self, command: &mut Command) -> Process {
        let number = self.launched.get();
        self.launched.set(number + 1);
        let out = self.path(&format!("{number}.out"));
        let err = self.path(&format!("{number}.err"));
        Process::start(command, out, err)
    }

    /// Runs `llmlb` with these words to its end.
    pub(crate) fn run(&self, words: &str) -> Outcome {
        self.start(&mut self.command(words)).finish()
    }

    /// Starts `llmlb serve` with these words, on any free port, and waits until it serves.
    pub(crate) fn serve(&self, words: &str) -> Server {
        self.serve_with(&mut self.command(&format!("serve -p 0 {words}")))
    }

    pub(crate) fn serve_with(&self, command: &mut Command) -> Server {
        let mut process = self.start(command);
        let address = eventually("it listens", || {
            assert!(process.is_running(), "it ended: {}", process.err());
            let said = process.err();
            let after = said.split("listening on http://").nth(1)?;
            after.split_once(' ')?.0.parse().ok()
        });
        Server { process, address }
    }

    /// `status --json` of one port, and its exit code.
    pub(crate) fn status(&self, port: u16) -> (Value, Option<i32>) {
        let outcome = self.run(&format!("status --json -p {port}"));
        let value: Value = serde_json::from_str(&outcome.out)
            .unwrap_or_else(|error| panic!("{error}: {outcome:?}"));
        (value["servers"][0].clone(), outcome.code)
    }
}

/// A server that serves.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    pub(crate) fn get(&self, path: &str) -> http::Answer {
        http::get(self.address, path)
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> http::Answer {
        http::post(self.address, path, body)
    }

    /// What it says about itself.
    pub(crate) fn status(&self) -> Value {
        self.get("/status").json()
    }

    /// Waits until so many requests are in flight.
    pub(crate) fn until_in_flight(&self, count: u64) {
        crate::process::until("requests are in flight", || {
            self.status()["in_flight"] == count
        });
    }
}

/// A free port outside the range from which the system takes ports for connections: nobody else
/// gets it before the test does.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = u16::try_from(10_000 + number % 20_000).expect("a port");
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
            stop_listening(&listener);
            return port;
        }
    }
}
