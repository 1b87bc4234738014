//! One connection to the mock backend: its pending requests and responses.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::Answers;
use crate::answer::{self, Model};
use crate::poll::Poll;
use crate::request::{self, Ask, Parsed};

const STREAM_HEAD: &[u8] = b"HTTP/1.1 200 OK\r\nserver: mock\r\n\
    content-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n\
    transfer-encoding: chunked\r\n\r\n";

pub(super) struct Connection {
    socket: TcpStream,
    number: usize,
    /// Bytes of requests without a response.
    got: Vec<u8>,
    /// Bytes that the socket has not accepted yet.
    left: Vec<u8>,
    stream: Option<Stream>,
}

/// A streamed response in progress.
struct Stream {
    request: u64,
    model: Model,
    usage: bool,
    next: usize,
}

impl Connection {
    pub(super) fn new(socket: TcpStream, number: usize) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self {
            socket,
            number,
            got: Vec::new(),
            left: Vec::new(),
            stream: None,
        })
    }

    /// Reads available bytes. Returns an error if the peer has closed the connection.
    pub(super) fn read(&mut self, room: &mut [u8]) -> io::Result<()> {
        match self.socket.read(room) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => {
                self.got.extend_from_slice(&room[..length]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the next request if it is complete and no response is in progress.
    pub(super) fn next_request(&mut self) -> Option<Ask> {
        if self.stream.is_some() {
            return None;
        }
        match request::parse(&self.got) {
            Parsed::Whole(ask, length) => {
                self.got.drain(..length);
                Some(ask)
            }
            Parsed::Partial(length) => {
                let missing = length.saturating_sub(self.got.len());
                self.got.reserve(missing);
                None
            }
        }
    }

    /// Responds to a request. Returns the time until the next token, if there is one.
    pub(super) fn answer(
        &mut self,
        ask: &Ask,
        request: u64,
        answers: &Answers,
        poll: &Poll,
    ) -> io::Result<Option<Duration>> {
        let mut out = Vec::with_capacity(1024);
        match *ask {
            Ask::Stream { model, usage } => {
                // The head and each event are separate writes, as in real servers.
                self.write(STREAM_HEAD, poll)?;
                self.stream = Some(Stream {
                    request,
                    model,
                    usage,
                    next: 0,
                });
                return self.token(request, answers, poll);
            }
            Ask::Whole(model) => {
                let template = &answers.whole[model as usize];
                head("200 OK", template.len(), &mut out);
                template.write(&answer::id(request), &mut out);
            }
            Ask::Models => {
                let models = answer::models();
                head("200 OK", models.len(), &mut out);
                out.extend_from_slice(models.as_bytes());
            }
            Ask::Unknown => {
                let body = b"{\"error\":{\"message\":\"The mock backend does not serve this.\"}}";
                head("404 Not Found", body.len(), &mut out);
                out.extend_from_slice(body);
            }
        }
        self.write(&out, poll)?;
        Ok(None)
    }

    /// Sends the next token of the response to this request, and the events that follow without a pause.
    /// Returns the time until the next token, if there is one.
    pub(super) fn token(
        &mut self,
        request: u64,
        answers: &Answers,
        poll: &Poll,
    ) -> io::Result<Option<Duration>> {
        while let Some(stream) = self.stream.take_if(|stream| stream.request == request) {
            let (model, next) = (stream.model, stream.next + 1);
            self.event(stream, answers, poll)?;
            // The usage and the end of the stream follow the last token at once.
            let pause = model.pace();
            if self.stream.is_some() && !pause.is_zero() && next < model.events() {
                return Ok(Some(pause));
            }
        }
        Ok(None)
    }

    /// Sends an event as one chunk, in one write.
    fn event(&mut self, mut stream: Stream, answers: &Answers, poll: &Poll) -> io::Result<()> {
        let events = answers.events(stream.model, stream.usage);
        let event = &events[stream.next];
        let mut out = Vec::with_capacity(512);
        write!(out, "{:x}\r\n", event.len())?;
        event.write(&answer::id(stream.request), &mut out);
        out.extend_from_slice(b"\r\n");
        stream.next += 1;
        if stream.next == events.len() {
            out.extend_from_slice(b"0\r\n\r\n");
        } else {
            self.stream = Some(stream);
        }
        self.write(&out, poll)
    }

    fn write(&mut self, bytes: &[u8], poll: &Poll) -> io::Result<()> {
        let mut written = 0;
        if self.left.is_empty() {
            written = write_some(&mut self.socket, bytes)?;
            if written < bytes.len() {
                poll.also_writable(&self.socket, self.number, true)?;
            }
        }
        self.left.extend_from_slice(&bytes[written..]);
        Ok(())
    }

    /// Writes bytes that the socket did not accept before.
    pub(super) fn write_left(&mut self, poll: &Poll) -> io::Result<()> {
        if self.left.is_empty() {
            return Ok(());
        }
        let written = write_some(&mut self.socket, &self.left)?;
        self.left.drain(..written);
        if self.left.is_empty() {
            poll.also_writable(&self.socket, self.number, false)?;
        }
        Ok(())
    }
}

/// Writes as many bytes as the socket accepts.
fn write_some(socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    match socket.write(bytes) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        other => other,
    }
}

fn head(status: &str, length: usize, out: &mut Vec<u8>) {
    let _ = write!(
        out,
        "HTTP/1.1 {status}\r\nserver: mock\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n"
    );
}
