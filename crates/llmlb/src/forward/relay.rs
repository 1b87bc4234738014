//! An answer on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use super::Opened;
use crate::balance::{Backend, Slot};
use crate::meter::watch::together;
use crate::request::{End, Share, Trip};
use crate::upstream::{Broken, Exchange};
use crate::worker::Worker;

/// How many looks at a silent backend make the time that it may be silent.
const LOOKS: u32 = 4;

type Answered = Result<Frame<Bytes>, Broken>;

/// The backend's answer, passed on as it comes. While it exists the request is in flight: dropped
/// before its end, because the client left, it closes the connection to the backend.
#[derive(Debug)]
pub(crate) struct Relay {
    /// `None` when the answer is over.
    exchange: Option<Box<Exchange>>,
    worker: Arc<Worker>,
    backend: Arc<Backend>,
    slot: Option<Slot>,
    silence: Silence,
    issued: Option<super::issued::Watch>,
    /// Less may go to the client than comes.
    may_shorten: bool,
    /// What follows when the answer is over: its trailers, or why it ended early.
    last: Option<Box<Answered>>,
    /// Memory for large reads, while there are any.
    reading: Option<Share>,
    trip: Box<Trip>,
}

impl Relay {
    pub(super) fn new(
        worker: Arc<Worker>,
        opened: Opened,
        issued: Option<super::issued::Watch>,
        trip: Box<Trip>,
    ) -> Self {
        let Opened {
            exchange,
            backend,
            slot,
            ..
        } = opened;
        let may_shorten = trip.may_shorten();
        let silence = Silence::new(worker.shared.limits.idle);
        let mut relay = Self {
            exchange: Some(exchange),
            worker,
            backend,
            slot,
            silence,
            issued,
            may_shorten,
            last: None,
            reading: None,
            trip,
        };
        // Nothing was held back of nothing.
        relay.end_if_over();
        relay
    }

    /// Notes that the client did not take the answer in time.
    pub(crate) fn give_up(&mut self) {
        self.trip.not_taken();
    }

    /// When the answer is over the connection is for the next request.
    /// Returns what was held back of it.
    fn end_if_over(&mut self) -> Bytes {
        let Some(exchange) = self.exchange.take_if(|exchange| exchange.is_ended()) else {
            return Bytes::new();
        };
        if let Some(stream) = exchange.into_idle(self.backend.reuse_after_errors) {
            self.worker.idle.keep(self.backend.id, stream);
        }
        if let Some(slot) = self.slot.take() {
            slot.ended();
        }
        self.trip.finish(End::Complete)
    }

    /// What goes on to the client of a piece of the answer.
    fn pass(&mut self, data: Bytes) -> Bytes {
        if let Some(watch) = &mut self.issued {
            watch.see(&data, &self.worker.shared.pool, &self.backend);
        }
        let passed = self.trip.pass(data);
        together(passed, self.end_if_over())
    }

    /// The client sees it too: its connection is closed without the end of the answer. But first it
    /// gets what there is: an error makes hyper forget what it has not sent.
    fn cut(&mut self, broken: Broken, cx: &Context<'_>) -> Poll<Option<Answered>> {
        self.exchange = None;
        let slot = self.slot.take();
        if broken.is_clients() {
            self.trip.finish(End::Left);
        } else {
            if let Some(slot) = slot {
                slot.cut();
            }
            self.backend.doubt.notify_one();
            self.backend.note_error(None, broken.why());
            self.trip.finish(End::Cut);
            let name = &self.backend.name;
            tracing::warn!("backend {name} cut its answer: {broken}");
        }
        self.last = Some(Box::new(Err(broken)));
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        loop {
            let Some(exchange) = &mut self.exchange else {
                return Poll::Ready(self.last.take().map(|last| *last));
            };
            exchange.fit_reads(&mut self.reading, &self.worker.shared.bodies);
            match exchange.poll_frame(cx) {
                Poll::Ready(Some(Ok(frame))) => {
                    self.silence.heard = true;
                    self.backend.hear();
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
                Poll::Ready(Some(Err(broken))) => return self.cut(broken, cx),
                Poll::Pending => {
                    // While the client is still sending, and pauses, it is not the backend's turn.
                    let is_waited_for = !exchange.is_paused();
                    if is_waited_for && self.silence.is_too_long(cx) {
                        let seconds = self.worker.shared.limits.idle.as_secs_f32();
                        let why = format!("it was silent for {seconds} s");
                        return self.cut(Broken::Slow(why), cx);
                    }
                    return Poll::Pending;
                }
            }
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

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

/// How long a backend may be silent within an answer. A timer that looks now and then costs less
/// than one that is set anew for every token.
#[derive(Debug)]
pub(super) struct Silence {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    /// Something was heard since the last look.
    pub(super) heard: bool,
    looks: u32,
}

impl Silence {
    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            timer: None,
            heard: false,
            looks: 0,
        }
    }

    pub(super) fn is_too_long(&mut self, cx: &mut Context<'_>) -> bool {
        let pause = self.limit / LOOKS;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(pause)));
        while timer.as_mut().poll(cx).is_ready() {
            self.looks = if self.heard { 0 } else { self.looks + 1 };
            self.heard = false;
            if self.looks >= LOOKS {
                return true;
            }
            timer.as_mut().reset(Instant::now() + pause);
        }
        false
    }
}
