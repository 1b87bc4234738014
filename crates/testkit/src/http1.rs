//! An HTTP/1.1 client that sends any bytes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::{Domain, SockRef, Socket, Type};

use crate::framing::{self, Unframed};
use crate::message::{Head, Request, Response};
use crate::wait::DEADLINE;

/// Client connection that sends any bytes and reads responses.
#[derive(Debug)]
pub struct Http1 {
    /// Buffered reader of the connection. Tests that read only a part of a response use it
    /// directly.
    pub reader: BufReader<TcpStream>,
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

    /// Connects from this local address, so that the server treats the client as another machine.
    pub fn connect_from(source: IpAddr, address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.bind(&SocketAddr::new(source, 0).into())?;
        socket.connect_timeout(&address.into(), DEADLINE)?;
        Self::new(socket.into())
    }

    /// Returns a client for a connection that is already open.
    pub fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(Self {
            reader: BufReader::new(stream),
        })
    }

    /// Sends these bytes.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.get_mut().write_all(bytes.as_ref())
    }

    /// Reads a final response; informational ones are skipped.
    pub fn response(&mut self) -> io::Result<Response> {
        self.response_within(DEADLINE)
    }

    /// Reads a final response that is complete within `limit`; the error is `TimedOut` otherwise.
    pub fn response_within(&mut self, limit: Duration) -> io::Result<Response> {
        let mut reader = self.until(Instant::now() + limit);
        loop {
            let head = framing::read_head(&mut reader)?.ok_or(io::ErrorKind::UnexpectedEof)?;
            if (100..200).contains(&head.status()) && head.status() != 101 {
                continue;
            }
            let mut body = Vec::new();
            let ended = framing::read_body(&head, Unframed::ToEnd, &mut reader, &mut body);
            let is_complete = match ended {
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Err(error),
                ended => ended.is_ok(),
            };
            return Ok(Response {
                head,
                body,
                is_complete,
            });
        }
    }

    /// Reads the head of a response and leaves its body: for responses to HEAD.
    pub fn response_head(&mut self) -> io::Result<Head> {
        let mut reader = self.until(Instant::now() + DEADLINE);
        framing::read_head(&mut reader)?.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    /// Reads bytes until the server closes the connection or `limit` has passed. The second value is
    /// true if the server closed it.
    pub fn read_to_end(&mut self, limit: Duration) -> (Vec<u8>, bool) {
        let mut bytes = Vec::new();
        let ended = self.until(Instant::now() + limit).read_to_end(&mut bytes);
        let is_closed =
            ended.map_or_else(|error| error.kind() != io::ErrorKind::TimedOut, |_| true);
        (bytes, is_closed)
    }

    /// Shuts down the sending direction of the connection, as a client that has sent its last
    /// request. The client can still receive the response.
    pub fn finish_sending(&self) -> io::Result<()> {
        self.reader.get_ref().shutdown(Shutdown::Write)
    }

    /// Closes the connection with a TCP reset.
    pub fn reset(self) -> io::Result<()> {
        SockRef::from(self.reader.get_ref()).set_linger(Some(Duration::ZERO))
    }

    fn until(&mut self, deadline: Instant) -> ReadUntil<'_> {
        ReadUntil {
            reader: &mut self.reader,
            deadline,
        }
    }
}

/// Reader with a deadline for all that it reads.
struct ReadUntil<'a> {
    reader: &'a mut BufReader<TcpStream>,
    deadline: Instant,
}

impl BufRead for ReadUntil<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.reader.buffer().is_empty() {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.reader.get_ref().set_read_timeout(Some(left))?;
        }
        self.reader.fill_buf().map_err(|error| {
            // Unix reports a read timeout as `WouldBlock`, Windows as `TimedOut`. Callers see
            // `TimedOut` on both.
            match error.kind() {
                io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
                _ => error,
            }
        })
    }

    fn consume(&mut self, count: usize) {
        self.reader.consume(count);
    }
}

impl Read for ReadUntil<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(buffer)?;
        self.consume(count);
        Ok(count)
    }
}
