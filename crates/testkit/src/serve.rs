//! llmlb servers in processes of their own.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::http1;
use crate::message::{Request, Response};
use crate::sandbox::{Launched, Sandbox, text, toml};
use crate::wait::eventually;

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

    /// Runs the server under a program that executes the rest of its command line.
    #[must_use]
    pub fn under(mut self, wrapper: &[&str]) -> Self {
        self.wrapper
            .extend(wrapper.iter().map(|&word| word.to_owned()));
        self
    }

    /// Limits the number of open descriptors, soft and hard.
    #[must_use]
    pub fn max_descriptors(self, limit: usize) -> Self {
        self.under(&["prlimit", &format!("--nofile={limit}:{limit}")])
    }

    /// Limits the address space in bytes.
    #[must_use]
    pub fn max_address_space(self, limit: u64) -> Self {
        self.under(&["prlimit", &format!("--as={limit}:{limit}")])
    }

    /// Runs another copy of the program.
    #[must_use]
    pub fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Runs the server in this directory, without a configuration file of its own: the one in the
    /// directory counts, and the settings and backends added here do not.
    #[must_use]
    pub fn in_directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Starts the server and waits until it serves.
    pub fn start(self) -> io::Result<LlmlbServer> {
        let mut command = self.command()?;
        let launched = self.sandbox.launch(&mut command)?;
        LlmlbServer::wait_for(launched)
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
pub struct LlmlbServer {
    address: SocketAddr,
    pid: u32,
    stderr: PathBuf,
    launched: Mutex<Launched>,
}

impl LlmlbServer {
    fn wait_for(mut launched: Launched) -> io::Result<Self> {
        let stderr = launched.stderr.clone();
        let listening = eventually("the server listens", || {
            if let Ok(Some(status)) = launched.child.try_wait() {
                let log = text(&stderr);
                return Some(Err(io::Error::other(format!("{status}: {}", log.trim()))));
            }
            let log = text(&stderr);
            let after = log.split("listening on http://").nth(1)?;
            let address = after.split_whitespace().next()?;
            let address = address.trim_end_matches(|char: char| !char.is_ascii_digit());
            address.parse().ok().map(Ok)
        });
        let pid = launched.child.id();
        let address = match listening {
            Ok(Ok(address)) => address,
            Ok(Err(error)) => return Err(error),
            Err(timed_out) => {
                let _ = launched.child.kill();
                let _ = launched.child.wait();
                return Err(io::Error::new(io::ErrorKind::TimedOut, timed_out));
            }
        };
        Ok(Self {
            address,
            pid,
            stderr,
            launched: Mutex::new(launched),
        })
    }

    /// Address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Process id of the server.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Standard error of the server so far: its log.
    pub fn log(&self) -> String {
        text(&self.stderr)
    }

    /// True while the process runs.
    pub fn is_running(&self) -> bool {
        matches!(self.exit_status(), Ok(None))
    }

    /// Exit status of a process that has ended.
    pub fn exit_status(&self) -> io::Result<Option<ExitStatus>> {
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.child.try_wait()
    }

    /// Sends one request on a new connection and returns the response.
    pub fn send(&self, request: &Request) -> io::Result<Response> {
        http1::send(self.address, request)
    }

    /// State of the server as `/status` reports it.
    pub fn status(&self) -> io::Result<Value> {
        Ok(self.send(&Request::get("/status"))?.json())
    }

    /// State of the backend with this name, or of the first one if the name is empty.
    pub fn backend_status(&self, name: &str) -> io::Result<Value> {
        let status = self.status()?;
        let backends = status["backends"].as_array();
        let mut backends = backends.into_iter().flatten();
        let backend = backends.find(|one| name.is_empty() || one["name"] == name);
        Ok(backend.cloned().unwrap_or_default())
    }

    /// Asks the server to drain (SIGTERM) and waits until it has ended. Elsewhere than on Unix the
    /// process is killed.
    pub fn stop(&self) -> io::Result<ExitStatus> {
        self.terminate()?;
        eventually("the server ends", || self.exit_status().transpose())
            .map_err(|timed_out| io::Error::new(io::ErrorKind::TimedOut, timed_out))?
    }

    #[cfg(unix)]
    fn terminate(&self) -> io::Result<()> {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(io::ErrorKind::InvalidInput)?;
        kill_process(pid, Signal::TERM)?;
        Ok(())
    }

    #[cfg(not(unix))]
    fn terminate(&self) -> io::Result<()> {
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        launched.child.kill()
    }
}

impl Drop for LlmlbServer {
    fn drop(&mut self) {
        let launched = self.launched.get_mut();
        let launched = launched.unwrap_or_else(PoisonError::into_inner);
        let _ = launched.child.kill();
        let _ = launched.child.wait();
    }
}
