//! One connection of the load generator, which sends one request at a time.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use super::exchange::Exchange;
use super::seen::Times;
use crate::poll::Poll;
use crate::response::Response;

pub(super) struct Connection {
    number: usize,
    to: SocketAddr,
    socket: Option<TcpStream>,
    request: Vec<u8>,
    sent: usize,
    /// True if the socket accepts no bytes at present.
    blocked: bool,
    response: Response,
    /// Start of the current request.
    start: Option<Instant>,
    event: Option<Instant>,
    token: Option<Instant>,
}

/// Progress of a response.
pub(super) enum Progress {
    Partial,
    /// The response is complete and correct.
    Done(Times),
    /// Bytes arrived that belong to no request.
    Stray,
}

impl Connection {
    pub(super) fn new(number: usize, to: SocketAddr) -> Self {
        Self {
            number,
            to,
            socket: None,
            request: Vec::new(),
            sent: 0,
            blocked: false,
            response: Response::default(),
            start: None,
            event: None,
            token: None,
        }
    }

    /// Sends the next request, whose latency is measured from `start`.
    pub(super) fn send_request(
        &mut self,
        exchange: &mut Exchange,
        start: Instant,
        poll: &Poll,
    ) -> io::Result<()> {
        if self.socket.is_none() {
            let socket = TcpStream::connect(self.to)?;
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            poll.add(&socket, self.number)?;
            self.socket = Some(socket);
            self.blocked = false;
        }
        exchange.next(&mut self.request);
        self.response.clear();
        self.sent = 0;
        (self.start, self.event, self.token) = (Some(start), None, None);
        self.send(poll).inspect_err(|_| self.disconnect())
    }

    /// Reads and writes as far as the socket permits. After an error the next request connects again.
    pub(super) fn progress(
        &mut self,
        exchange: &Exchange,
        poll: &Poll,
        room: &mut [u8],
    ) -> Result<Progress, String> {
        self.read(exchange, poll, room).map_err(|error| {
            self.disconnect();
            format!("{error}, after {} bytes", self.response.raw.len())
        })
    }

    fn read(
        &mut self,
        exchange: &Exchange,
        poll: &Poll,
        room: &mut [u8],
    ) -> Result<Progress, String> {
        let Some(socket) = &mut self.socket else {
            return Ok(Progress::Partial);
        };
        let got = socket.read(room);
        let Some(start) = self.start else {
            // The server may close an idle connection, but it may not send any bytes.
            self.disconnect();
            let stray = matches!(got, Ok(1..));
            return Ok(if stray {
                Progress::Stray
            } else {
                Progress::Partial
            });
        };
        let length = match got {
            Ok(0) => return Err("the connection was closed".into()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.send(poll).map_err(|error| error.to_string())?;
                return Ok(Progress::Partial);
            }
            Err(error) => return Err(error.to_string()),
        };
        let response = &mut self.response;
        response.raw.extend_from_slice(&room[..length]);
        let complete = response.advance()?;
        let now = Instant::now();
        if self.event.is_none() && response.body.len() >= exchange.event_at {
            self.event = Some(now);
        }
        if self.token.is_none() && response.body.len() >= exchange.token_at {
            self.token = Some(now);
        }
        if !complete {
            return Ok(Progress::Partial);
        }
        if response.status != 200 || !exchange.answer.matches(&response.body) {
            let wrong = exchange.answer.around_first_difference(&response.body);
            return Err(format!("wrong response: {} .. {wrong}", response.status));
        }
        if self.sent < self.request.len() {
            return Err("a response before the end of the request".into());
        }
        let times = Times {
            whole: now - start,
            event: self.event.map(|at| at - start),
            token: self.token.map(|at| at - start),
            bytes: response.raw.len(),
        };
        self.start = None;
        if response.closes {
            self.disconnect();
        }
        Ok(Progress::Done(times))
    }

    fn disconnect(&mut self) {
        (self.socket, self.start) = (None, None);
    }

    /// Sends the rest of the request, as far as the socket permits.
    fn send(&mut self, poll: &Poll) -> io::Result<()> {
        let Some(socket) = &mut self.socket else {
            return Ok(());
        };
        let mut blocked = false;
        while self.sent < self.request.len() && !blocked {
            match socket.write(&self.request[self.sent..]) {
                Ok(written) => self.sent += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => blocked = true,
                Err(error) => return Err(error),
            }
        }
        if blocked != self.blocked {
            self.blocked = blocked;
            poll.also_writable(&*socket, self.number, blocked)?;
        }
        Ok(())
    }
}
