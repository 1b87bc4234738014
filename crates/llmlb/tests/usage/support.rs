//! The program under test and a data directory for it.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;
use testkit::{Connection, Finished, LlmlbServer, Process, Received, Request, Sandbox, eventually};

/// A sandbox and the program that uses its data directory.
pub(crate) struct Place {
    /// The backend of every server here: a demo, which records nothing.
    demo: OnceLock<Server>,
    sandbox: Sandbox,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            demo: OnceLock::new(),
            sandbox: testkit::sandbox!(),
        }
    }

    /// The data directory, which the program makes.
    pub(crate) fn data(&self) -> PathBuf {
        self.sandbox.data_dir()
    }

    /// A file beside the data directory.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.sandbox.file(name, content)
    }

    /// `llmlb usage ...`, with nothing in its environment that could matter.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let words = [&["usage"], words].concat();
        self.sandbox.command_of(self.sandbox.llmlb(), &words)
    }

    /// Starts a command with its output in files of the sandbox.
    pub(crate) fn start(&self, command: &mut Command) -> Process {
        self.sandbox.start(command)
    }

    /// `llmlb serve` on any free port, with these settings and a backend that responds.
    pub(crate) fn serve(&self, settings: &[(&str, &str)]) -> Server {
        let off = [("LLMLB_USAGE", "false")];
        let demo = self.demo.get_or_init(|| self.serve_demo(&off));
        self.serve_with(&format!("--backend http://{}", demo.address), settings)
    }

    /// `llmlb serve --demo` on any free port, with these settings.
    pub(crate) fn serve_demo(&self, settings: &[(&str, &str)]) -> Server {
        self.serve_with("--demo", settings)
    }

    fn serve_with(&self, words: &str, settings: &[(&str, &str)]) -> Server {
        let mut command = self.sandbox.command(&format!("serve -p 0 {words}"));
        self.serve_command(command.envs(settings.iter().copied()))
    }

    /// Starts a command that is a server and waits until it serves.
    pub(crate) fn serve_command(&self, command: &mut Command) -> Server {
        Server(self.sandbox.serve_with(command))
    }

    /// `llmlb status` of a server.
    pub(crate) fn status(&self, server: &Server, words: &str) -> Finished {
        self.sandbox
            .run(&format!("status -p {} {words}", server.port()))
    }

    pub(crate) fn usage(&self, words: &[&str]) -> Finished {
        self.usage_with(words, "")
    }

    /// The same with an input.
    pub(crate) fn usage_with(&self, words: &[&str], input: impl AsRef<[u8]>) -> Finished {
        Finished::run_with(&mut self.command(words), input)
    }

    /// Stages so many records, numbered from 1.
    pub(crate) fn stage(&self, count: usize) {
        let lines: Vec<String> = (1..=count).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        self.usage_with(&["stage"], lines.concat()).assert_code(0);
    }

    /// The names of the files in a part of the data directory.
    pub(crate) fn files(&self, part: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.data().join(part))
            .expect("it is there")
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    pub(crate) fn books(&self) -> Value {
        let ran = self.usage(&["verify", "--json"]);
        ran.assert_code(0);
        ran.json()
    }
}

/// A server that serves.
pub(crate) struct Server(LlmlbServer);

impl Deref for Server {
    type Target = LlmlbServer;

    fn deref(&self) -> &LlmlbServer {
        &self.0
    }
}

impl Server {
    /// What it says of the usage records.
    pub(crate) fn usage(&self) -> Value {
        self.0.status()["usage"].take()
    }

    /// Sends a request such as `POST /v1/chat/completions` and returns the body of the response.
    pub(crate) fn ask(&self, what: &str, body: &str) -> String {
        let (method, path) = what.split_once(' ').expect("a method and a path");
        let request = Request::new(method, path).field("content-type", "application/json");
        let mut connection = Connection::open(self.0.address);
        connection.send(request.body(body).to_bytes());
        connection.answer().text()
    }

    /// Waits until it says so.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || Some(self.usage()).filter(&is_so))
    }
}

/// The numbers of the records in a batch.
pub(crate) fn numbers(batch: &Received) -> Vec<u64> {
    let batch = batch.json();
    let records = batch["records"].as_array().expect("records");
    let number = |record: &Value| record["n"].as_u64().expect("a number");
    records.iter().map(number).collect()
}
