//! Relays a backend's response to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::response::UpstreamResponse;
use super::{ForwardContext, ForwardTimeouts, judge};
use crate::balance::{Backend, Evidence, Slot};
use crate::issued_ids::IssuedIdFinder;
use crate::memory_budget::Share;
use crate::meter::usage_tap::concat;
use crate::request::{End, RequestGuard};
use crate::upstream::{Exchange, UpstreamError};

type RelayedFrame = Result<Frame<Bytes>, UpstreamError>;

/// Body of a backend's response, which is relayed to the client as it arrives. The request counts
/// as in flight until the relay is dropped. If the client disconnects early, dropping the relay
/// closes the connection to the backend, which cancels the request there.
#[derive(Debug)]
pub(crate) struct Relay {
    /// Connection to the backend, from which the response is read. `None` after the end of the
    /// response: the connection is then kept for another request, or closed.
    exchange: Option<Box<Exchange>>,
    context: Arc<ForwardContext>,
    backend: Arc<Backend>,
    slot: Option<Slot>,
    /// Evidence that counts against the backend if it cuts this response. `None` unless the response is
    /// a success on an inference endpoint.
    if_cut: Option<Evidence>,
    idle: IdleTimer,
    issued: Option<IssuedIdFinder>,
    /// True if usage events may be removed from the response. The length of the body for the client
    /// is then not known in advance.
    may_shorten: bool,
    /// Frame that is sent to the client after the held-back bytes: the trailers of the response, or
    /// the error that ended it early.
    last: Option<Box<RelayedFrame>>,
    /// Memory charged for a large read buffer; `None` while the buffer is small.
    reading: Option<Share>,
    guard: Box<RequestGuard>,
}

impl Relay {
    pub(super) fn new(
        context: Arc<ForwardContext>,
        response: UpstreamResponse,
        issued: Option<IssuedIdFinder>,
        if_cut: Option<Evidence>,
        timeouts: ForwardTimeouts,
        guard: Box<RequestGuard>,
    ) -> Self {
        let UpstreamResponse {
            exchange,
            backend,
            slot,
            ..
        } = response;
        let may_shorten = guard.metering.may_shorten();
        let idle = IdleTimer::new(timeouts.idle);
        Self {
            exchange: Some(exchange),
            context,
            backend,
            slot,
            if_cut,
            idle,
            issued,
            may_shorten,
            last: None,
            reading: None,
            guard,
        }
    }

    pub(crate) fn note_send_timeout(&mut self) {
        self.guard.note_send_timeout();
    }

    /// True if the response has not ended. Dropping the relay now means that the client cancelled
    /// the request.
    pub(crate) fn is_unfinished(&self) -> bool {
        self.guard.is_unfinished()
    }

    /// If the response is complete, persists its usage record and keeps the connection for the next
    /// request. Returns the bytes that were held back.
    fn end_if_complete(&mut self) -> Bytes {
        let Some(exchange) = self.exchange.take_if(|exchange| exchange.is_ended()) else {
            return Bytes::new();
        };
        if let Some(stream) = exchange.into_idle(self.backend.settings.reuse_after_errors) {
            self.context.keep_idle(&self.backend, stream);
        }
        if let Some(slot) = self.slot.take() {
            slot.note_ended();
        }
        self.guard.finish(End::Complete)
    }

    fn pass(&mut self, data: Bytes) -> Bytes {
        if let Some(finder) = &mut self.issued {
            let pool = &self.context.pool;
            finder.read(&data, |id| pool.note_issued(id, &self.backend));
        }
        let passed = self.guard.pass(data);
        concat(passed, self.end_if_complete())
    }

    /// Ends a response that its backend cut. The next poll returns the error, not this one, because
    /// hyper discards unsent bytes on an error. The error makes hyper close the client's connection
    /// without the end of the response, so that the client notices the cut.
    fn cut(&mut self, error: UpstreamError, cx: &Context<'_>) -> Poll<Option<RelayedFrame>> {
        self.exchange = None;
        let slot = self.slot.take();
        if error.is_clients_fault() {
            self.guard.finish(End::Unfinished);
        } else {
            if let Some(slot) = slot {
                let pool = &self.context.pool;
                judge::note_cut(pool, &slot, &error, self.if_cut);
            }
            self.backend.health.recheck.notify_one();
            self.backend.health.note_error(None, error.why());
            self.guard.finish(End::Cut);
            let name = &self.backend.name;
            tracing::warn!("backend {name} cut its response: {error}");
        }
        self.last = Some(Box::new(Err(error)));
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<RelayedFrame>> {
        loop {
            let Some(exchange) = &mut self.exchange else {
                return Poll::Ready(self.last.take().map(|last| *last));
            };
            exchange.fit_reads(&mut self.reading, &self.context.budget);
            match exchange.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.idle.note_activity();
                    self.backend.health.mark_active();
                    match frame.into_data().map(|data| self.pass(data)) {
                        // All bytes of the chunk are hidden from the client, so read the next chunk
                        // and send no empty frame.
                        Ok(passed) if passed.is_empty() => {}
                        Ok(passed) => return Poll::Ready(Some(Ok(Frame::data(passed)))),
                        Err(trailers) => {
                            let rest = self.end_if_complete();
                            if rest.is_empty() {
                                return Poll::Ready(Some(Ok(trailers)));
                            }
                            // Trailers end the response, so send the bytes that were held back
                            // first.
                            self.last = Some(Box::new(Ok(trailers)));
                            return Poll::Ready(Some(Ok(Frame::data(rest))));
                        }
                    }
                }
                Poll::Ready(None) => {
                    let rest = self.end_if_complete();
                    if !rest.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                }
                Poll::Ready(Some(Err(error))) => return self.cut(error, cx),
                Poll::Pending => {
                    // While the client pauses in its own request body, do not count the backend's
                    // silence as idle.
                    let is_awaited = !exchange.is_paused();
                    if is_awaited && self.idle.poll_expired(cx).is_ready() {
                        let seconds = self.idle.limit().as_secs_f32();
                        let why = format!("no bytes for {seconds} s");
                        return self.cut(UpstreamError::Timeout(why), cx);
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<RelayedFrame>> {
        self.poll_next(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.is_none() && self.last.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.exchange {
            Some(_) if self.may_shorten => SizeHint::new(),
            Some(exchange) => exchange.size_hint(),
            None if self.last.is_some() => SizeHint::new(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// Timer that expires when a backend connection is idle for too long during a response. To save
/// CPU, it is reset only when it fires, and not for every chunk that arrives.
#[derive(Debug)]
pub(super) struct IdleTimer {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// True if bytes arrived since the last poll. The next poll then restarts the idle time.
    was_active: bool,
    /// Time from which the idle time counts: the first poll after the last bytes arrived.
    since: Instant,
}

impl IdleTimer {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            timer: None,
            // Start with the first poll and not with the construction of the timer: until then no
            // read is pending.
            was_active: true,
            since: Instant::now(),
        }
    }

    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Notes that bytes were read from the connection. The idle time starts again at the next poll,
    /// so that a connection in use does not expire.
    pub(super) fn note_activity(&mut self) {
        self.was_active = true;
    }

    /// Ready if the connection was idle for `limit`. The relay polls it whenever a read is pending.
    pub(super) fn poll_expired(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::take(&mut self.was_active) {
            self.since = Instant::now();
        }
        let end = self.since + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= end {
                return Poll::Ready(());
            }
            timer.as_mut().reset(end);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_timer_expires_at_the_limit_after_the_last_byte() {
        const LIMIT: Duration = Duration::from_secs(4);
        let mut idle = IdleTimer::new(LIMIT);
        let began = Instant::now();
        // The last byte arrives after 3.9 s, so the timer must expire at 7.9 s. A timer that checks for
        // activity only once per limit would expire at 8 s.
        let mut chunks = Box::pin(sleep(Duration::from_millis(1300)));
        let mut left = 3;
        poll_fn(|cx| {
            while left > 0 && chunks.as_mut().poll(cx).is_ready() {
                idle.note_activity();
                left -= 1;
                let next = chunks.deadline() + Duration::from_millis(1300);
                chunks.as_mut().reset(next);
            }
            idle.poll_expired(cx)
        })
        .await;
        let took = began.elapsed();
        let expected = Duration::from_millis(3900) + LIMIT;
        assert!(took >= expected, "{took:?}");
        assert!(took < expected + Duration::from_millis(100), "{took:?}");
    }
}
