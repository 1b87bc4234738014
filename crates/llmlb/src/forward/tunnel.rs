//! Another protocol on the same connection: WebSocket.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::header::{self, HeaderMap, HeaderValue};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf, copy_bidirectional};

use super::relay::Silence;
use super::{ForwardContext, ForwardTimeouts};
use crate::balance::Slot;
use crate::request::{End, RequestGuard};
use crate::upstream::{Exchange, Stream};

/// The two fields without which the client does not believe that the protocol changes.
pub(super) fn announce(headers: &mut HeaderMap, protocol: Option<&HeaderValue>) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(header::UPGRADE, protocol.clone());
    }
}

/// Carries bytes both ways until both sides have said their last. It is a request in flight.
pub(super) fn open(
    context: &Arc<ForwardContext>,
    upgrade: OnUpgrade,
    exchange: Box<Exchange>,
    slot: Option<Slot>,
    guard: Box<RequestGuard>,
) {
    let limits = context.timeouts;
    context.tasks.spawn(async move {
        let (stream, early) = exchange.into_parts();
        let progress = Progress::default();
        let mut backend = Begun {
            stream,
            first: early,
            progress: &progress,
        };
        // The response is the 101. A client can make the backend end the tunnel in any way, so that
        // its end is no evidence for the backend or against it.
        if let Some(slot) = &slot {
            slot.ended();
        }
        let Ok(upgraded) = upgrade.await else {
            return; // The client left.
        };
        let mut client = Client {
            guard,
            stream: TokioIo::new(upgraded),
            progress: &progress,
            has_failed: false,
        };
        let copying = copy_bidirectional(&mut client, &mut backend);
        let copied = limited(copying, &progress, &limits).await;
        // Whoever has the backend's last byte has everything, whatever became of its own. And whose
        // own connection broke has left.
        let is_cut = copied.as_ref().is_some_and(Result::is_err) && !client.has_failed;
        if is_cut && client.guard.end == End::Left {
            client.guard.finish(End::Cut);
        }
        if copied.is_none() && !progress.has_ended() {
            client.guard.idled();
        }
        if matches!(copied, Some(Ok(_))) {
            backend.stream.close_in_order();
        }
        if let Some(slot) = &slot
            && client.guard.end == End::Cut
        {
            slot.backend().health.note_error(None, "it cut a WebSocket");
        }
        // The record is persisted before the client's connection is closed.
        client.guard.persisted().await;
    });
}

/// Ends a tunnel that carries nothing, so that it does not hold a backend's slot forever: after
/// `server.tunnel_idle`, or after `upstream.idle_timeout` once one side has ended. Returns `None` in
/// that case.
async fn limited<T>(
    copying: impl Future<Output = T>,
    progress: &Progress,
    limits: &ForwardTimeouts,
) -> Option<T> {
    let mut copying = pin!(copying);
    let mut idle = Silence::new(limits.tunnel_idle);
    let mut after_end = Silence::new(limits.idle);
    poll_fn(|cx| {
        let before = progress.moved();
        if let Poll::Ready(copied) = copying.as_mut().poll(cx) {
            return Poll::Ready(Some(copied));
        }
        let has_moved = progress.moved() != before;
        idle.heard |= has_moved;
        after_end.heard |= has_moved;
        if idle.is_too_long(cx) || (progress.has_ended() && after_end.is_too_long(cx)) {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

/// What both sides have done.
#[derive(Debug, Default)]
struct Progress {
    /// How many pieces came from either.
    moved: AtomicU64,
    /// One of them has ended.
    has_ended: AtomicBool,
}

impl Progress {
    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// So much was read from one side; nothing is its end.
    fn read(&self, count: usize) {
        self.moved.fetch_add(1, Ordering::Relaxed);
        if count == 0 {
            self.has_ended.store(true, Ordering::Relaxed);
        }
    }
}

/// The client's connection. Which bytes are the last is known when they have passed; but the end of
/// the connection is what the client waits for, and before that the record is kept.
struct Client<'a> {
    /// Before the connection, so that it is over first if both are dropped.
    guard: Box<RequestGuard>,
    stream: TokioIo<Upgraded>,
    progress: &'a Progress,
    /// It broke.
    has_failed: bool,
}

impl Client<'_> {
    fn seen<T>(&mut self, result: io::Result<T>) -> Poll<io::Result<T>> {
        self.has_failed |= result.is_err();
        Poll::Ready(result)
    }
}

impl AsyncRead for Client<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.progress.read(buf.filled().len() - before);
        self.seen(read)
    }
}

impl AsyncWrite for Client<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data));
        if let Ok(count) = written {
            self.guard.count(count);
        }
        self.seen(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.seen(flushed)
    }

    /// The backend has said its last.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.guard.finish(End::Complete);
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// A connection whose first bytes were read already.
struct Begun<'a> {
    stream: Stream,
    first: Bytes,
    progress: &'a Progress,
}

impl AsyncRead for Begun<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            let before = buf.filled().len();
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
            self.progress.read(buf.filled().len() - before);
            return Poll::Ready(read);
        }
        let count = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Begun<'_> {
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
