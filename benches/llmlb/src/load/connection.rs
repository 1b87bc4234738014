//! One connection of the generator, on which one request follows the other.

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
    /// It waits for room to send.
    blocked: bool,
    response: Response,
    /// When the request under way started.
    start: Option<Instant>,
    event: Option<Instant>,
    token: Option<Instant>,
}

/// How far an answer is.
pub(super) enum Progress {
    Partial,
    /// It is complete and right.
    Done(Times),
    /// Bytes came that belong to no request.
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

    /// Sends the next request, which counts from `start`.
    pub(super) fn ask(
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
        self.send(poll).inspect_err(|_| self.give_up())
    }

    /// Reads and writes what can be now. After an error the next request has a new connection.
    pub(super) fn progress(
        &mut self,
        exchange: &Exchange,
        poll: &Poll,
        room: &mut [u8],
    ) -> Result<Progress, String> {
        self.read(exchange, poll, room).map_err(|error| {
            self.give_up();
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
            // It may end while it has nothing to do, and nothing else may come.
            self.give_up();
            let stray = matches!(got, Ok(1..));
            return Ok(if stray {
                Progress::Stray
            } else {
                Progress::Partial
            });
        };
        let length = match got {
            Ok(0) => return Err("the connection ended".into()),
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
            let wrong = exchange.answer.near_the_first_mistake(&response.body);
            return Err(format!("a wrong answer: {} .. {wrong}", response.status));
        }
        if self.sent < self.request.len() {
            return Err("an answer before the end of the request".into());
        }
        let times = Times {
            whole: now - start,
            event: self.event.map(|at| at - start),
            token: self.token.map(|at| at - start),
            bytes: response.raw.len(),
        };
        self.start = None;
        if response.closes {
            self.give_up();
        }
        Ok(Progress::Done(times))
    }

    fn give_up(&mut self) {
        (self.socket, self.start) = (None, None);
    }

    /// Sends what is left of the request, as far as there is room.
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
