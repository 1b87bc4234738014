//! A TCP proxy on the loopback address that behaves like a bad network: it holds data back, delays
//! responses, closes connections, or leads to another server.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which the threads of a connection check whether the test has changed the state of
/// the network.
const POLL: Duration = Duration::from_millis(2);

/// State of the network between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Data passes at once.
    Up,
    /// No data passes in either direction. Connections stay open, and data that was sent meanwhile
    /// arrives once the network is up again, as with a cable that was unplugged for a while.
    Cut,
    /// Responses arrive this much later. Requests pass at once, so the server executes them.
    SlowResponses(Duration),
}

/// A running proxy. Its threads end with the process.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    network: Network,
    target: SocketAddr,
    /// Incremented when the target changes: connections to the former target are closed.
    generation: u64,
}

impl Proxy {
    /// Starts a proxy in front of a server.
    pub fn start(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let state = Arc::new(Mutex::new(State {
            network: Network::Up,
            target,
            generation: 0,
        }));
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                thread::spawn(move || connect(client, &state));
            }
        });
        Self { address, state }
    }

    /// Address at which clients reach the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the state of the network, for existing and new connections.
    pub fn set(&self, network: Network) {
        lock(&self.state).network = network;
    }

    /// Changes the server behind the proxy, as in a failover: new connections lead to this server,
    /// and the existing ones are closed.
    pub fn lead_to(&self, target: SocketAddr) {
        let mut state = lock(&self.state);
        state.target = target;
        state.generation += 1;
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits while the network is cut. Returns false if the connection must be closed.
fn is_open(state: &Mutex<State>, generation: u64) -> bool {
    loop {
        let now = lock(state);
        if now.generation != generation {
            return false;
        }
        if now.network != Network::Cut {
            return true;
        }
        drop(now);
        thread::sleep(POLL);
    }
}

fn connect(client: TcpStream, state: &Arc<Mutex<State>>) {
    let (target, generation) = {
        let state = lock(state);
        (state.target, state.generation)
    };
    if !is_open(state, generation) {
        return;
    }
    let Ok(server) = TcpStream::connect(target) else {
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
        let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
    }
    let (Ok(client_in), Ok(server_in)) = (client.try_clone(), server.try_clone()) else {
        return;
    };
    let requests = Arc::clone(state);
    thread::spawn(move || copy(client_in, server, &requests, generation, false));
    copy(server_in, client, state, generation, true);
}

/// Copies one direction of a connection until it ends, and applies the state of the network to the
/// copied data.
fn copy(
    mut from: TcpStream,
    mut to: TcpStream,
    state: &Mutex<State>,
    generation: u64,
    are_responses: bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let length = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(error) if is_timeout(&error) => {
                if lock(state).generation == generation {
                    continue;
                }
                break;
            }
            Err(_) => break,
        };
        let arrived = Instant::now();
        // The state of the network is checked again during the delay, so that delayed data is sent
        // at once when the network is up again.
        while arrived.elapsed() < delay(state, are_responses) {
            thread::sleep(POLL);
        }
        if !is_open(state, generation) || to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn delay(state: &Mutex<State>, are_responses: bool) -> Duration {
    match lock(state).network {
        Network::SlowResponses(delay) if are_responses => delay,
        _ => Duration::ZERO,
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn echo() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut output = client.try_clone().unwrap();
                    std::io::copy(&mut client, &mut output)
                });
            }
        });
        address
    }

    fn ask(stream: &mut TcpStream) -> bool {
        stream.write_all(b"x").unwrap();
        let mut byte = [0];
        stream.read_exact(&mut byte).is_ok()
    }

    #[test]
    fn cut_network_holds_data_until_it_is_up_again() {
        let proxy = Proxy::start(echo());
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        client
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        assert!(ask(&mut client));
        proxy.set(Network::Cut);
        assert!(!ask(&mut client));
        proxy.set(Network::Up);
        client.set_read_timeout(None).unwrap();
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        assert!(ask(&mut client));
    }

    #[test]
    fn slow_response_arrives_after_the_delay() {
        let proxy = Proxy::start(echo());
        proxy.set(Network::SlowResponses(Duration::from_millis(60)));
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        let began = Instant::now();
        assert!(ask(&mut client));
        assert!(began.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn connections_end_when_the_proxy_leads_to_another_server() {
        let proxy = Proxy::start(echo());
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        assert!(ask(&mut client));
        proxy.lead_to(echo());
        let mut byte = [0];
        assert_eq!(client.read(&mut byte).unwrap_or(0), 0);
        let mut client = TcpStream::connect(proxy.address()).unwrap();
        assert!(ask(&mut client));
    }
}
