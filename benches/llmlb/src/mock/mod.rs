//! The mock backend: its connections, and the times at which their tokens are due.

mod connection;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use crate::answer::{self, Model, Template};
use crate::poll::Poll;
use connection::Connection;

const LISTENER: usize = usize::MAX;
const ROOM: usize = 128 << 10;

/// A backend on one listener.
pub struct Mock {
    listener: TcpListener,
    poll: Poll,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// Times at which tokens are due, each with its connection and request.
    due: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    answers: Answers,
    /// Requests so far.
    count: u64,
}

/// Responses, generated once.
struct Answers {
    whole: Vec<Template>,
    streams: Vec<Vec<Template>>,
}

impl Answers {
    fn new() -> Self {
        Self {
            whole: Model::ALL.map(answer::whole).into(),
            streams: Model::ALL
                .into_iter()
                .flat_map(|model| [false, true].map(|usage| answer::events(model, usage)))
                .collect(),
        }
    }

    fn events(&self, model: Model, usage: bool) -> &[Template] {
        &self.streams[model as usize * 2 + usize::from(usage)]
    }
}

impl Mock {
    pub fn new(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let poll = Poll::new()?;
        poll.add(&listener, LISTENER)?;
        Ok(Self {
            listener,
            poll,
            connections: Vec::new(),
            free: Vec::new(),
            due: BinaryHeap::new(),
            answers: Answers::new(),
            count: 0,
        })
    }

    /// Serves until the process ends.
    pub fn serve(mut self) -> io::Result<()> {
        let (mut ready, mut room) = (Vec::new(), vec![0; ROOM]);
        loop {
            let wait = self.send_due();
            self.poll.wait(wait, &mut ready)?;
            for &number in &ready {
                if number == LISTENER {
                    self.accept()?;
                } else if self.progress(number, &mut room).is_err() {
                    self.connections[number] = None;
                    self.free.push(number);
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((socket, _)) = self.listener.accept() {
            let number = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.poll.add(&socket, number)?;
            self.connections[number] = Some(Connection::new(socket, number)?);
        }
        Ok(())
    }

    /// Sends all tokens that are due. Returns the time until the next one.
    fn send_due(&mut self) -> Option<Duration> {
        while let Some(&Reverse((due, number, stream))) = self.due.peek() {
            let now = Instant::now();
            if due > now {
                return Some(due - now);
            }
            self.due.pop();
            let Some(connection) = &mut self.connections[number] else {
                continue;
            };
            // A write error is ignored: the next read of a broken connection fails and removes it.
            if let Ok(Some(pace)) = connection.token(stream, &self.answers, &self.poll) {
                self.due.push(Reverse((due + pace, number, stream)));
            }
        }
        None
    }

    /// Reads, responds and writes as far as the socket permits.
    fn progress(&mut self, number: usize, room: &mut [u8]) -> io::Result<()> {
        let Some(connection) = &mut self.connections[number] else {
            return Ok(());
        };
        connection.write_left(&self.poll)?;
        connection.read(room)?;
        while let Some(ask) = connection.next_request() {
            self.count += 1;
            let now = Instant::now();
            if let Some(pace) = connection.answer(&ask, self.count, &self.answers, &self.poll)? {
                self.due.push(Reverse((now + pace, number, self.count)));
            }
        }
        Ok(())
    }
}
