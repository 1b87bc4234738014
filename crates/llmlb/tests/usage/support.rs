//! Sandbox with a data directory, and servers that use it.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use testkit::{
    Connection, Finished, LlmlbServer, Process, Received, Reply, Request, Sandbox, UsageReceiver,
    eventually,
};

/// Sandbox for `llmlb usage` commands and servers that share its data directory.
pub(crate) struct UsageSandbox {
    /// Backend of every server of the sandbox: a demo server with metering disabled.
    demo: OnceLock<Server>,
    sandbox: Sandbox,
}

impl UsageSandbox {
    pub(crate) fn new() -> Self {
        Self {
            demo: OnceLock::new(),
            sandbox: testkit::sandbox!(),
        }
    }

    /// Path of the data directory, which llmlb creates.
    pub(crate) fn data(&self) -> PathBuf {
        self.sandbox.data_dir()
    }

    /// Writes a file beside the data directory and returns its path.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        self.sandbox.file(name, content)
    }

    /// Returns the command `llmlb usage ...` without `LLMLB_` variables other than the directories.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let words = [&["usage"], words].concat();
        self.sandbox.command_of(self.sandbox.llmlb(), &words)
    }

    pub(crate) fn llmlb(&self, words: &str) -> Command {
        self.sandbox.command(words)
    }

    pub(crate) fn start(&self, command: &mut Command) -> Process {
        self.sandbox.start(command)
    }

    /// Starts `llmlb serve` on a free port with these settings and a backend that responds.
    pub(crate) fn serve(&self, settings: &[(&str, &str)]) -> Server {
        let off = [("LLMLB_USAGE", "false")];
        let demo = self.demo.get_or_init(|| self.serve_demo(&off));
        self.serve_with(&format!("--backend http://{}", demo.address), settings)
    }

    /// Starts `llmlb serve --demo` on a free port with these settings.
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

    pub(crate) fn status(&self, server: &Server, words: &str) -> Finished {
        self.sandbox
            .run(&format!("status -p {} {words}", server.port()))
    }

    pub(crate) fn usage(&self, words: &[&str]) -> Finished {
        self.usage_with(words, "")
    }

    /// Like [`UsageSandbox::usage`], with this standard input.
    pub(crate) fn usage_with(&self, words: &[&str], input: impl AsRef<[u8]>) -> Finished {
        Finished::run_with(&mut self.command(words), input)
    }

    /// Stages this number of records, whose field `n` counts from 1.
    pub(crate) fn stage(&self, count: usize) {
        let lines: Vec<String> = (1..=count).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        self.usage_with(&["stage"], lines.concat()).assert_code(0);
    }

    /// Returns the names of the files in a subdirectory of the data directory.
    pub(crate) fn files(&self, part: &str) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.data().join(part))
            .expect("the subdirectory exists")
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with('.'))
            .collect();
        names.sort();
        names
    }

    /// Archives `count` records and sets the modification time of the batch to two days ago. Returns the
    /// names of the files in `archive/`.
    pub(crate) fn old_archive(&self, count: usize) -> Vec<String> {
        self.stage(count);
        self.usage(&["deliver", "--archive"]).assert_code(0);
        let names = self.files("archive");
        for name in &names {
            let path = self.data().join("archive").join(name);
            let file = fs::File::options().write(true).open(path).unwrap();
            let two_days = Duration::from_secs(2 * 24 * 3600);
            file.set_modified(SystemTime::now() - two_days).unwrap();
        }
        names
    }

    /// Returns the result of `llmlb usage verify`, which must succeed.
    pub(crate) fn books(&self) -> Value {
        let ran = self.usage(&["verify", "--json"]);
        ran.assert_code(0);
        ran.json()
    }
}

/// Running server with functions for its usage records.
pub(crate) struct Server(LlmlbServer);

impl Deref for Server {
    type Target = LlmlbServer;

    fn deref(&self) -> &LlmlbServer {
        &self.0
    }
}

impl Server {
    pub(crate) fn usage(&self) -> Value {
        self.0.status()["usage"].take()
    }

    /// Sends a request such as `POST /v1/chat/completions` and returns the body of the response.
    pub(crate) fn fetch(&self, method_and_path: &str, body: &str) -> String {
        let (method, path) = method_and_path
            .split_once(' ')
            .expect("a method and a path");
        let request = Request::new(method, path).field("content-type", "application/json");
        let mut connection = Connection::open(self.0.address);
        connection.send(request.body(body).to_bytes());
        connection.answer().text()
    }

    /// Waits until the field `usage` of `/status` satisfies the condition, and returns it.
    pub(crate) fn until(&self, condition: &str, is_true: impl Fn(&Value) -> bool) -> Value {
        eventually(condition, || Some(self.usage()).filter(&is_true))
    }
}

/// Receiver that reports every request to the test and responds when the test permits it.
pub(crate) struct HeldReceiver {
    pub(crate) receiver: UsageReceiver,
    /// Channel with one message for every request that the receiver got.
    pub(crate) requests: mpsc::Receiver<()>,
    /// Channel by which the test permits responses: each message permits one. Dropping the sender permits
    /// all.
    pub(crate) respond: mpsc::Sender<()>,
}

impl HeldReceiver {
    pub(crate) fn start() -> Self {
        let (report, requests) = mpsc::channel();
        let (respond, permission) = mpsc::channel::<()>();
        let (report, permission) = (Mutex::new(report), Mutex::new(permission));
        let receiver = UsageReceiver::judging(move |_| {
            let _ = report.lock().unwrap().send(());
            let _ = permission.lock().unwrap().recv();
            Reply::response(200, &[], "")
        });
        Self {
            receiver,
            requests,
            respond,
        }
    }
}

/// Returns the field `n` of each record in a received batch. [`UsageSandbox::stage`] numbers
/// records in this field.
pub(crate) fn numbers(batch: &Received) -> Vec<u64> {
    let batch = batch.json();
    let records = batch["records"].as_array().expect("records");
    let number = |record: &Value| record["n"].as_u64().expect("a number");
    records.iter().map(number).collect()
}

/// Returns a record with the time in its id, such as `2026-11-16T13:37:00Z`, and these fields.
pub(crate) fn record_at(time: &str, fields: &str) -> String {
    let time: jiff::Timestamp = time.parse().unwrap();
    let seconds = u64::try_from(time.as_second()).unwrap();
    let nanos = u32::try_from(time.subsec_nanosecond()).unwrap();
    let at = uuid::Timestamp::from_unix(uuid::NoContext, seconds, nanos);
    format!("{{\"id\":\"{}\",{fields}}}\n", uuid::Uuid::new_v7(at))
}

/// Returns the day in UTC that was this number of days ago.
pub(crate) fn day_ago(days: i64) -> String {
    let now = jiff::Timestamp::now().to_zoned(jiff::tz::TimeZone::UTC);
    let day = now.date().checked_sub(jiff::Span::new().days(days));
    day.unwrap().to_string()
}
