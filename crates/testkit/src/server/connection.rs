//! One connection of a scripted server.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use socket2::SockRef;

use super::{BodyHandling, Received, Shared, Step};
use crate::framing::{self, Unframed};
use crate::message::Head;
use crate::wait::DEADLINE;

struct Connection<'a> {
    reader: BufReader<Logged<'a>>,
    writer: TcpStream,
    shared: &'a Shared,
    number: usize,
}

/// Stream that logs every byte that is read from it.
struct Logged<'a> {
    stream: TcpStream,
    shared: &'a Shared,
    number: usize,
}

impl Read for Logged<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        if self.shared.has_log {
            self.shared.log().bytes[self.number - 1].extend_from_slice(&buffer[..count]);
        }
        Ok(count)
    }
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
    let writer = stream.try_clone()?;
    let logged = Logged {
        stream,
        shared,
        number,
    };
    let mut connection = Connection {
        reader: BufReader::new(logged),
        writer,
        shared,
        number,
    };
    loop {
        connection.reader.fill_buf()?;
        let arrived = Instant::now();
        let Some(head) = framing::read_head(&mut connection.reader)? else {
            return Ok(());
        };
        let handling = (shared.body_rule)(&head);
        let body = match handling {
            BodyHandling::Read => connection.body(&head)?,
            BodyHandling::Unread | BodyHandling::ReadAfterReply => Vec::new(),
        };
        let received = Arc::new(Received {
            head,
            body,
            connection: number,
            peer,
            arrived,
            at: Instant::now(),
        });
        // The request is logged before the reply is sent, so that a test that has received the
        // response finds the request in the log.
        if shared.has_log {
            shared.log().executed.push(Arc::clone(&received));
        }
        let reply = (shared.script)(&received, &mut connection.writer);
        // If the reply has no steps, the script has written its response itself. It then decides
        // when the connection ends, even if the request has `Connection: close`.
        let is_last = !reply.steps.is_empty() && received.head.has_token("connection", "close");
        for step in reply.steps {
            if !connection.perform(step)? {
                return Ok(());
            }
        }
        if is_last {
            return connection.writer.shutdown(Shutdown::Both);
        }
        if handling == BodyHandling::ReadAfterReply {
            connection.body(&received.head)?;
        }
    }
}

impl Connection<'_> {
    fn body(&mut self, head: &Head) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        framing::read_body(head, Unframed::Empty, &mut self.reader, &mut body)?;
        Ok(body)
    }

    /// Performs one step of a scripted reply. Returns false if the step ended the connection.
    fn perform(&mut self, step: Step) -> io::Result<bool> {
        match step {
            Step::Send(bytes) => self.writer.write_all(&bytes)?,
            Step::SendForever(bytes, pause) => loop {
                self.writer.write_all(&bytes)?;
                self.sleep(pause);
                if self.shared.is_stopped() {
                    return Ok(false);
                }
            },
            Step::Pause(pause) => self.sleep(pause),
            Step::WaitFor(gate) => gate.wait(),
            Step::ReadToEnd => {
                io::copy(&mut self.reader, &mut io::sink())?;
            }
            Step::Close => {
                self.writer.shutdown(Shutdown::Both)?;
                return Ok(false);
            }
            Step::Reset => {
                // The log has a clone of the socket. The clone is dropped, because the system sends
                // the reset only when the last handle is closed.
                self.shared.log().open[self.number - 1] = None;
                SockRef::from(&self.writer).set_linger(Some(Duration::ZERO))?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sleeps for this time, or until the server is stopped.
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
}
