//! Lock directory of a test, the program under test, and stand-ins that hold a lock as a server does.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tenure::{Key, Store};
use testkit::{FakeLlm, Finished, Sandbox, wire};

/// Environment variable with the port whose lock a stand-in holds in place of a server.
const PORT: &str = "STAND_IN_PORT";
/// Environment variable with the reaction of a stand-in to SIGTERM: `end`, `ignore`, or a number of
/// milliseconds after which the stand-in ends.
const ON_SIGTERM: &str = "STAND_IN_ON_SIGTERM";
/// Environment variable with the drain timeout in milliseconds. A stand-in writes the timeout into
/// its lock record.
const DRAIN_MS: &str = "STAND_IN_DRAIN_MS";
/// Line that a stand-in prints once it holds the lock.
const READY: &str = "stand-in is ready";

/// A lock directory and the program that uses it.
pub(crate) struct LockDir(Sandbox);

impl LockDir {
    pub(crate) fn new() -> Self {
        Self(testkit::sandbox!())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.root()
    }

    pub(crate) fn lock_file(&self, port: u16) -> PathBuf {
        self.path().join(format!("serve_{port}.lock"))
    }

    pub(crate) fn llmlb(&self, arguments: &[&str]) -> Finished {
        let mut llmlb = vec![env!("CARGO_BIN_EXE_llmlb")];
        llmlb.extend(arguments);
        self.run(&llmlb)
    }

    /// Runs a program with the path of the lock directory in `LLMLB_LOCK_DIR`. `words` are the
    /// program and its arguments.
    pub(crate) fn run(&self, words: &[&str]) -> Finished {
        Finished::run(&mut self.command(words))
    }

    fn command(&self, words: &[&str]) -> Command {
        let (program, arguments) = words.split_first().expect("a program");
        let mut command = self.0.command_of(program, arguments);
        command.env("LLMLB_LOCK_DIR", self.path());
        command
    }

    /// Starts a process that holds the lock of a port as a server does.
    pub(crate) fn stand_in(&self, port: u16, on_sigterm: &str) -> StandIn {
        self.stand_in_under(&[], port, on_sigterm, 30_000)
    }

    /// Starts a process that holds the lock of a port as a server does. `starter` is a program that
    /// starts the process, for example in a PID namespace; `drain_ms` is the drain timeout in the
    /// lock record.
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
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut lines = BufReader::new(stdout).lines();
        let ready = lines.any(|line| line.is_ok_and(|line| line.contains(READY)));
        assert!(ready, "the stand-in did not acquire the lock");
        StandIn(child)
    }
}

pub(crate) fn this_test() -> String {
    let path = std::env::current_exe().expect("a path");
    path.into_os_string()
        .into_string()
        .expect("a path that is text")
}

/// Process that holds the lock of a port. Dropping it kills the process.
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

/// Not a test: runs in the process of a [`StandIn`].
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
        .expect("the lock is free");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let on_sigterm = std::env::var(ON_SIGTERM).expect("the reaction to SIGTERM");
    runtime.block_on(wait(&on_sigterm));
    tenure.release().expect("released");
}

#[cfg(unix)]
async fn wait(on_sigterm: &str) {
    use std::time::Duration;

    use tokio::signal::unix::{SignalKind, signal};

    let mut sigterm = signal(SignalKind::terminate()).expect("a handler");
    println!("{READY}");
    sigterm.recv().await;
    match on_sigterm {
        "end" => {}
        "ignore" => std::future::pending().await,
        millis => {
            let millis = millis.parse().expect("a number of milliseconds");
            tokio::time::sleep(Duration::from_millis(millis)).await;
        }
    }
}

#[cfg(not(unix))]
async fn wait(_on_sigterm: &str) {
    println!("{READY}");
    std::future::pending().await
}

/// Starts a server that responds to every request with this JSON.
pub(crate) fn status_server(json: &'static str) -> FakeLlm {
    FakeLlm::handling_all(move |_, stream| wire::json(stream, 200, json))
}
