//! The program under test, and stand-ins for a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use tempfile::TempDir;
use tenure::{Key, Store};

/// What a stand-in is told through its environment.
const PORT: &str = "STAND_IN_PORT";
const ON_SIGTERM: &str = "STAND_IN_ON_SIGTERM";
const DRAIN_MS: &str = "STAND_IN_DRAIN_MS";
/// What it says once it has the lock.
const READY: &str = "stand-in is ready";

/// A lock directory and the program that uses it.
pub(crate) struct Place {
    dir: TempDir,
}

/// What came of running the program.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory for the locks");
        Self { dir }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn lock_file(&self, port: u16) -> PathBuf {
        self.path().join(format!("serve_{port}.lock"))
    }

    pub(crate) fn llmlb(&self, arguments: &[&str]) -> Ran {
        let mut llmlb = vec![env!("CARGO_BIN_EXE_llmlb")];
        llmlb.extend(arguments);
        self.run(&llmlb)
    }

    /// Runs any program that finds the lock directory in its environment.
    pub(crate) fn run(&self, words: &[&str]) -> Ran {
        let output = self.command(words).output().expect("the program runs");
        Ran::from(output)
    }

    fn command(&self, words: &[&str]) -> Command {
        let (program, arguments) = words.split_first().expect("a program");
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LLMLB_LOCK_DIR", self.path())
            .env("LLMLB_DATA_DIR", self.path().join("data"));
        command
    }

    /// Starts a process that holds the lock of a port as a server does.
    pub(crate) fn stand_in(&self, port: u16, on_sigterm: &str) -> StandIn {
        self.stand_in_under(&[], port, on_sigterm, 30_000)
    }

    /// The same, started by another program, and with a drain timeout.
    pub(crate) fn stand_in_under(
        &self,
        starter: &[&str],
        port: u16,
        on_sigterm: &str,
        drain_ms: u64,
    ) -> StandIn {
        let this = this_test();
        let mut words = starter.to_vec();
        words.extend([
            this.as_str(),
            "--exact",
            "support::stand_in",
            "--ignored",
            "--nocapture",
        ]);
        let mut child = self
            .command(&words)
            .env(PORT, port.to_string())
            .env(ON_SIGTERM, on_sigterm)
            .env(DRAIN_MS, drain_ms.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the stand-in starts");
        let stdout = child.stdout.take().expect("it has a pipe");
        let mut lines = BufReader::new(stdout).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains(READY)));
        assert!(ready, "the stand-in got the lock");
        StandIn(child)
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// The path of this very program.
pub(crate) fn this_test() -> String {
    let path = std::env::current_exe().expect("this test has a path");
    path.into_os_string()
        .into_string()
        .expect("a path that is text")
}

/// A process that holds a lock. It is gone when the test ends.
pub(crate) struct StandIn(Child);

impl StandIn {
    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Not a test: what the process of a [`StandIn`] runs.
#[test]
#[ignore = "other tests start it as a process of its own"]
fn stand_in() {
    let Ok(port) = std::env::var(PORT) else {
        return;
    };
    let port: u16 = port.parse().expect("a port");
    let dir = std::env::var_os("LLMLB_LOCK_DIR").expect("a lock directory");
    let drain_ms: u64 = std::env::var(DRAIN_MS)
        .expect("a drain timeout")
        .parse()
        .expect("a number");
    let key = Key::service("serve", port).expect("a valid key");
    let tenure = Store::in_dir(dir)
        .claim(&key)
        .program("llmlb")
        .verb("serve")
        .field("address", format!("127.0.0.1:{port}"))
        .field("drain_timeout_ms", drain_ms)
        .try_acquire()
        .expect("nobody has the lock");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let way = std::env::var(ON_SIGTERM).expect("what to do on SIGTERM");
    runtime.block_on(wait(&way));
    tenure.release().expect("released");
}

#[cfg(unix)]
async fn wait(way: &str) {
    use std::time::Duration;

    use tokio::signal::unix::{SignalKind, signal};

    let mut asked = signal(SignalKind::terminate()).expect("a handler");
    println!("{READY}");
    asked.recv().await;
    match way {
        "end" => {}
        "ignore" => std::future::pending().await,
        millis => {
            let millis = millis.parse().expect("a number of milliseconds");
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }
}

#[cfg(not(unix))]
async fn wait(_way: &str) {
    println!("{READY}");
    std::future::pending().await
}

/// Listens on a port of its own and answers every request with this JSON.
pub(crate) fn answering(json: impl Fn(SocketAddr) -> String + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = [0; 1024];
            if stream.read(&mut request).is_ok_and(|count| count > 0) {
                let body = json(address);
                let length = body.len();
                let _ = write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}"
                );
            }
        }
    });
    address
}
