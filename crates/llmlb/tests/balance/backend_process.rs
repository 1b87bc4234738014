//! Backends in processes of their own, which tests kill and stop with signals. The test program itself
//! is started as the backend.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use testkit::{
    Received,
    backends::{address, backend_at},
    until, wire,
};

const ADDRESS: &str = "TEST_BACKEND_ADDRESS";

pub(crate) struct BackendProcess {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl BackendProcess {
    pub(crate) fn start() -> Self {
        Self::start_at(address())
    }

    /// Starts a backend at this address and waits until it listens.
    pub(crate) fn start_at(address: SocketAddr) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "backend_process::run_as_backend", "--ignored"])
            .env(ADDRESS, address.to_string())
            // The backend exits when this pipe is closed, at the latest with the test program.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the backend starts");
        until("the backend listens", || {
            TcpStream::connect(address).is_ok()
        });
        Self { address, child }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the backend and starts a new one at the same address.
    pub(crate) fn restart(&mut self) {
        self.kill();
        *self = Self::start_at(self.address);
    }

    /// Stops the process. The system still accepts connections, and no request gets a response.
    pub(crate) fn hang(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn flag(&self) -> String {
        format!("--backend http://{}", self.address)
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a pid");
        let pid = Pid::from_raw(pid).expect("a pid above 0");
        kill_process(pid, signal).expect("the process exists");
    }
}

impl Drop for BackendProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
#[ignore = "the program of backend processes: other tests start it"]
fn run_as_backend() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let _mock = backend_at(address.parse().unwrap(), &["m"], respond);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Responds with the body of the request, or with a stream if the request asks for one.
fn respond(request: &Received, stream: &mut TcpStream) {
    let text = request.text();
    if text.contains(r#""stream":true"#) {
        wire::begin_stream(stream);
        for number in 0..10 {
            wire::chunk(stream, &format!("data: {number}\n\n"));
        }
        wire::end_stream(stream);
    } else if text.contains(r#""pause":true"#) {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: first\n\n");
        thread::sleep(Duration::from_secs(1));
        wire::chunk(stream, "data: last\n\n");
        wire::end_stream(stream);
    } else if text.contains(r#""hold":true"#) {
        wire::begin_stream(stream);
        wire::chunk(stream, "data: first\n\n");
        let _ = stream.read(&mut [0]);
    } else {
        wire::json(stream, 200, &text);
    }
}
