//! An HTTP/1.1 client that sends any bytes.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::message::{Head, Request, Response};
use crate::server::find;
use crate::wait::DEADLINE;

/// Client connection that sends any bytes and reads responses.
#[derive(Debug)]
pub struct Http1 {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// Sends one request on a new connection and returns the response.
pub fn send(address: SocketAddr, request: &Request) -> io::Result<Response> {
    let mut client = Http1::connect(address)?;
    client.send(request.to_bytes())?;
    client.response()
}

impl Http1 {
    /// Connects to a server.
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, DEADLINE)?;
        Self::new(stream)
    }

    /// Connects from this local address, so that the server sees it as another machine.
    pub fn connect_from(source: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
        socket.connect_timeout(&address.into(), DEADLINE)?;
        Self::new(socket.into())
    }

    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(Self {
            stream,
            unread: Vec::new(),
        })
    }

    /// Sends these bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Reads a final response; informational ones are skipped.
    pub fn response(&mut self) -> io::Result<Response> {
        self.response_within(DEADLINE)
    }

    /// Reads a final response that is complete within `limit`; the error is `TimedOut` otherwise.
    pub fn response_within(&mut self, limit: Duration) -> io::Result<Response> {
        let deadline = Instant::now() + limit;
        loop {
            let head = self.head(deadline)?;
            if (100..200).contains(&head.status()) && head.status() != 101 {
                continue;
            }
            let (body, is_complete) = self.body(&head, deadline)?;
            return Ok(Response {
                head,
                body,
                is_complete,
            });
        }
    }

    /// Reads the head of a response and leaves its body: for responses to HEAD.
    pub fn response_head(&mut self) -> io::Result<Head> {
        self.head(Instant::now() + DEADLINE)
    }

    /// Reads bytes until the server closes the connection or `limit` has passed. The second value is
    /// true if the server closed it.
    pub fn read_to_end(&mut self, limit: Duration) -> (Vec<u8>, bool) {
        let deadline = Instant::now() + limit;
        let is_closed = loop {
            match self.fill(deadline) {
                Ok(true) => {}
                Ok(false) => break true,
                Err(error) => break error.kind() != io::ErrorKind::TimedOut,
            }
        };
        (std::mem::take(&mut self.unread), is_closed)
    }

    /// Ends the client's side of the connection.
    pub fn finish_sending(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)
    }

    /// Closes the connection with a TCP reset.
    pub fn reset(self) -> io::Result<()> {
        SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))
    }

    fn head(&mut self, deadline: Instant) -> io::Result<Head> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let bytes: Vec<u8> = self.unread.drain(..end + 4).collect();
                return Ok(Head::parse(&bytes[..end]));
            }
            self.must_fill(deadline)?;
        }
    }

    /// Reads the body; false if the connection ended before it did.
    fn body(&mut self, head: &Head, deadline: Instant) -> io::Result<(Vec<u8>, bool)> {
        let mut body = Vec::new();
        let ended = if matches!(head.status(), 101 | 204 | 304) {
            Ok(())
        } else if head.is_chunked() {
            self.chunks(&mut body, deadline)
        } else if let Some(length) = head.content_length() {
            self.exactly(&mut body, length, deadline)
        } else {
            while self.fill(deadline)? {}
            body = std::mem::take(&mut self.unread);
            Ok(())
        };
        match ended {
            Ok(()) => Ok((body, true)),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(error),
            Err(_) => Ok((body, false)),
        }
    }

    fn chunks(&mut self, body: &mut Vec<u8>, deadline: Instant) -> io::Result<()> {
        loop {
            let size = self.line(deadline)?;
            let size = usize::from_str_radix(size.trim(), 16)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "chunk size"))?;
            if size == 0 {
                while !self.line(deadline)?.is_empty() {}
                return Ok(());
            }
            self.exactly(body, size, deadline)?;
            self.line(deadline)?;
        }
    }

    fn line(&mut self, deadline: Instant) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n") {
                let bytes: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&bytes[..end]).into_owned());
            }
            self.must_fill(deadline)?;
        }
    }

    fn exactly(&mut self, body: &mut Vec<u8>, count: usize, deadline: Instant) -> io::Result<()> {
        let end = body.len() + count;
        loop {
            let part = self.unread.len().min(end - body.len());
            body.extend(self.unread.drain(..part));
            if body.len() == end {
                return Ok(());
            }
            self.must_fill(deadline)?;
        }
    }

    fn must_fill(&mut self, deadline: Instant) -> io::Result<()> {
        if self.fill(deadline)? {
            return Ok(());
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Reads what there is; false at the end of the connection.
    fn fill(&mut self, deadline: Instant) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        let mut buffer = [0; 16 << 10];
        let count = self.stream.read(&mut buffer).map_err(|error| {
            // Unix reports a read timeout as `WouldBlock`.
            match error.kind() {
                io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
                _ => error,
            }
        })?;
        self.unread.extend_from_slice(&buffer[..count]);
        Ok(count > 0)
    }
}
