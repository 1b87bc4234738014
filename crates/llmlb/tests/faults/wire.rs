//! HTTP/1.1 as a server speaks it, with every way to break off.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime};

use socket2::SockRef;

/// A request that arrived whole.
#[derive(Debug)]
pub(crate) struct Request {
    /// When its first byte came.
    pub(crate) arrived: (Instant, SystemTime),
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Reads the next request. `None`: the client has closed the connection between two.
    pub(crate) fn read(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Self>> {
        if stream.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let arrived = (Instant::now(), SystemTime::now());
        let first = line(stream)?;
        if !first.starts_with("POST /") {
            return Err(io::Error::other(format!("not a POST: {first}")));
        }
        let mut headers = Vec::new();
        loop {
            let text = line(stream)?;
            if text.is_empty() {
                break;
            }
            let (name, value) = text.split_once(':').ok_or(io::ErrorKind::InvalidData)?;
            headers.push((name.to_lowercase(), value.trim().to_owned()));
        }
        let mut request = Self {
            arrived,
            headers,
            body: Vec::new(),
        };
        let length = request.header("content-length");
        let length = length.and_then(|text| text.parse::<usize>().ok());
        request
            .body
            .resize(length.ok_or(io::ErrorKind::InvalidData)?, 0);
        stream.read_exact(&mut request.body)?;
        Ok(Some(request))
    }
}

fn line(stream: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut text = String::new();
    stream.read_line(&mut text)?;
    let text = text
        .strip_suffix("\r\n")
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    Ok(text.to_owned())
}

/// Where an answer stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Whole,
    /// Nothing comes, and the connection closes as if all were well.
    Nothing,
    /// Nothing comes but a reset.
    Reset,
    /// In the middle of the head.
    InHead,
    /// The head is whole, the body is not.
    InBody,
}

/// An answer, and how much of it is sent.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: String,
    pub(crate) ending: Ending,
    /// How long the client waits for it.
    pub(crate) delay: Duration,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: body.into(),
            ending: Ending::Whole,
            delay: Duration::ZERO,
        }
    }

    /// Sends it. `true`: the connection may be used again.
    pub(crate) fn send(&self, stream: &TcpStream) -> bool {
        let headers = self.headers.iter();
        let headers: Vec<_> = headers
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let head = format!(
            "HTTP/1.1 {} said the receiver\r\n{}Content-Length: {}\r\n\r\n",
            self.status,
            headers.concat(),
            self.body.len()
        );
        let whole = head.clone() + &self.body;
        let length = match self.ending {
            Ending::Whole => whole.len(),
            Ending::Nothing => 0,
            Ending::Reset => {
                reset(stream);
                return false;
            }
            Ending::InHead => head.len() / 2,
            Ending::InBody => head.len() + self.body.len() / 2,
        };
        let sent = (&mut &*stream).write_all(&whole.as_bytes()[..length]);
        sent.is_ok() && self.ending == Ending::Whole
    }
}

/// The connection ends with a reset as soon as it is dropped.
pub(crate) fn reset(stream: &TcpStream) {
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
