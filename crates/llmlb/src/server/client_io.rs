//! I/O of a client connection, with a time limit for writes. Without the limit, a client that does
//! not read its responses would hold a backend's slot forever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};
use tokio::time::{Instant, Sleep, sleep};

use super::client_memory::ClientMemory;
use super::client_stream::ClientStream;
use super::connections::Admitted;
use super::h2_unfinished::UnfinishedHead;
use crate::contention::Contention;

/// Idle time of a client connection before the first TCP keep-alive probe, which detects clients
/// that have vanished.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);

/// Maximum time for which the rest of a rejected request is read and discarded before the
/// connection is closed. If a socket is closed with unread data, the kernel resets the connection
/// and the client might not receive the response.
const LINGER: Duration = Duration::from_secs(5);
/// Maximum pause between two reads of a rejected request's rest, after which the connection is
/// closed.
const LINGER_PAUSE: Duration = Duration::from_secs(1);
/// Size of reads that discard the rest of a rejected request.
const SCRATCH: usize = 4 << 10;

/// A client connection whose writes fail if the client accepts no bytes for too long. A minimum rate is not
/// needed: the kernel accepts more bytes only after the client has read a large part of the socket's buffer.
#[derive(Debug)]
pub(crate) struct ClientIo {
    stream: TokioIo<ChargedSocket>,
    /// Maximum time for which a write may be blocked because the client does not read
    /// (`server.send_timeout`). After that time the connection is closed.
    limit: Duration,
    /// Shortens `limit` while other requests wait for a backend's slot that this client may hold.
    contention: Contention,
    /// Timer of a write that is blocked because the client does not read, and the time when the
    /// blocking began.
    timer: Option<(Pin<Box<Sleep>>, Instant)>,
    /// Value of [`ClientStream::sent`] when `timer` was set. A larger value shows that the client
    /// has read, so the timer starts anew.
    sent: u64,
    write_blocked: WriteBlocked,
    /// The connection counts towards the limits on connections until it is closed, also as a
    /// WebSocket.
    _admitted: Admitted,
    /// True if the last write was complete, so that a GOAWAY frame may follow without breaking
    /// another frame.
    is_at_boundary: bool,
    go_away: GoAwayReason,
}

/// Flag that is true while a response cannot be written because the client does not read. A
/// draining server does not close such a connection as idle.
#[derive(Clone, Debug, Default)]
pub(crate) struct WriteBlocked(Arc<AtomicBool>);

impl WriteBlocked {
    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Reason for which an HTTP/2 connection is closed, sent to the client in a GOAWAY frame.
#[derive(Clone, Debug, Default)]
pub(crate) struct GoAwayReason(Arc<OnceLock<&'static str>>);

impl GoAwayReason {
    pub(crate) fn set(&self, reason: &'static str) {
        let _ = self.0.set(reason);
    }

    fn frame(&self) -> Option<Vec<u8>> {
        const GOAWAY: u8 = 7;
        const ANY_STREAM: u32 = 0x7fff_ffff;
        const ENHANCE_YOUR_CALM: u32 = 11;
        let reason = self.0.get()?;
        let length = u32::try_from(8 + reason.len()).ok()?;
        let mut frame = length.to_be_bytes()[1..].to_vec();
        // A frame of the connection itself has no flags and the stream number 0.
        frame.extend([GOAWAY, 0, 0, 0, 0, 0]);
        frame.extend(ANY_STREAM.to_be_bytes());
        frame.extend(ENHANCE_YOUR_CALM.to_be_bytes());
        frame.extend(reason.as_bytes());
        Some(frame)
    }
}

impl ClientIo {
    /// Returns the I/O of a client connection. `heads` is charged for bytes that are read on an
    /// HTTP/1.1 connection while no request is served, `unfinished` for an incomplete head on an
    /// HTTP/2 connection.
    pub(crate) fn new(
        stream: ClientStream,
        limit: Duration,
        contention: Contention,
        admitted: Admitted,
        heads: Option<Arc<ClientMemory>>,
        unfinished: Option<UnfinishedHead>,
    ) -> Self {
        let alive = TcpKeepalive::new().with_time(KEEPALIVE_AFTER);
        let _ = SockRef::from(stream.tcp()).set_tcp_keepalive(&alive);
        Self {
            stream: TokioIo::new(ChargedSocket {
                stream: stream.take(u64::MAX),
                heads,
                unfinished,
                lingering: None,
            }),
            limit,
            contention,
            timer: None,
            sent: 0,
            write_blocked: WriteBlocked::default(),
            _admitted: admitted,
            is_at_boundary: true,
            go_away: GoAwayReason::default(),
        }
    }

    pub(crate) fn write_blocked(&self) -> WriteBlocked {
        self.write_blocked.clone()
    }

    pub(crate) fn go_away(&self) -> GoAwayReason {
        self.go_away.clone()
    }

    /// Processes the result of a write of `offered` bytes. Fails if writes to the client have been
    /// blocked for too long.
    fn written(
        &mut self,
        cx: &mut Context<'_>,
        offered: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = written {
            self.is_at_boundary = count >= offered;
        }
        if written.is_ready() {
            // TLS accepts a few bytes that it cannot write yet. Do not take them for progress of a
            // client that does not read.
            if !self.client().has_unsent() {
                self.end_blocking();
            }
            return written;
        }
        ready!(self.poll_blocked(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn end_blocking(&mut self) {
        if self.timer.take().is_some() {
            self.write_blocked.0.store(false, Ordering::Relaxed);
        }
    }

    /// Ready if writes to the client have been blocked for longer than the limit, so that the
    /// connection must be closed.
    fn poll_blocked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.write_blocked.0.store(true, Ordering::Relaxed);
        let sent = self.client().sent();
        if sent != self.sent {
            self.sent = sent;
            self.timer = None;
        }
        let interval = self.contention.interval(self.limit);
        let (timer, since) = self
            .timer
            .get_or_insert_with(|| (Box::pin(sleep(interval)), Instant::now()));
        loop {
            ready!(timer.as_mut().poll(cx));
            let waited = since.elapsed();
            if waited >= self.contention.limit(self.limit) {
                break;
            }
            let next = interval.min(self.limit.saturating_sub(waited));
            timer.as_mut().reset(Instant::now() + next);
        }
        if let Some(memory) = &self.stream.inner().heads {
            memory.backlog.mark_timed_out();
        }
        Poll::Ready(())
    }

    /// Limits the time of a flush or a shutdown over TLS, which may still have bytes to write.
    /// Without TLS there are none.
    fn finished(
        &mut self,
        cx: &mut Context<'_>,
        finished: Poll<io::Result<()>>,
    ) -> Poll<io::Result<()>> {
        if self.client().is_plain() {
            return finished;
        }
        if finished.is_ready() {
            self.end_blocking();
            return finished;
        }
        ready!(self.poll_blocked(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn client(&self) -> &ClientStream {
        self.stream.inner().stream.get_ref()
    }
}

impl Drop for ClientIo {
    fn drop(&mut self) {
        if self.is_at_boundary
            && let Some(frame) = self.go_away.frame()
        {
            // Send the client the reason for the close in a GOAWAY frame. Otherwise it would see a
            // connection that was reset without a cause.
            let stream = self.stream.inner_mut().stream.get_mut();
            stream.try_write_last(&frame);
        }
    }
}

impl Read for ClientIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl Write for ClientIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, data);
        self.written(cx, data.len(), written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        let offered = pieces.iter().map(|piece| piece.len()).sum();
        self.written(cx, offered, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.finished(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut_down = Pin::new(&mut self.stream).poll_shutdown(cx);
        if self.stream.inner().is_shut_down() {
            return shut_down;
        }
        self.finished(cx, shut_down)
    }
}

/// Socket of a client whose reads are limited in size and charged to `server.body_memory`.
#[derive(Debug)]
struct ChargedSocket {
    stream: Take<ClientStream>,
    /// Memory to which HTTP/1.1 request heads are charged as they are read. `None` for HTTP/2,
    /// where a single stream can be refused without closing the connection.
    heads: Option<Arc<ClientMemory>>,
    /// Charge of an HTTP/2 request head that has not arrived completely; `None` for HTTP/1.1.
    unfinished: Option<UnfinishedHead>,
    lingering: Option<Lingering>,
}

#[derive(Debug)]
struct Lingering {
    since: Instant,
    pause: Pin<Box<Sleep>>,
}

impl ChargedSocket {
    fn client(&mut self) -> Pin<&mut ClientStream> {
        Pin::new(self.stream.get_mut())
    }

    /// True if nothing is left to write to the client, so that only the rest of a rejected request
    /// is read.
    fn is_shut_down(&self) -> bool {
        self.lingering.is_some()
    }

    fn is_body_unread(&self) -> bool {
        (self.heads.as_ref()).is_some_and(|memory| memory.is_body_unread())
    }

    /// Discards the rest of a rejected request. Ready when the client has sent everything, or the time limit
    /// is reached.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.is_body_unread() {
            return Poll::Ready(());
        }
        let lingering = self.lingering.get_or_insert_with(|| Lingering {
            since: Instant::now(),
            pause: Box::pin(sleep(LINGER_PAUSE)),
        });
        let mut scratch = [0; SCRATCH];
        loop {
            let mut buf = ReadBuf::new(&mut scratch);
            match self.stream.get_mut().tcp_mut().poll_read(cx, &mut buf) {
                Poll::Ready(Ok(())) if !buf.filled().is_empty() => {
                    let now = Instant::now();
                    if now - lingering.since >= LINGER {
                        return Poll::Ready(());
                    }
                    lingering.pause.as_mut().reset(now + LINGER_PAUSE);
                }
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => return lingering.pause.as_mut().poll(cx),
            }
        }
    }
}

impl AsyncRead for ChargedSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let limit = (self.heads.as_ref()).map_or(usize::MAX, |memory| memory.max_read());
        self.stream.set_limit(limit as u64);
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        let read = &buf.filled()[before..];
        let fits = (self.heads.as_ref()).is_none_or(|memory| memory.note_read(read.len()))
            && (self.unfinished.as_mut()).is_none_or(|head| head.note_read(read));
        Poll::Ready(if fits {
            Ok(())
        } else {
            let why = "the head of a request does not fit into server.body_memory";
            Err(io::Error::new(io::ErrorKind::OutOfMemory, why))
        })
    }
}

impl AsyncWrite for ChargedSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.client().poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.client().poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.client().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(self.client().poll_shutdown(cx))?;
        }
        self.poll_discard(cx).map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::Ipv4Addr;

    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::descriptors::Division;
    use crate::server::connections::ClientConnections;

    #[tokio::test]
    async fn write_fails_when_the_client_reads_nothing_for_too_long() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await;
        let (stream, _) = listener.accept().await.unwrap();
        let division = Division {
            connections: 1,
            per_address: 1,
            backend_connections: 1,
            probes: 1,
            lookups: 1,
        };
        let connections = Arc::new(ClientConnections::new(
            &division,
            crate::config::Networks::default(),
        ));
        let admitted = connections.admit(Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut io = ClientIo::new(
            ClientStream::Plain(stream),
            Duration::from_secs(60),
            Contention::none(),
            admitted,
            None,
            None,
        );
        let write_blocked = io.write_blocked();
        tokio::time::pause();
        let data = vec![0; 65536];
        let error = loop {
            let written = poll_fn(|cx| Pin::new(&mut io).poll_write(cx, &data)).await;
            match written {
                Ok(_) => assert!(!write_blocked.get()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(write_blocked.get());
        drop(client);
    }
}
