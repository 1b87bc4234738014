//! The program under test and a data directory for it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take before a test gives up. Never a measure of speed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A data directory and the program that uses it.
pub(crate) struct Place {
    /// The backend of every server here: a demo, which records nothing.
    demo: OnceLock<Server>,
    dir: TempDir,
}

/// What came of running the program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory for data");
        let demo = OnceLock::new();
        Self { demo, dir }
    }

    /// The data directory, which the program makes.
    pub(crate) fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// A file beside the data directory.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, content).expect("a file");
        path
    }

    /// `llmlb usage ...`, with nothing in its environment that could matter.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmlb"));
        command
            .arg("usage")
            .args(words)
            .env("LLMLB_DATA_DIR", self.data())
            .env_remove("LLMLB_USAGE_URL")
            .env_remove("LLMLB_USAGE_TOKEN")
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    /// `llmlb serve` on any free port, with these settings and a backend that responds.
    pub(crate) fn serve(&self, settings: &[(&str, &str)]) -> Server {
        let off = [("LLMLB_USAGE", "false")];
        let demo = self.demo.get_or_init(|| self.serve_demo(&off));
        let backend = format!("http://{}", demo.address);
        self.serve_with(&["--backend", &backend], settings)
    }

    /// `llmlb serve --demo` on any free port, with these settings.
    pub(crate) fn serve_demo(&self, settings: &[(&str, &str)]) -> Server {
        self.serve_with(&["--demo"], settings)
    }

    fn serve_with(&self, words: &[&str], settings: &[(&str, &str)]) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmlb"));
        command.args(["serve", "-p", "0"]).args(words);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LLMLB_") {
                command.env_remove(name);
            }
        }
        command
            .env("LLMLB_DATA_DIR", self.data())
            .env("LLMLB_LOCK_DIR", self.dir.path().join("locks"))
            .env_remove("NOTIFY_SOCKET")
            .envs(settings.iter().copied())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        let said = self.dir.path().join(format!("serve-{}", next_number()));
        let running = Running::start(command, &said);
        let address = eventually("it listens", || {
            let said = running.said();
            let after = said.split("listening on http://").nth(1)?;
            Some(after.split_once(' ')?.0.to_owned())
        });
        Server { running, address }
    }

    pub(crate) fn usage(&self, words: &[&str]) -> Ran {
        Ran::of(&mut self.command(words))
    }

    /// The same with an input.
    pub(crate) fn usage_with(&self, words: &[&str], input: impl AsRef<[u8]>) -> Ran {
        let mut command = self.command(words);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(input.as_ref()).expect("it reads");
        drop(stdin);
        child.wait_with_output().expect("it ends").into()
    }

    /// Stages so many records, numbered from 1.
    pub(crate) fn stage(&self, count: usize) {
        let lines: Vec<String> = (1..=count).map(|n| format!("{{\"n\":{n}}}\n")).collect();
        let ran = self.usage_with(&["stage"], lines.concat());
        assert_eq!(ran.code, 0, "{ran:?}");
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
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.json()
    }
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        command.output().expect("the program runs").into()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn all(&self) -> String {
        format!("{}{}", self.out, self.err)
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

/// A process that does not outlive its test. What it says goes into a file.
pub(crate) struct Running {
    child: Child,
    said: PathBuf,
}

impl Running {
    pub(crate) fn start(mut command: Command, said: &Path) -> Self {
        let file = fs::File::create(said).expect("a file for what it says");
        let child = command
            .stdout(file.try_clone().expect("another handle"))
            .stderr(file)
            .spawn()
            .expect("it starts");
        Self {
            child,
            said: said.to_owned(),
        }
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.said).expect("what it said")
    }

    /// Waits until it has said something: a log may come a moment later than what it tells of.
    pub(crate) fn until_said(&self, words: &str) -> String {
        eventually(words, || {
            Some(self.said()).filter(|said| said.contains(words))
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("its state").is_some()
    }

    /// Asks it to end.
    #[cfg(unix)]
    pub(crate) fn signal(&self) {
        let pid = self.pid().to_string();
        let status = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(status.expect("kill").success());
    }

    /// Waits until it ends, and gives its exit code.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let status = eventually("its end", || self.child.try_wait().expect("its state"));
        status.code()
    }
}

/// A server that serves.
pub(crate) struct Server {
    pub(crate) running: Running,
    pub(crate) address: String,
}

impl Server {
    /// What it says of the usage records.
    pub(crate) fn usage(&self) -> Value {
        let answer = self.ask("GET /status", "");
        let mut status: Value = serde_json::from_str(&answer).expect("JSON");
        status["usage"].take()
    }

    /// Asks it something, and waits for the whole answer.
    pub(crate) fn ask(&self, what: &str, body: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it accepts");
        let length = body.len();
        let request = format!(
            "{what} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        body.to_owned()
    }

    /// Waits until it says so.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || Some(self.usage()).filter(&is_so))
    }

    /// `llmlb status` of this server.
    pub(crate) fn status(&self, place: &Place, words: &[&str]) -> Ran {
        let (_, port) = self.address.rsplit_once(':').expect("a port");
        let mut command = Command::new(env!("CARGO_BIN_EXE_llmlb"));
        command.args(["status", "-p", port]).args(words);
        Ran::of(command.env("LLMLB_LOCK_DIR", place.dir.path().join("locks")))
    }

    /// Asks it to end, and waits for that.
    #[cfg(unix)]
    pub(crate) fn stop(&mut self) -> Option<i32> {
        self.signal();
        self.running.end()
    }

    #[cfg(unix)]
    pub(crate) fn signal(&self) {
        self.running.signal();
    }
}

/// Tells files apart.
fn next_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
