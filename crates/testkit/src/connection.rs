//! HTTP/1.1 for tests: the functions of [`Http1`], but a failure panics and so fails the test.

use std::fmt;
use std::io::{BufRead, ErrorKind};
use std::net::{SocketAddr, TcpStream};
use std::ops::{Deref, DerefMut};

use serde_json::Value;

use crate::framing::{self, Unframed};
use crate::http1::Http1;
use crate::message::Head;

/// A response, complete or not.
#[derive(Clone)]
pub struct Answer {
    /// Status line and header fields of the response.
    pub head: Head,
    /// Body without its framing; `Err` with the part that was received if it is incomplete.
    pub body: Result<Vec<u8>, Vec<u8>>,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text =
            |body: &Vec<u8>| String::from_utf8_lossy(&body[..body.len().min(1000)]).into_owned();
        let body = self.body.as_ref().map(text).map_err(text);
        write!(f, "{:?} {body:?}", self.head)
    }
}

impl Answer {
    /// Status of the response.
    pub fn status(&self) -> u16 {
        self.head.status()
    }

    /// Text of a complete body.
    #[track_caller]
    pub fn text(&self) -> String {
        let body = self.body.as_ref().expect("a complete body");
        String::from_utf8(body.clone()).expect("text")
    }

    /// JSON value of a complete body.
    #[track_caller]
    pub fn json(&self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// Client connection that can carry several requests.
#[derive(Debug)]
pub struct Connection(Http1);

impl Connection {
    /// Connects to a server.
    #[track_caller]
    pub fn open(address: SocketAddr) -> Self {
        Self(Http1::connect(address).expect("a connection"))
    }

    /// Returns a client for a connection that is already open.
    #[track_caller]
    pub fn over(stream: TcpStream) -> Self {
        Self(Http1::new(stream).expect("a connection"))
    }

    /// Sends these bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.send(bytes).expect("the bytes are sent");
    }

    /// Sends a GET.
    #[track_caller]
    pub fn send_get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    }

    /// Sends a POST of a JSON body.
    #[track_caller]
    pub fn send_post(&mut self, path: &str, body: &str) {
        self.send_post_with(path, "", body);
    }

    /// Sends a POST of a JSON body with further header lines. Each of them ends in `\r\n`.
    #[track_caller]
    pub fn send_post_with(&mut self, path: &str, fields: &str, body: &str) {
        self.send(format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\n{fields}content-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Reads the head of the next response.
    #[track_caller]
    pub fn head(&mut self) -> Head {
        Head::read(&mut self.reader).expect("a response")
    }

    /// Reads the next response. A body without length and chunks counts as empty.
    #[track_caller]
    pub fn answer(&mut self) -> Answer {
        let head = self.head();
        let body = head.body(&mut self.reader);
        Answer { head, body }
    }

    /// True if the server has closed the connection without sending further bytes. False if it has
    /// sent some, or if the connection stays open.
    pub fn is_closed(&mut self) -> bool {
        match self.reader.fill_buf() {
            Ok(more) => more.is_empty(),
            Err(error) => !matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock),
        }
    }
}

impl Deref for Connection {
    type Target = Http1;

    fn deref(&self) -> &Http1 {
        &self.0
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Http1 {
        &mut self.0
    }
}

impl Head {
    /// Reads a head; `None` at the end of the connection.
    pub fn read(from: &mut impl BufRead) -> Option<Self> {
        framing::read_head(from).ok().flatten()
    }

    /// Reads the body that belongs to this head. `Err` with the part that was received if it is
    /// incomplete. A body without length and chunks counts as empty.
    pub fn body(&self, from: &mut impl BufRead) -> Result<Vec<u8>, Vec<u8>> {
        let mut body = Vec::new();
        match framing::read_body(self, Unframed::Empty, from, &mut body) {
            Ok(()) => Ok(body),
            Err(_) => Err(body),
        }
    }
}

/// Reads a chunk. Returns `Some(None)` for the last chunk, and `None` if the connection ended
/// within a chunk or the chunk is invalid.
pub fn read_chunk(from: &mut impl BufRead) -> Option<Option<Vec<u8>>> {
    framing::read_chunk(from).ok()
}

/// Sends a GET on a new connection and returns the response.
#[track_caller]
pub fn get(address: SocketAddr, path: &str) -> Answer {
    let mut connection = Connection::open(address);
    connection.send_get(path);
    connection.answer()
}

/// Sends a POST of a JSON body on a new connection and returns the response.
#[track_caller]
pub fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    let mut connection = Connection::open(address);
    connection.send_post(path, body);
    connection.answer()
}
