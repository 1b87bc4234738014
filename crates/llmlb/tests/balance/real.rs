//! Backends in processes of their own, which can be killed and stopped like any process. The tests'
//! own program plays them.

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

/// A backend for the model `m` that says who it is and what it was sent.
pub(crate) struct Real {
    pub(crate) address: SocketAddr,
    child: Child,
}

impl Real {
    pub(crate) fn start() -> Self {
        Self::start_at(address())
    }

    /// Starts it there, and waits until it listens.
    pub(crate) fn start_at(address: SocketAddr) -> Self {
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "real::plays_a_backend", "--ignored"])
            .env(ADDRESS, address.to_string())
            // It ends when this pipe does, so with this process at the latest.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        until("the backend listens", || {
            TcpStream::connect(address).is_ok()
        });
        Self { address, child }
    }

    /// As `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Killed and started anew.
    pub(crate) fn restart(&mut self) {
        self.kill();
        *self = Self::start_at(self.address);
    }

    /// It hangs: the system still accepts connections for it, and nobody answers.
    pub(crate) fn hang(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn flag(&self) -> String {
        format!("--backend http://{}", self.address)
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).expect("a number");
        let pid = Pid::from_raw(pid).expect("its number");
        kill_process(pid, signal).expect("it is there");
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
#[ignore = "other tests start it as a process of its own"]
fn plays_a_backend() {
    let Ok(address) = std::env::var(ADDRESS) else {
        return;
    };
    let _mock = backend_at(address.parse().unwrap(), &["m"], play);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// Answers with what came, all at once; or as a stream, if that is asked for.
fn play(request: &Received, stream: &mut TcpStream) {
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
