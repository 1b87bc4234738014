//! One connection of a scripted server.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::{BodyHandling, Received, Shared, Step};
use crate::message::Head;
use crate::wait::DEADLINE;

/// Reader that logs every byte and keeps the unread ones.
struct Inbox<'a> {
    stream: TcpStream,
    unread: Vec<u8>,
    shared: &'a Shared,
    number: usize,
}

pub(super) fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    number: usize,
    shared: &Shared,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.set_write_timeout(Some(DEADLINE))?;
    let mut inbox = Inbox {
        stream,
        unread: Vec::new(),
        shared,
        number,
    };
    while let Some(head) = inbox.head()? {
        let handling = (shared.body_rule)(&head);
        let body = match handling {
            BodyHandling::Read => inbox.body(&head)?,
            BodyHandling::Unread | BodyHandling::ReadAfterReply => Vec::new(),
        };
        let is_last = head.has_token("connection", "close");
        let length = head.clone();
        let received = Received {
            head,
            body,
            connection: number,
            peer,
            at: Instant::now(),
        };
        // Logged before the reply, so that a client with the response finds the request here.
        shared.log().executed.push(received.clone());
        let reply = (shared.script)(&received);
        for step in reply.steps {
            if !inbox.perform(step)? {
                return Ok(());
            }
        }
        if is_last {
            return inbox.stream.shutdown(Shutdown::Both);
        }
        if handling == BodyHandling::ReadAfterReply {
            inbox.body(&length)?;
        }
    }
    Ok(())
}

impl Inbox<'_> {
    /// Performs one step; false if it ended the connection.
    fn perform(&mut self, step: Step) -> io::Result<bool> {
        match step {
            Step::Send(bytes) => self.stream.write_all(&bytes)?,
            Step::SendForever(bytes, pause) => loop {
                self.stream.write_all(&bytes)?;
                self.sleep(pause);
                if self.shared.is_stopped() {
                    return Ok(false);
                }
            },
            Step::Pause(pause) => self.sleep(pause),
            Step::WaitFor(gate) => gate.wait(),
            Step::ReadToEnd => while self.fill()? {},
            Step::Close => {
                self.stream.shutdown(Shutdown::Both)?;
                return Ok(false);
            }
            Step::Reset => {
                // The clone in the log must not keep the socket open after this thread drops it.
                self.shared.log().open[self.number - 1] = None;
                SockRef::from(&self.stream).set_linger(Some(Duration::ZERO))?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleeps, but not beyond the end of the server.
    fn sleep(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while !self.shared.is_stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// Reads the head of the next request; `None` at the end of the connection.
    fn head(&mut self) -> io::Result<Option<Head>> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n\r\n") {
                let bytes: Vec<u8> = self.unread.drain(..end + 4).collect();
                return Ok(Some(Head::parse(&bytes[..end])));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        if head.is_chunked() {
            return self.chunks();
        }
        self.exactly(head.content_length().unwrap_or(0))
    }

    fn chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let size = usize::from_str_radix(size, 16)
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "chunk size"))?;
            if size == 0 {
                while !self.line()?.is_empty() {}
                return Ok(body);
            }
            body.extend(self.exactly(size)?);
            self.exactly(2)?;
        }
    }

    fn line(&mut self) -> io::Result<String> {
        loop {
            if let Some(end) = find(&self.unread, b"\r\n") {
                let bytes: Vec<u8> = self.unread.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&bytes[..end]).into_owned());
            }
            self.must_fill()?;
        }
    }

    fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.unread.len() < count {
            self.must_fill()?;
        }
        Ok(self.unread.drain(..count).collect())
    }

    fn must_fill(&mut self) -> io::Result<()> {
        if self.fill()? {
            return Ok(());
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Reads what there is; false at the end of the connection.
    fn fill(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 16 << 10];
        let count = self.stream.read(&mut buffer)?;
        let bytes = &buffer[..count];
        self.unread.extend_from_slice(bytes);
        self.shared.log().bytes[self.number - 1].extend_from_slice(bytes);
        Ok(count > 0)
    }
}

pub(crate) fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}
