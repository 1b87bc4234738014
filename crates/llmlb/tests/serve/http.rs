//! HTTP by hand: a test sees every byte, and when it comes.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use crate::process::PATIENCE;

/// A message's head, and what follows it.
#[derive(Debug)]
pub(crate) struct Head {
    /// The first line.
    pub(crate) line: String,
    pub(crate) headers: Vec<(String, String)>,
}

impl Head {
    /// Reads a head; `None` at the end of the connection.
    pub(crate) fn read(from: &mut impl BufRead) -> Option<Self> {
        let mut line = String::new();
        from.read_line(&mut line).ok()?;
        if line.is_empty() {
            return None;
        }
        let mut headers = Vec::new();
        loop {
            let mut field = String::new();
            from.read_line(&mut field).ok()?;
            let Some((name, value)) = field.trim_end().split_once(':') else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Some(Self {
            line: line.trim_end().to_owned(),
            headers,
        })
    }

    /// The values of a header, joined.
    pub(crate) fn header(&self, name: &str) -> Option<String> {
        let values: Vec<_> = self
            .headers
            .iter()
            .filter(|(found, _)| found == name)
            .map(|(_, value)| value.as_str())
            .collect();
        (!values.is_empty()).then(|| values.join(", "))
    }

    pub(crate) fn status(&self) -> u16 {
        let status = self.line.split(' ').nth(1).expect("a status");
        status.parse().expect("a number")
    }

    /// Reads the body that belongs to this head. `Err`: it broke off.
    pub(crate) fn body(&self, from: &mut impl BufRead) -> Result<Vec<u8>, Vec<u8>> {
        let mut body = Vec::new();
        if self.header("transfer-encoding").is_some() {
            while let Some(chunk) = read_chunk(from).ok_or_else(|| body.clone())? {
                body.extend(chunk);
            }
        } else if let Some(length) = self.header("content-length") {
            body.resize(length.parse().expect("a length"), 0);
            from.read_exact(&mut body).map_err(|_| Vec::new())?;
        }
        Ok(body)
    }
}

/// One chunk; `Some(None)` is the last one, `None` that the connection broke off.
#[expect(clippy::option_option, reason = "a chunk, the end, or neither")]
pub(crate) fn read_chunk(from: &mut impl BufRead) -> Option<Option<Vec<u8>>> {
    let mut size = String::new();
    from.read_line(&mut size).ok()?;
    let size = usize::from_str_radix(size.trim_end(), 16).ok()?;
    let mut data = vec![0; size + 2];
    from.read_exact(&mut data).ok()?;
    data.truncate(size);
    Some((size > 0).then_some(data))
}

/// A whole answer.
pub(crate) struct Answer {
    pub(crate) head: Head,
    /// `Err` with what came before it broke off.
    pub(crate) body: Result<Vec<u8>, Vec<u8>>,
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
    pub(crate) fn status(&self) -> u16 {
        self.head.status()
    }

    pub(crate) fn text(&self) -> String {
        let body = self.body.as_ref().expect("a whole body");
        String::from_utf8(body.clone()).expect("text")
    }

    pub(crate) fn json(&self) -> Value {
        let text = self.text();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }
}

/// A connection to a server, which can carry several requests.
pub(crate) struct Connection {
    pub(crate) reader: BufReader<TcpStream>,
}

impl Connection {
    pub(crate) fn open(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).expect("a connection"))
    }

    pub(crate) fn over(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        Self {
            reader: BufReader::new(stream),
        }
    }

    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let stream = self.reader.get_mut();
        stream.write_all(bytes.as_ref()).expect("it is sent");
    }

    pub(crate) fn send_get(&mut self, path: &str) {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"));
    }

    pub(crate) fn send_post(&mut self, path: &str, body: &str) {
        self.send(format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Reads the head of the next answer.
    pub(crate) fn head(&mut self) -> Head {
        Head::read(&mut self.reader).expect("an answer")
    }

    pub(crate) fn answer(&mut self) -> Answer {
        let head = self.head();
        let body = head.body(&mut self.reader);
        Answer { head, body }
    }

    /// Whether the other side has closed, and sent nothing before. One that only stays silent has
    /// not.
    pub(crate) fn is_closed(&mut self) -> bool {
        use std::io::ErrorKind::{TimedOut, WouldBlock};
        match self.reader.fill_buf() {
            Ok(more) => more.is_empty(),
            Err(error) => !matches!(error.kind(), TimedOut | WouldBlock),
        }
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Answer {
    let mut connection = Connection::open(address);
    connection.send_get(path);
    connection.answer()
}

pub(crate) fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    let mut connection = Connection::open(address);
    connection.send_post(path, body);
    connection.answer()
}
