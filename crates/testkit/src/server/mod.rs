//! An HTTP/1.1 server whose every byte is scripted and logged.
//!
//! The server accepts connections on threads. For each request it reads the head, decides by a rule
//! whether to read the body, calls the script and performs the steps of the [`Reply`].

mod connection;
mod reply;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use socket2::SockRef;

use crate::message::Head;
pub use reply::{Reply, Step};

/// Way in which the scripted server treats the body of a request. A rule decides it from the head
/// of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyHandling {
    /// The body is read before the script runs, as by a correct server.
    Read,
    /// Body stays unread: its bytes are parsed as the next request of the connection.
    Unread,
    /// The script replies first and the body is read afterwards, as by a server that rejects an
    /// upload early.
    ReadAfterReply,
}

/// A request that the server received and executed.
#[derive(Clone, Debug)]
pub struct Received {
    /// Request line and header fields of the request.
    pub head: Head,
    /// Body; empty if it was not read before the script ran.
    pub body: Vec<u8>,
    /// Number of the connection on which the request arrived, counted from 1 in the order of
    /// acceptance. Tests check with it which requests shared a connection.
    pub connection: usize,
    /// Address of the client that sent the request.
    pub peer: SocketAddr,
    /// Time at which the first byte was received.
    pub arrived: Instant,
    /// Time at which the script was called.
    pub at: Instant,
}

impl Received {
    /// Target of the request, with its query.
    pub fn target(&self) -> &str {
        self.head.target()
    }

    /// Path of the request, without its query.
    pub fn path(&self) -> &str {
        self.head.path()
    }

    /// Body as text. Bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Body as JSON; `null` if it is not JSON.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// Function that is called for each request. It may write to the connection itself. Then the steps
/// of the reply that it returns are performed.
pub(crate) type Script = dyn Fn(&Received, &mut TcpStream) -> Reply + Send + Sync;
pub(crate) type BodyRule = dyn Fn(&Head) -> BodyHandling + Send + Sync;

struct Shared {
    script: Box<Script>,
    body_rule: Box<BodyRule>,
    is_stopped: AtomicBool,
    has_log: bool,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    executed: Vec<Arc<Received>>,
    bytes: Vec<Vec<u8>>,
    open: Vec<Option<TcpStream>>,
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::SeqCst)
    }
}

/// A scripted server on a free loopback port. Dropping it closes all its connections.
pub struct ScriptedServer {
    /// Address of the server.
    pub address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl ScriptedServer {
    /// Starts a server that reads every body and responds to every request as the script says.
    pub fn start(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> io::Result<Self> {
        Self::start_on_loopback(script, true)
    }

    /// Like [`ScriptedServer::start`], but logs neither requests nor bytes, so that tests with very
    /// many requests need little memory.
    pub fn without_log(
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
    ) -> io::Result<Self> {
        Self::start_on_loopback(script, false)
    }

    fn start_on_loopback(
        script: impl Fn(&Received) -> Reply + Send + Sync + 'static,
        has_log: bool,
    ) -> io::Result<Self> {
        let loopback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        let script = move |request: &Received, _: &mut TcpStream| script(request);
        Self::start_with(
            loopback,
            Box::new(|_| BodyHandling::Read),
            Box::new(script),
            has_log,
        )
    }

    pub(crate) fn start_at(
        address: SocketAddr,
        body_rule: Box<BodyRule>,
        script: Box<Script>,
    ) -> io::Result<Self> {
        Self::start_with(address, body_rule, script, true)
    }

    fn start_with(
        address: SocketAddr,
        body_rule: Box<BodyRule>,
        script: Box<Script>,
        has_log: bool,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            script,
            body_rule,
            is_stopped: AtomicBool::new(false),
            has_log,
            log: Mutex::default(),
        });
        let accepting = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self {
            address,
            shared,
            accepting: Mutex::new(Some(accepting)),
        })
    }

    /// URL of the server, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every request for which the script was called, in order.
    pub fn executed(&self) -> Vec<Arc<Received>> {
        self.shared.log().executed.clone()
    }

    /// Bytes received on each connection, in the order of the connections.
    pub fn received_bytes(&self) -> Vec<Vec<u8>> {
        self.shared.log().bytes.clone()
    }

    /// Number of connections that the server has accepted so far, closed ones included.
    pub fn connections(&self) -> usize {
        self.shared.log().bytes.len()
    }

    /// Number of connections that neither side has closed.
    pub fn open_connections(&self) -> usize {
        self.shared.log().open.iter().flatten().count()
    }

    /// Refuses new connections and closes all existing ones.
    pub fn stop(&self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        let accepting = self.accepting.lock();
        let accepting = accepting.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(accepting) = accepting {
            // Connecting wakes the accepting thread, which then finds `is_stopped` set and ends.
            drop(TcpStream::connect(self.address));
            let _ = accepting.join();
        }
        for stream in self.shared.log().open.iter_mut().filter_map(Option::take) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for ScriptedServer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.is_stopped() {
            return stop_listening(listener);
        }
        let Ok(stream) = stream else { continue };
        let Ok(peer) = stream.peer_addr() else {
            continue;
        };
        let number = {
            let mut log = shared.log();
            log.bytes.push(Vec::new());
            log.open.push(stream.try_clone().ok());
            log.bytes.len()
        };
        let shared = Arc::clone(shared);
        thread::spawn(move || {
            // A connection that fails is closed without a report: the test is the peer and observes
            // the end of the connection itself.
            let _ = connection::serve(stream, peer, number, &shared);
            shared.log().open[number - 1] = None;
        });
    }
}

/// Frees the port at once. A child process that is being started has a copy of the socket until its
/// program runs, so closing the descriptor of this process would not free the port.
pub(crate) fn stop_listening(listener: &TcpListener) {
    // Some systems cannot shut down a listening socket. The error is ignored, because the caller
    // closes the descriptor next.
    let _ = SockRef::from(listener).shutdown(Shutdown::Both);
}
