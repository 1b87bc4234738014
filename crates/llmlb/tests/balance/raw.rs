//! A listener for what no HTTP server does.

use std::io::BufReader;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use crate::http::Head;
use crate::mock::stop_listening;
use crate::process::PATIENCE;

/// Hands each connection to a thread of its own, until it is dropped.
pub(crate) struct Raw {
    pub(crate) address: SocketAddr,
    accepted: Arc<AtomicUsize>,
    stopped: Arc<AtomicBool>,
}

impl Raw {
    pub(crate) fn start_at(
        address: SocketAddr,
        handle: impl Fn(TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a socket");
        let raw = Self {
            address: listener.local_addr().expect("its address"),
            accepted: Arc::default(),
            stopped: Arc::default(),
        };
        let (accepted, stopped) = (Arc::clone(&raw.accepted), Arc::clone(&raw.stopped));
        let handle = Arc::new(handle);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return stop_listening(&listener);
                }
                let stream = stream.expect("a connection");
                stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                accepted.fetch_add(1, Ordering::SeqCst);
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle(stream));
            }
        });
        raw
    }

    pub(crate) fn start(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), handle)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many connections came.
    pub(crate) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// A backend of which a test has every connection in hand as soon as the head of a question is
/// there; what is asked about models and health is answered already.
pub(crate) fn heads(
    handle: impl Fn(&Head, &mut BufReader<TcpStream>) + Send + Sync + 'static,
) -> Raw {
    Raw::start(move |stream| {
        let mut reader = BufReader::new(stream);
        while let Some(head) = Head::read(&mut reader) {
            let path = head.line.split(' ').nth(1).unwrap_or_default();
            if path == "/v1/models" {
                let list = r#"{"object":"list","data":[{"id":"m","object":"model"}]}"#;
                crate::mock::json(reader.get_mut(), 200, list);
            } else if path.starts_with("/v1/") {
                handle(&head, &mut reader);
            } else {
                crate::mock::json(reader.get_mut(), 404, "{}");
            }
        }
    })
}

/// Ends a connection with a reset, whoever else has a handle of it.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = rustix::net::connect_unspec(stream);
}
