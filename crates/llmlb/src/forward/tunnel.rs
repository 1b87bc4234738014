//! Another protocol on the same connection: WebSocket.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
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
    mut trip: Box<Trip>,
) {
    worker.tasks.spawn(async move {
        let (stream, early) = exchange.into_parts();
        let mut backend = Early { stream, early };
        let Ok(client) = upgrade.await else {
            return; // The client left.
        };
        trip.end = match copy_bidirectional(&mut TokioIo::new(client), &mut backend).await {
            Ok((_, bytes)) => {
                trip.bytes = bytes;
                End::Complete
            }
            Err(_) => End::Cut,
        };
        drop(slot);
    });
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
