//! Tunnels: connections that are relayed in both directions after a switch to another protocol,
//! such as WebSocket.

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

use super::relay::IdleTimer;
use super::{ForwardContext, ForwardTimeouts};
use crate::balance::Slot;
use crate::request::{End, RequestGuard};
use crate::upstream::{Exchange, Stream};

/// Adds `Connection` and `Upgrade` to the response 101, without which a client rejects the switch
/// of protocols.
pub(super) fn announce(headers: &mut HeaderMap, protocol: Option<&HeaderValue>) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        headers.insert(header::UPGRADE, protocol.clone());
    }
}

/// Starts a task that copies bytes in both directions until both sides have ended. The request is in
/// flight until then.
pub(super) fn open(
    context: &Arc<ForwardContext>,
    upgrade: OnUpgrade,
    exchange: Box<Exchange>,
    slot: Option<Slot>,
    limits: ForwardTimeouts,
    mut guard: Box<RequestGuard>,
) {
    guard.start_session();
    context.tasks.spawn(async move {
        let (stream, early) = exchange.into_parts();
        let progress = Progress::default();
        let mut backend = BackendSide {
            stream,
            first: early,
            progress: &progress,
        };
        // Count the response as complete with its 101. A client can make the backend end the tunnel
        // in any way, so the end is no evidence for or against the backend.
        if let Some(slot) = &slot {
            slot.note_ended();
        }
        let Ok(upgraded) = upgrade.await else {
            return; // The client disconnected.
        };
        let mut client = ClientSide {
            guard,
            stream: TokioIo::new(upgraded),
            progress: &progress,
            metered: 0,
            has_failed: false,
        };
        let copying = copy_bidirectional(&mut client, &mut backend);
        let copied = limited(copying, &progress, &limits).await;
        // The backend cut the tunnel only if copying failed on the backend's side before its last byte
        // was forwarded. An error of the client's own connection means that the client disconnected.
        let is_cut = copied.as_ref().is_some_and(Result::is_err) && !client.has_failed;
        if is_cut && client.guard.end == End::Unfinished {
            client.guard.finish(End::Cut);
        }
        if copied.is_none() && !progress.has_ended() {
            client.guard.note_tunnel_idle();
        }
        if matches!(copied, Some(Ok(_))) {
            backend.stream.close_in_order();
        }
        if let Some(slot) = &slot
            && client.guard.end == End::Cut
        {
            slot.backend().health.note_error(None, "it cut a WebSocket");
        }
        // Persist the usage record before the client's connection is closed, because a client takes
        // the close for the end of the response.
        client.guard.persisted().await;
    });
}

/// Runs a tunnel until it ends or is idle for too long, so that it does not hold a backend's slot
/// forever: for `server.tunnel_idle`, or for `upstream.idle_timeout` once one side has ended.
/// Returns `None` if it was idle.
async fn limited<T>(
    copying: impl Future<Output = T>,
    progress: &Progress,
    limits: &ForwardTimeouts,
) -> Option<T> {
    let mut copying = pin!(copying);
    let mut idle = IdleTimer::new(limits.tunnel_idle);
    let mut after_end = IdleTimer::new(limits.idle);
    poll_fn(|cx| {
        let before = progress.reads();
        if let Poll::Ready(copied) = copying.as_mut().poll(cx) {
            return Poll::Ready(Some(copied));
        }
        if progress.reads() != before {
            idle.note_activity();
            after_end.note_activity();
        }
        let is_idle = idle.poll_expired(cx).is_ready()
            || (progress.has_ended() && after_end.poll_expired(cx).is_ready());
        if is_idle {
            return Poll::Ready(None);
        }
        Poll::Pending
    })
    .await
}

#[derive(Debug, Default)]
struct Progress {
    /// Number of reads from the client and the backend together. While the number does not change,
    /// the tunnel is idle.
    reads: AtomicU64,
    /// True if the client or the backend has ended its side. `upstream.idle_timeout` then limits
    /// the tunnel too.
    has_ended: AtomicBool,
}

impl Progress {
    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    /// Counts a read of `count` bytes from one side of the tunnel. A read of 0 bytes is the end of
    /// that side.
    fn note_read(&self, count: usize) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if count == 0 {
            self.has_ended.store(true, Ordering::Relaxed);
        }
    }
}

/// Client's connection in a tunnel. The usage record is persisted before the connection is closed,
/// because a client takes the close for the end of the response.
struct ClientSide<'a> {
    /// Declared in front of `stream`, because fields are dropped in this order: the usage record
    /// must be persisted before the connection is closed.
    guard: Box<RequestGuard>,
    stream: TokioIo<Upgraded>,
    progress: &'a Progress,
    /// Number of bytes that were metered but not yet accepted by the client. The next write begins
    /// with these bytes, which must not be metered twice.
    metered: usize,
    /// True if a read or write on the client's connection failed. The error of the tunnel is then
    /// no cut by the backend.
    has_failed: bool,
}

impl ClientSide<'_> {
    fn note_result<T>(&mut self, result: io::Result<T>) -> Poll<io::Result<T>> {
        self.has_failed |= result.is_err();
        Poll::Ready(result)
    }
}

impl AsyncRead for ClientSide<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        self.progress.note_read(buf.filled().len() - before);
        self.note_result(read)
    }
}

impl AsyncWrite for ClientSide<'_> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        // Meter bytes before the client accepts them: the tokens at the backend are spent even if
        // the client has disconnected.
        if let Some(new) = data.get(self.metered..) {
            self.guard.read_session(new);
            self.metered = data.len();
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, data));
        if let Ok(count) = written {
            self.metered = self.metered.saturating_sub(count);
            self.guard.count(count);
        }
        self.note_result(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
        self.note_result(flushed)
    }

    /// Record the response as complete. `copy_bidirectional` shuts down the client's side only
    /// after it has forwarded the backend's last byte, so a later error must not count as a cut.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.guard.finish(End::Complete);
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// Backend's connection in a tunnel, and the first bytes of the tunnel, which were read together
/// with the response head.
struct BackendSide<'a> {
    stream: Stream,
    first: Bytes,
    progress: &'a Progress,
}

impl AsyncRead for BackendSide<'_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.first.is_empty() {
            let before = buf.filled().len();
            let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
            self.progress.note_read(buf.filled().len() - before);
            return Poll::Ready(read);
        }
        let count = self.first.len().min(buf.remaining());
        buf.put_slice(&self.first[..count]);
        self.first.advance(count);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for BackendSide<'_> {
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
