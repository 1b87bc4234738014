//! A backend that does what a test wants, byte by byte.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use socket2::SockRef;

use crate::http::Head;
use crate::process::PATIENCE;

/// What came in.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) head: Head,
    pub(crate) body: Vec<u8>,
    /// Which connection it came on, counted from 1.
    pub(crate) connection: usize,
}

impl Request {
    pub(crate) fn path(&self) -> &str {
        self.head.line.split(' ').nth(1).expect("a path")
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.clone()).expect("text")
    }
}

/// A backend. It ends with the test's process; [`Mock::stop`] ends it sooner.
pub(crate) struct Mock {
    pub(crate) address: SocketAddr,
    /// Every request but those for the list of models.
    pub(crate) requests: Arc<Mutex<Vec<Arc<Request>>>>,
    /// The credentials that came with the requests for the list of models.
    pub(crate) probed_with: Arc<Mutex<String>>,
    stopped: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    listening: Mutex<Option<JoinHandle<()>>>,
}

impl Mock {
    /// Serves these models, and answers everything else as told.
    pub(crate) fn start(
        models: &[&str],
        answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        Self::start_at("127.0.0.1:0".parse().expect("an address"), models, answer)
    }

    pub(crate) fn start_at(
        address: SocketAddr,
        models: &[&str],
        answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let list: Vec<_> = models
            .iter()
            .map(|id| format!(r#"{{"id":"{id}","object":"model","owned_by":"mock"}}"#))
            .collect();
        let list = format!(r#"{{"object":"list","data":[{}]}}"#, list.join(","));
        Self::raw(address, move |request, stream| {
            if request.path() == "/v1/models" {
                json(stream, 200, &list);
            } else {
                answer(request, stream);
            }
        })
    }

    /// Answers everything as told.
    pub(crate) fn raw(
        address: SocketAddr,
        answer: impl Fn(&Request, &mut TcpStream) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(address).expect("a socket");
        let mut mock = Self {
            address: listener.local_addr().expect("its address"),
            requests: Arc::default(),
            probed_with: Arc::default(),
            stopped: Arc::default(),
            connections: Arc::default(),
            listening: Mutex::default(),
        };
        let (requests, stopped) = (Arc::clone(&mock.requests), Arc::clone(&mock.stopped));
        let (connections, answer) = (Arc::clone(&mock.connections), Arc::new(answer));
        let probed_with = Arc::clone(&mock.probed_with);
        let count = AtomicUsize::new(0);
        let listening = thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::SeqCst) {
                    return stop_listening(&listener);
                }
                let stream = stream.expect("a connection");
                let number = count.fetch_add(1, Ordering::SeqCst) + 1;
                let kept = stream.try_clone().expect("a handle");
                connections.lock().expect("the list").push(kept);
                let (requests, answer) = (Arc::clone(&requests), Arc::clone(&answer));
                let probed_with = Arc::clone(&probed_with);
                let answer = move |request: &Request, stream: &mut TcpStream| {
                    if request.path().ends_with("/v1/models") {
                        let key = request.head.header("authorization").unwrap_or_default();
                        probed_with.lock().expect("the text").push_str(&key);
                    }
                    answer(request, stream);
                };
                thread::spawn(move || serve(stream, number, &requests, &answer));
            }
        });
        mock.listening = Mutex::new(Some(listening));
        mock
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many requests came, apart from those for the list of models.
    pub(crate) fn count(&self) -> usize {
        self.requests.lock().expect("the list").len()
    }

    /// Accepts no more, and breaks every connection.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
        if let Some(listening) = self.listening.lock().expect("the thread").take() {
            let _ = TcpStream::connect(self.address);
            let _ = listening.join();
        }
        for stream in self.connections.lock().expect("the list").drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Frees the port at once. Without it, a process that another test starts at this moment keeps the port
/// until its program runs: it has a copy of every open socket until then.
pub(crate) fn stop_listening(listener: &TcpListener) {
    // Not supported everywhere; the descriptor is closed anyway.
    let _ = SockRef::from(listener).shutdown(std::net::Shutdown::Both);
}

impl Drop for Mock {
    fn drop(&mut self) {
        self.stop();
    }
}

fn serve(
    stream: TcpStream,
    connection: usize,
    requests: &Mutex<Vec<Arc<Request>>>,
    answer: &dyn Fn(&Request, &mut TcpStream),
) {
    stream.set_nodelay(true).expect("no delay");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
    let mut writer = stream.try_clone().expect("a handle");
    let mut reader = BufReader::new(stream);
    while let Some(head) = Head::read(&mut reader) {
        let Ok(body) = head.body(&mut reader) else {
            return;
        };
        let request = Arc::new(Request {
            head,
            body,
            connection,
        });
        // Before it is answered, so that whoever has the answer finds it here.
        if request.path() != "/v1/models" {
            requests
                .lock()
                .expect("the list")
                .push(Arc::clone(&request));
        }
        answer(&request, &mut writer);
    }
}

/// Sends a JSON answer. Whether the other side still listens is its own affair.
pub(crate) fn json(stream: &mut TcpStream, status: u16, body: &str) {
    let _ = stream.write_all(
        format!(
            "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .as_bytes(),
    );
}

/// Begins a streamed answer.
pub(crate) fn begin_stream(stream: &mut TcpStream) {
    let _ = stream.write_all(
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    );
}

/// Sends a piece of it; `false` if nobody listens any more.
pub(crate) fn chunk(stream: &mut TcpStream, data: &str) -> bool {
    stream
        .write_all(format!("{:x}\r\n{data}\r\n", data.len()).as_bytes())
        .is_ok()
}

/// Ends it.
pub(crate) fn end_stream(stream: &mut TcpStream) {
    let _ = stream.write_all(b"0\r\n\r\n");
}
