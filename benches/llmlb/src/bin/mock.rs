//! A backend that costs little: one thread, answers made in advance.
//!
//!   mock --listen 127.0.0.1:8001

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use llmlb_bench::answer::{self, Model, Template};
use llmlb_bench::poll::{self, Poll};
use llmlb_bench::request::{self, Ask, Parsed};

const LISTENER: usize = usize::MAX;
const ROOM: usize = 128 << 10;
const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: mock\r\n\
    content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n\
    transfer-encoding: chunked\r\n\r\n";

fn main() -> io::Result<()> {
    poll::prepare()?;
    let address = llmlb_bench::option("--listen").expect("--listen ADDRESS");
    let listener = TcpListener::bind(address)?;
    rustix::net::listen(&listener, 16384)?;
    listener.set_nonblocking(true)?;
    Mock::new(listener)?.serve()
}

struct Mock {
    listener: TcpListener,
    poll: Poll,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    /// When which connection, with which of its streams, is due for a token.
    due: BinaryHeap<Reverse<(Instant, usize, u64)>>,
    answers: Answers,
    count: u64,
}

struct Connection {
    socket: TcpStream,
    /// Bytes of requests that are not yet answered.
    got: Vec<u8>,
    /// Bytes for which the socket had no room.
    left: Vec<u8>,
    stream: Option<Stream>,
}

#[derive(Clone, Copy)]
struct Stream {
    number: u64,
    model: Model,
    usage: bool,
    next: usize,
}

/// The answers, made once.
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

    fn events(&self, stream: Stream) -> &[Template] {
        &self.streams[stream.model as usize * 2 + usize::from(stream.usage)]
    }
}

impl Mock {
    fn new(listener: TcpListener) -> io::Result<Self> {
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

    fn serve(mut self) -> io::Result<()> {
        let (mut ready, mut room) = (Vec::new(), vec![0; ROOM]);
        loop {
            let wait = self.tokens();
            self.poll.wait(wait, &mut ready)?;
            for &number in &ready {
                if number == LISTENER {
                    self.accept()?;
                } else if self.serve_one(number, &mut room).is_err() {
                    self.connections[number] = None;
                    self.free.push(number);
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        while let Ok((socket, _)) = self.listener.accept() {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            let number = self.free.pop().unwrap_or_else(|| {
                self.connections.push(None);
                self.connections.len() - 1
            });
            self.poll.add(&socket, number)?;
            self.connections[number] = Some(Connection {
                socket,
                got: Vec::new(),
                left: Vec::new(),
                stream: None,
            });
        }
        Ok(())
    }

    /// Sends every token that is due; says how long until the next one is.
    fn tokens(&mut self) -> Option<Duration> {
        while let Some(&Reverse((due, number, stream))) = self.due.peek() {
            let now = Instant::now();
            if due > now {
                return Some(due - now);
            }
            self.due.pop();
            let Some(connection) = &mut self.connections[number] else {
                continue;
            };
            let Some(mut current) = connection.stream.filter(|current| current.number == stream)
            else {
                continue;
            };
            // What is broken is found out when it is read from.
            let _ = connection.event(&self.answers, &mut current, &self.poll, number);
            // The usage and the end follow the last token at once.
            while connection.stream.is_some() && current.next >= current.model.events() {
                let _ = connection.event(&self.answers, &mut current, &self.poll, number);
            }
            if connection.stream.is_some() {
                let next = due + current.model.pace();
                self.due.push(Reverse((next, number, stream)));
            }
        }
        None
    }

    /// Reads and writes what can be read and written now.
    fn serve_one(&mut self, number: usize, room: &mut [u8]) -> io::Result<()> {
        let Some(connection) = &mut self.connections[number] else {
            return Ok(());
        };
        connection.write_left(&self.poll, number)?;
        match connection.socket.read(room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => connection.got.extend_from_slice(&room[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
        while connection.stream.is_none() {
            let (ask, length) = match request::parse(&connection.got) {
                Parsed::Whole(ask, length) => (ask, length),
                Parsed::Partial(length) => {
                    let missing = length.unwrap_or(0).saturating_sub(connection.got.len());
                    connection.got.reserve(missing);
                    break;
                }
            };
            connection.got.drain(..length);
            self.count += 1;
            let now = Instant::now();
            if connection.answer(&ask, self.count, &self.answers, &self.poll, number)? {
                let pace = connection
                    .stream
                    .map_or(Duration::ZERO, |it| it.model.pace());
                self.due.push(Reverse((now + pace, number, self.count)));
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Answers a request; true if the answer goes on later.
    fn answer(
        &mut self,
        ask: &Ask,
        count: u64,
        answers: &Answers,
        poll: &Poll,
        number: usize,
    ) -> io::Result<bool> {
        let mut out = Vec::with_capacity(1024);
        match *ask {
            Ask::Stream { model, usage } => {
                out.extend_from_slice(STREAM_HEAD);
                let mut stream = Stream {
                    number: count,
                    model,
                    usage,
                    next: 0,
                };
                self.write(&out, poll, number)?;
                self.event(answers, &mut stream, poll, number)?;
                if !model.pace().is_zero() {
                    return Ok(true);
                }
                while self.stream.is_some() {
                    self.event(answers, &mut stream, poll, number)?;
                }
                return Ok(false);
            }
            Ask::Whole(model) => {
                let template = &answers.whole[model as usize];
                head("200 OK", template.len(), &mut out);
                template.write(&answer::id(count), &mut out);
            }
            Ask::Models => {
                let models = answer::models();
                head("200 OK", models.len(), &mut out);
                out.extend_from_slice(models.as_bytes());
            }
            Ask::Unknown => {
                let body = b"{\"error\":{\"message\":\"The mock does not know this.\"}}";
                head("404 Not Found", body.len(), &mut out);
                out.extend_from_slice(body);
            }
        }
        self.write(&out, poll, number)?;
        Ok(false)
    }

    /// Sends the next event of a stream, as a chunk and a write of its own.
    fn event(
        &mut self,
        answers: &Answers,
        stream: &mut Stream,
        poll: &Poll,
        number: usize,
    ) -> io::Result<()> {
        let events = answers.events(*stream);
        let event = &events[stream.next];
        let mut out = Vec::with_capacity(512);
        write!(out, "{:x}\r\n", event.len())?;
        event.write(&answer::id(stream.number), &mut out);
        out.extend_from_slice(b"\r\n");
        stream.next += 1;
        self.stream = Some(*stream);
        if stream.next == events.len() {
            out.extend_from_slice(b"0\r\n\r\n");
            self.stream = None;
        }
        self.write(&out, poll, number)
    }

    fn write(&mut self, bytes: &[u8], poll: &Poll, number: usize) -> io::Result<()> {
        let mut written = 0;
        if self.left.is_empty() {
            written = match self.socket.write(bytes) {
                Ok(written) => written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => return Err(error),
            };
            if written < bytes.len() {
                poll.also_writable(&self.socket, number, true)?;
            }
        }
        self.left.extend_from_slice(&bytes[written..]);
        Ok(())
    }

    fn write_left(&mut self, poll: &Poll, number: usize) -> io::Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        match self.socket.write(&self.left) {
            Ok(written) => drop(self.left.drain(..written)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if self.left.is_empty() {
            poll.also_writable(&self.socket, number, false)?;
        }
        Ok(())
    }
}

fn head(status: &str, length: usize, out: &mut Vec<u8>) {
    let _ = write!(
        out,
        "HTTP/1.1 {status}\r\nserver: mock\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
}
