//! Another protocol on the same connection: WebSocket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use crate::balance::Slot;
use crate::request::{End, Trip};
use crate::upstream::{Exchange, Stream};
use crate::worker::Worker;

/// The two fields without which the client does not believe that the protocol changes.
pub(super) fn announce(headers: &mut HeaderMap, protocol: Option<&HeaderValue>) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(header::UPGRADE, protocol.clone());
    }
}

/// Carries bytes both ways until both sides have said their last. It is a request in flight.
pub(super) fn open(
    worker: &Arc<Worker>,
    upgrade: OnUpgrade,
    exchange: Exchange,
    slot: Option<Slot>,
    trip: Box<Trip>,
) {
    worker.tasks.spawn(async move {
        let (stream, early) = exchange.into_parts();
        let mut backend = Early { stream, early };
        let Ok(upgraded) = upgrade.await else {
            return; // The client left.
        };
        let stream = TokioIo::new(upgraded);
        let mut client = Client { trip, stream };
        let copied = copy_bidirectional(&mut client, &mut backend).await;
        // Whoever has the backend's last byte has everything, whatever became of its own.
        if copied.is_err() && client.trip.end == End::Left {
            client.trip.finish(End::Cut);
        }
        drop(slot);
    });
}

/// The client's connection. Which bytes are the last is known when they have passed; but the end of
/// the connection is what the client waits for, and before that the record is kept.
struct Client {
    /// Before the connection, so that it is over first if both are dropped.
    trip: Box<Trip>,
    stream: TokioIo<Upgraded>,
}

impl AsyncRead for Client {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data))?;
        self.trip.bytes += written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// The backend has said its last.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.trip.finish(End::Complete);
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection whose first bytes were read already.
struct Early {
    stream: Stream,
    early: Bytes,
}

impl AsyncRead for Early {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.early.is_empty() {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        let count = self.early.len().min(buf.remaining());
        buf.put_slice(&self.early[..count]);
        self.early.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Early {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
