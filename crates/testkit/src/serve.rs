//! llmlb servers in processes of their own.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use crate::connection::{self, Answer};
use crate::http1;
use crate::message::{Request, Response};
use crate::process::Process;
use crate::sandbox::{Sandbox, toml};
use crate::server::stop_listening;
use crate::wait::{try_eventually, until};

/// Options of an llmlb server that is not started yet. The server listens on a free loopback port
/// and has default settings, apart from those added here.
pub struct ServeBuilder<'a> {
    sandbox: &'a Sandbox,
    program: PathBuf,
    settings: Vec<(String, String)>,
    backends: Vec<String>,
    variables: Vec<(String, String)>,
    wrapper: Vec<String>,
    directory: Option<PathBuf>,
}

impl<'a> ServeBuilder<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox) -> Self {
        Self {
            sandbox,
            program: sandbox.llmlb().to_owned(),
            settings: Vec::new(),
            backends: Vec::new(),
            variables: Vec::new(),
            wrapper: Vec::new(),
            directory: None,
        }
    }

    /// Adds a backend without a name.
    #[must_use]
    pub fn backend(self, url: &str) -> Self {
        self.backend_with(url, "")
    }

    /// Adds a backend with further lines of its `[[backend]]` table, such as `name = "a"`.
    #[must_use]
    pub fn backend_with(mut self, url: &str, lines: &str) -> Self {
        self.backends.push(format!("url = \"{url}\"\n{lines}\n"));
        self
    }

    /// Adds a setting: a name like `server.queue` and a TOML value.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Runs the server under a wrapper, such as `unshare`: a program that executes the command
    /// given by its arguments.
    #[must_use]
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper
            .extend(wrapper.iter().map(|&word| word.to_owned()));
        self
    }

    /// Limits the number of open descriptors of the server, soft and hard.
    #[must_use]
    pub fn max_descriptors(self, limit: usize) -> Self {
        self.under(&["prlimit", &format!("--nofile={limit}:{limit}")])
    }

    /// Limits the address space of the server, in bytes. An allocation beyond it fails.
    #[must_use]
    pub fn max_address_space(self, limit: u64) -> Self {
        self.under(&["prlimit", &format!("--as={limit}:{limit}")])
    }

    /// Runs this llmlb program instead of the sandbox's.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Runs the server in this directory without `--config`. The server reads the configuration
    /// file in the directory, and the settings and backends of this builder are ignored.
    #[must_use]
    pub fn in_directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Starts the server and waits until it serves.
    pub fn start(self) -> io::Result<LlmlbServer> {
        let mut command = self.command()?;
        LlmlbServer::wait_for(self.sandbox.try_start(&mut command)?)
    }

    fn command(&self) -> io::Result<Command> {
        let mut words = self.wrapper.clone();
        words.push(self.program.to_string_lossy().into_owned());
        words.extend(["serve", "-p", "0"].map(str::to_owned));
        if self.directory.is_none() {
            let file = self.sandbox.path("llmlb.toml");
            fs::write(&file, toml(&self.settings, &self.backends))?;
            words.extend(["--config".to_owned(), file.to_string_lossy().into_owned()]);
        }
        let (program, args) = words.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut command = self.sandbox.command_of(Path::new(program), &args);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        Ok(command)
    }
}

/// A running llmlb server. Dropping it kills the process.
#[derive(Debug)]
pub struct LlmlbServer {
    /// Process of the server.
    pub process: Process,
    /// Address of the server.
    pub address: SocketAddr,
}

impl LlmlbServer {
    pub(crate) fn wait_for(process: Process) -> io::Result<Self> {
        let listening = try_eventually("the server listens", || {
            if let Ok(Some(status)) = process.exit_status() {
                let log = process.stderr();
                return Some(Err(io::Error::other(format!("{status}: {}", log.trim()))));
            }
            let log = process.stderr();
            let after = log.split("listening on http").nth(1)?;
            let (_, after) = after.split_once("://")?;
            let (address, _) = after.split_once(char::is_whitespace)?;
            let address = address.trim_end_matches(|char: char| !char.is_ascii_digit());
            address.parse().ok().map(Ok)
        });
        let listening =
            listening.map_err(|timed_out| io::Error::new(io::ErrorKind::TimedOut, timed_out));
        let address = listening??;
        Ok(Self { process, address })
    }

    /// Port of the server.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Standard error of the server so far: its log.
    pub fn log(&self) -> String {
        self.process.stderr()
    }

    /// True while the process runs.
    pub fn is_running(&self) -> bool {
        self.process.is_running()
    }

    /// Sends one request on a new connection and returns the response.
    pub fn send(&self, request: &Request) -> io::Result<Response> {
        http1::send(self.address, request)
    }

    /// Sends a GET on a new connection and returns the response.
    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        connection::get(self.address, path)
    }

    /// Sends a POST of a JSON body on a new connection and returns the response.
    #[track_caller]
    pub fn post(&self, path: &str, body: &str) -> Answer {
        connection::post(self.address, path, body)
    }

    /// State of the server as `/status` reports it.
    #[track_caller]
    pub fn status(&self) -> Value {
        self.get("/status").json()
    }

    /// Like [`LlmlbServer::status`], but returns a failure instead of panicking.
    pub fn try_status(&self) -> io::Result<Value> {
        Ok(self.send(&Request::get("/status"))?.json())
    }

    /// State of the backend with this name, or of the first one if the name is empty.
    pub fn backend_status(&self, name: &str) -> io::Result<Value> {
        let status = self.try_status()?;
        let backends = status["backends"].as_array();
        let mut backends = backends.into_iter().flatten();
        let backend = backends.find(|one| name.is_empty() || one["name"] == name);
        Ok(backend.cloned().unwrap_or_default())
    }

    /// Waits until this number of requests is in flight.
    #[track_caller]
    pub fn until_in_flight(&self, count: u64) {
        until("that many requests are in flight", || {
            self.status()["in_flight"] == count
        });
    }

    /// Drains the server (SIGTERM), waits until it has ended and returns its exit code. On systems
    /// other than Unix the process is killed.
    #[track_caller]
    pub fn stop(&self) -> Option<i32> {
        let status = self.try_stop();
        status.unwrap_or_else(|error| panic!("{error}")).code()
    }

    /// Like [`LlmlbServer::stop`], but returns a failure instead of panicking.
    pub fn try_stop(&self) -> io::Result<ExitStatus> {
        self.process.terminate()?;
        try_eventually("the server ends", || self.process.exit_status().transpose())
            .map_err(|timed_out| io::Error::new(io::ErrorKind::TimedOut, timed_out))?
    }
}

/// Returns a free port outside of the range from which the system assigns local ports to
/// connections. So no other process is given the port before the test uses it.
#[track_caller]
pub fn free_port() -> u16 {
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
