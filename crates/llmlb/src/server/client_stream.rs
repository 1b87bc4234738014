//! Byte stream of a client connection: TCP, or TLS over TCP.

use std::io::{self, IoSlice, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use crate::short_writes;

/// Maximum number of bytes that a client may send over TLS without one byte of a request: in the
/// handshake, and afterwards as records that carry no data. A handshake needs 2 KiB, with a
/// client's certificates up to 20 KiB. A record has at most 16 KiB, so records with data are far
/// below the limit.
pub(crate) const MAX_WITHOUT_DATA: usize = 32 << 10;
/// Maximum number of encrypted or unencrypted response bytes that TLS buffers because the socket
/// does not accept them yet.
pub(crate) const MAX_UNSENT: usize = 16 << 10;

/// Byte stream of a client connection. An enum and no trait object: a connection without TLS costs
/// one predictable branch for each read or write.
#[derive(Debug)]
pub(crate) enum ClientStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TlsSocket>>),
}

impl ClientStream {
    pub(crate) fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &stream.get_ref().0.stream,
        }
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Returns the socket below TLS, from which the rest of a rejected request is read and
    /// discarded without decrypting it.
    pub(crate) fn tcp_mut(&mut self) -> Pin<&mut TcpStream> {
        Pin::new(match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &mut stream.get_mut().0.stream,
        })
    }

    /// Returns the number of bytes that TLS has written to the socket. Its growth is the progress
    /// of a client that reads slowly. Always 0 without TLS, where a write that completes is the
    /// progress.
    pub(crate) fn sent(&self) -> u64 {
        match self {
            Self::Plain(_) => 0,
            Self::Tls(stream) => stream.get_ref().0.sent,
        }
    }

    /// True if TLS has accepted bytes that are not written to the socket yet, so a completed write
    /// is no progress of the client. Always false without TLS.
    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.get_ref().1.wants_write(),
        }
    }

    /// Writes bytes just before the connection is closed, as far as the socket accepts them at
    /// once. Errors are ignored: the connection is closed anyway.
    pub(crate) fn try_write_last(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(stream) => {
                let _ = stream.try_write(bytes);
            }
            Self::Tls(stream) => {
                let (socket, session) = stream.get_mut();
                let _ = session.writer().write_all(bytes);
                session.send_close_notify();
                let mut unblocked = TryWrite(&socket.stream);
                while session.wants_write() && session.write_tls(&mut unblocked).is_ok() {}
            }
        }
    }
}

/// Writer that never waits, for the last bytes in front of the close of a connection.
struct TryWrite<'a>(&'a TcpStream);

impl Write for TryWrite<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.0.try_write(bytes)? {
            0 => Err(io::ErrorKind::WriteZero.into()),
            count => Ok(count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => {
                // Each call reads at most one TLS record. The library's `poll_read` would read
                // several at once, so that `without_data` would not be reset after each record that
                // has data.
                let data = ready!(Pin::new(&mut **stream).poll_fill_buf(cx))?;
                let count = data.len().min(buf.remaining());
                buf.put_slice(&data[..count]);
                Pin::new(&mut **stream).consume(count);
                stream.get_mut().0.without_data = 0;
                Poll::Ready(Ok(()))
            }
        }
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write(cx, data),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => short_writes::poll_write(Pin::new(stream), cx, pieces),
            // TLS joins the pieces in one record itself, so they need not be copied here.
            Self::Tls(stream) => Pin::new(&mut **stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
        }
    }
}

/// Socket below TLS, which bounds the memory of the TLS library: a client cannot make it buffer a
/// handshake message that never ends.
#[derive(Debug)]
pub(crate) struct TlsSocket {
    stream: TcpStream,
    /// Number of bytes that were read from the client since the last byte of a request. A client
    /// that exceeds [`MAX_WITHOUT_DATA`] is disconnected.
    without_data: usize,
    /// Number of bytes that were written to the client's socket, from which the progress of a
    /// client that reads slowly is recognized.
    sent: u64,
}

impl TlsSocket {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            without_data: 0,
            sent: 0,
        }
    }
}

impl AsyncRead for TlsSocket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.without_data >= MAX_WITHOUT_DATA {
            let why = "the client sent too many TLS records without data";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why)));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        self.without_data += buf.filled().len() - before;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for TlsSocket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        self.sent += count as u64;
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, pieces))?;
        self.sent += count as u64;
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
