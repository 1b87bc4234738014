//! A resource that accepts writes over TCP and rejects those with an old fencing token. It keeps the
//! tokens of all accepted writes, so that a run can prove that no late write was accepted.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// A running resource. Its threads end with the process.
#[derive(Debug)]
pub struct FencedResource {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// False if every write is accepted, whatever its token. That is wrong on purpose and must be
    /// detected as a late write.
    checks_tokens: bool,
    /// Tokens of the accepted writes, in the order of their arrival, without repetitions.
    accepted: Vec<u64>,
    writes: u64,
    rejected: u64,
}

/// Counts of a [`FencedResource`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceReport {
    /// Number of accepted writes.
    pub writes: u64,
    /// Number of rejected writes.
    pub rejected: u64,
    /// Number of times that an accepted write had a smaller token than an earlier accepted write.
    pub late: usize,
}

impl FencedResource {
    /// Starts a resource on the loopback address. Without `checks_tokens` it accepts every write.
    pub fn start(checks_tokens: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let state = Arc::new(Mutex::new(State {
            checks_tokens,
            accepted: Vec::new(),
            writes: 0,
            rejected: 0,
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || serve(client, &state));
            }
        });
        Self { address, state }
    }

    /// Address of the resource.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the counts up to now.
    pub fn report(&self) -> ResourceReport {
        let state = lock(&self.state);
        let mut highest = 0;
        let mut late = 0;
        for token in &state.accepted {
            if *token < highest {
                late += 1;
            }
            highest = highest.max(*token);
        }
        ResourceReport {
            writes: state.writes,
            rejected: state.rejected,
            late,
        }
    }
}

fn serve(client: TcpStream, state: &Mutex<State>) {
    let Ok(mut output) = client.try_clone() else {
        return;
    };
    for line in BufReader::new(client).lines() {
        let Ok(line) = line else { return };
        let Ok(token) = line.parse::<u64>() else {
            return;
        };
        let accepted = lock(state).write(token);
        let answer: &[u8] = if accepted {
            b"accepted\n"
        } else {
            b"rejected\n"
        };
        if output.write_all(answer).is_err() {
            return;
        }
    }
}

impl State {
    fn write(&mut self, token: u64) -> bool {
        let last = self.accepted.last().copied();
        if self.checks_tokens && last.is_some_and(|last| token < last) {
            self.rejected += 1;
            return false;
        }
        self.writes += 1;
        if last != Some(token) {
            self.accepted.push(token);
        }
        true
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Connection of an owner to a [`FencedResource`].
#[derive(Debug)]
pub struct ResourceClient {
    input: BufReader<TcpStream>,
}

impl ResourceClient {
    /// Connects to a resource.
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the resource accepts connections");
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        Self {
            input: BufReader::new(stream),
        }
    }

    /// Writes with this token. Returns false if the resource rejects the write.
    pub fn write(&mut self, token: u64) -> bool {
        let text = format!("{token}\n");
        self.input
            .get_mut()
            .write_all(text.as_bytes())
            .expect("the resource reads");
        let mut answer = String::new();
        let _ = self.input.read_line(&mut answer);
        answer == "accepted\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_token_is_rejected_unless_the_resource_does_not_check() {
        let resource = FencedResource::start(true);
        let mut client = ResourceClient::connect(resource.address());
        assert!(client.write(5));
        assert!(client.write(7));
        assert!(!client.write(6));
        assert!(client.write(7));
        let report = resource.report();
        assert_eq!((report.writes, report.rejected, report.late), (3, 1, 0));

        let careless = FencedResource::start(false);
        let mut client = ResourceClient::connect(careless.address());
        assert!(client.write(7));
        assert!(client.write(6));
        assert_eq!(careless.report().late, 1);
    }
}
