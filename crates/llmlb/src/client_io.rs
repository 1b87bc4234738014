//! A client's connection. A client that does not take what it asked for does not keep a backend's
//! place for ever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

use crate::connections::Admitted;

/// After how long a silence the system asks whether the client is still there.
const ASK_AFTER: Duration = Duration::from_secs(60);

/// A connection that fails when nothing can be written for too long.
#[derive(Debug)]
pub(crate) struct ClientIo {
    stream: TokioIo<TcpStream>,
    /// How long the client may take nothing of what waits for it.
    limit: Duration,
    /// Set while something cannot be written.
    timer: Option<Pin<Box<Sleep>>>,
    unsent: Unsent,
    /// It counts until it is closed, also if another protocol goes on with it.
    _admitted: Admitted,
}

/// Whether a client has something to take yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct Unsent(Arc<AtomicBool>);

impl Unsent {
    pub(crate) fn is_so(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl ClientIo {
    pub(crate) fn new(stream: TcpStream, limit: Duration, admitted: Admitted) -> Self {
        // The first token must not wait for the second. What cannot be set is no reason not to serve.
        let _ = stream.set_nodelay(true);
        let alive = TcpKeepalive::new().with_time(ASK_AFTER);
        let _ = SockRef::from(&stream).set_tcp_keepalive(&alive);
        Self {
            stream: TokioIo::new(stream),
            limit,
            timer: None,
            unsent: Unsent::default(),
            _admitted: admitted,
        }
    }

    pub(crate) fn unsent(&self) -> Unsent {
        self.unsent.clone()
    }

    fn written(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            if self.timer.take().is_some() {
                self.unsent.0.store(false, Ordering::Relaxed);
            }
            return written;
        }
        self.unsent.0.store(true, Ordering::Relaxed);
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(sleep(self.limit)));
        match timer.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
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
        self.written(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, pieces);
        self.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;

    use super::*;
    use crate::connections::Connections;
    use crate::descriptors::Division;

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_given_up() {
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
        let connections = Arc::new(Connections::new(
            &division,
            crate::config::Networks::default(),
        ));
        let admitted = connections.admit(Ipv4Addr::LOCALHOST.into()).unwrap();
        let mut io = ClientIo::new(stream, Duration::from_secs(60), admitted);
        let unsent = io.unsent();
        tokio::time::pause();
        let data = vec![0; 65536];
        let error = loop {
            let written = poll_fn(|cx| Pin::new(&mut io).poll_write(cx, &data)).await;
            match written {
                Ok(_) => assert!(!unsent.is_so()),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(unsent.is_so());
        drop(client);
    }
}
