//! An answer on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until};

use super::response::UpstreamResponse;
use super::{ForwardContext, judge};
use crate::balance::{Backend, Evidence, Slot};
use crate::issued_ids::IssuedIdFinder;
use crate::memory_budget::Share;
use crate::meter::usage_tap::concat;
use crate::request::{End, RequestGuard};
use crate::upstream::{Exchange, UpstreamError};

type Answered = Result<Frame<Bytes>, UpstreamError>;

/// The backend's answer, passed on as it comes. While it exists the request is in flight: dropped
/// before its end, because the client left, it closes the connection to the backend.
#[derive(Debug)]
pub(crate) struct Relay {
    /// `None` when the answer is over.
    exchange: Option<Box<Exchange>>,
    context: Arc<ForwardContext>,
    backend: Arc<Backend>,
    slot: Option<Slot>,
    /// Evidence against the backend if it ends a success on an inference endpoint early.
    if_cut: Option<Evidence>,
    silence: Silence,
    issued: Option<IssuedIdFinder>,
    /// Less may go to the client than comes.
    may_shorten: bool,
    /// What follows when the answer is over: its trailers, or why it ended early.
    last: Option<Box<Answered>>,
    /// Memory for large reads, while there are any.
    reading: Option<Share>,
    guard: Box<RequestGuard>,
}

impl Relay {
    pub(super) fn new(
        context: Arc<ForwardContext>,
        response: UpstreamResponse,
        issued: Option<IssuedIdFinder>,
        if_cut: Option<Evidence>,
        guard: Box<RequestGuard>,
    ) -> Self {
        let UpstreamResponse {
            exchange,
            backend,
            slot,
            ..
        } = response;
        let may_shorten = guard.metering.may_shorten();
        let silence = Silence::new(context.timeouts.idle);
        Self {
            exchange: Some(exchange),
            context,
            backend,
            slot,
            if_cut,
            silence,
            issued,
            may_shorten,
            last: None,
            reading: None,
            guard,
        }
    }

    /// Notes that the client did not take the answer in time.
    pub(crate) fn give_up(&mut self) {
        self.guard.not_taken();
    }

    /// True if the backend has not ended its answer: whoever drops it now leaves before its end.
    pub(crate) fn is_left(&self) -> bool {
        self.guard.is_left()
    }

    /// When the answer is over the connection is for the next request.
    /// Returns what was held back of it.
    fn end_if_over(&mut self) -> Bytes {
        let Some(exchange) = self.exchange.take_if(|exchange| exchange.is_ended()) else {
            return Bytes::new();
        };
        if let Some(stream) = exchange.into_idle(self.backend.settings.reuse_after_errors) {
            self.context.idle.keep(self.backend.id, stream);
        }
        if let Some(slot) = self.slot.take() {
            slot.ended();
        }
        self.guard.finish(End::Complete)
    }

    /// What goes on to the client of a piece of the answer.
    fn pass(&mut self, data: Bytes) -> Bytes {
        if let Some(finder) = &mut self.issued {
            let pool = &self.context.pool;
            finder.read(&data, |id| pool.issued(id, &self.backend));
        }
        let passed = self.guard.pass(data);
        concat(passed, self.end_if_over())
    }

    /// The client sees it too: its connection is closed without the end of the answer. But first it
    /// gets what there is: an error makes hyper forget what it has not sent.
    fn cut(&mut self, error: UpstreamError, cx: &Context<'_>) -> Poll<Option<Answered>> {
        self.exchange = None;
        let slot = self.slot.take();
        if error.is_clients_fault() {
            self.guard.finish(End::Left);
        } else {
            if let Some(slot) = slot {
                let pool = &self.context.pool;
                judge::note_cut(pool, &slot, &error, self.if_cut);
            }
            self.backend.health.recheck.notify_one();
            self.backend.health.note_error(None, error.why());
            self.guard.finish(End::Cut);
            let name = &self.backend.name;
            tracing::warn!("backend {name} cut its answer: {error}");
        }
        self.last = Some(Box::new(Err(error)));
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        loop {
            let Some(exchange) = &mut self.exchange else {
                return Poll::Ready(self.last.take().map(|last| *last));
            };
            exchange.fit_reads(&mut self.reading, &self.context.budget);
            match exchange.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.silence.heard = true;
                    self.backend.health.mark_active();
                    match frame.into_data().map(|data| self.pass(data)) {
                        // What is kept from the client is no frame.
                        Ok(passed) if passed.is_empty() => {}
                        Ok(passed) => return Poll::Ready(Some(Ok(Frame::data(passed)))),
                        Err(trailers) => {
                            let rest = self.end_if_over();
                            if rest.is_empty() {
                                return Poll::Ready(Some(Ok(trailers)));
                            }
                            // Nothing may follow trailers.
                            self.last = Some(Box::new(Ok(trailers)));
                            return Poll::Ready(Some(Ok(Frame::data(rest))));
                        }
                    }
                }
                Poll::Ready(None) => {
                    let rest = self.end_if_over();
                    if !rest.is_empty() {
                        return Poll::Ready(Some(Ok(Frame::data(rest))));
                    }
                }
                Poll::Ready(Some(Err(error))) => return self.cut(error, cx),
                Poll::Pending => {
                    // While the client is still sending, and pauses, it is not the backend's turn.
                    let is_waited_for = !exchange.is_paused();
                    if is_waited_for && self.silence.is_too_long(cx) {
                        let seconds = self.context.timeouts.idle.as_secs_f32();
                        let why = format!("it was silent for {seconds} s");
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

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
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

/// Measures how long a connection is silent. Its timer is set when it fires, and not for every token.
#[derive(Debug)]
pub(super) struct Silence {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Something was heard since the last look.
    pub(super) heard: bool,
    /// The time of the first look after something was heard.
    since: Instant,
}

impl Silence {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            timer: None,
            // The time counts from the first look.
            heard: true,
            since: Instant::now(),
        }
    }

    /// True if nothing was heard for longer than the limit. To be called whenever there is nothing
    /// to read.
    pub(super) fn is_too_long(&mut self, cx: &mut Context<'_>) -> bool {
        if std::mem::take(&mut self.heard) {
            self.since = Instant::now();
        }
        let end = self.since + self.limit;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(end)));
        while timer.as_mut().poll(cx).is_ready() {
            if timer.deadline() >= end {
                return true;
            }
            timer.as_mut().reset(end);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_is_too_long_at_the_limit_after_the_last_byte() {
        const LIMIT: Duration = Duration::from_secs(4);
        let mut silence = Silence::new(LIMIT);
        let began = Instant::now();
        // The last byte arrives after 3.9 s, between any two points of a coarse timer.
        let mut chunks = Box::pin(sleep(Duration::from_millis(1300)));
        let mut left = 3;
        poll_fn(|cx| {
            while left > 0 && chunks.as_mut().poll(cx).is_ready() {
                silence.heard = true;
                left -= 1;
                let next = chunks.deadline() + Duration::from_millis(1300);
                chunks.as_mut().reset(next);
            }
            if silence.is_too_long(cx) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let took = began.elapsed();
        let expected = Duration::from_millis(3900) + LIMIT;
        assert!(took >= expected, "{took:?}");
        assert!(took < expected + Duration::from_millis(100), "{took:?}");
    }
}
