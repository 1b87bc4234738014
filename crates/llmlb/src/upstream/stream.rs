//! Connection to a backend, plain or with TLS.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use socket2::{SockRef, Socket};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConnection;

use super::limit::CountedStream;

/// A connection to a backend.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(CountedStream),
    Tls(Box<TlsStream<CountedStream>>),
}

impl Stream {
    /// True if an idle connection can be reused: the backend has neither closed it nor sent data since its
    /// last response. Reads from the socket directly, because the event loop may lag behind.
    pub(super) fn is_reusable(&mut self) -> bool {
        match self {
            Self::Plain(stream) => {
                let mut byte = [MaybeUninit::uninit()];
                is_empty(SockRef::from(&**stream).peek(&mut byte))
            }
            Self::Tls(stream) => {
                let (stream, session) = stream.get_mut();
                drain_tls_messages(&SockRef::from(&**stream), session)
            }
        }
    }

    /// Closes the connection in order and not with a reset, which would discard data that the
    /// backend has not read.
    pub(crate) fn close_in_order(self) {
        let stream = match &self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => stream.get_ref().0,
        };
        // The option cannot be set only if the connection is closed already. Ignore the error,
        // because nothing is left to do then.
        let _ = SockRef::from(&**stream).set_linger(None);
    }
}

/// True if a read from the socket found neither data nor the end of the connection, so that the
/// idle connection may be reused.
fn is_empty<T>(read: io::Result<T>) -> bool {
    read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Processes TLS messages that the backend has sent on an idle connection, such as session tickets.
/// Returns `false` if it has sent application data or closed the connection, which must then not be
/// reused.
fn drain_tls_messages(mut socket: &Socket, session: &mut ClientConnection) -> bool {
    loop {
        match session.read_tls(&mut socket) {
            Ok(0) => return false,
            Ok(_) => {}
            read => return is_empty(read),
        }
        let is_reusable = session
            .process_new_packets()
            .is_ok_and(|state| state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed());
        if !is_reusable {
            return false;
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
