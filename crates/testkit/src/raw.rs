//! Listeners whose connections are handled by tests, byte by byte.

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::fake_llm::model_list;
use crate::message::Head;
use crate::server::stop_listening;
use crate::wait::DEADLINE;
use crate::wire;

/// Listener that passes each connection to a thread of its own, until it is dropped.
pub struct Raw {
    /// Address of the listener.
    pub address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
}

impl Raw {
    /// Listens on this address.
    #[track_caller]
    pub fn start_at(
        address: SocketAddr,
        handle: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a free port");
        let raw = Self {
            address: listener.local_addr().expect("its address"),
            accepted: Arc::default(),
            is_stopped: Arc::default(),
        };
        let (accepted, is_stopped) = (Arc::clone(&raw.accepted), Arc::clone(&raw.is_stopped));
        let handle = Arc::new(handle);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if is_stopped.load(Ordering::SeqCst) {
                    return stop_listening(&listener);
                }
                let stream = stream.expect("a connection");
                stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
                accepted.fetch_add(1, Ordering::SeqCst);
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle(stream));
            }
        });
        raw
    }

    /// Listens on a free loopback port.
    #[track_caller]
    pub fn start(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::start_at(([127, 0, 0, 1], 0).into(), handle)
    }

    /// URL of the listener, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Number of connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// Starts a backend for the model `m` that passes the connection to the handler as soon as the head
/// of a request under `/v1/` is received, apart from requests for the model list.
#[track_caller]
pub fn heads(handle: impl Fn(&Head, &mut BufReader<TcpStream>) + Send + Sync + 'static) -> Raw {
    Raw::start(move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some(head) = Head::read(&mut reader) {
            let path = head.path();
            if path == "/v1/models" {
                wire::json(reader.get_mut(), 200, &model_list(&["m"]));
            } else if path.starts_with("/v1/") {
                handle(&head, &mut reader);
            } else {
                wire::json(reader.get_mut(), 404, "{}");
            }
        }
    })
}

/// Resets a connection at once. Dropping the stream would not, as long as clones of it are open.
#[cfg(unix)]
pub fn reset(stream: &TcpStream) {
    let _ = rustix::net::connect_unspec(stream);
}
