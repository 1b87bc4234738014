//! An answer on its way to the client.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep};

use crate::balance::{Backend, Slot};
use crate::request::{End, Trip};
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
    exchange: Option<Exchange>,
    worker: Arc<Worker>,
    backend: Arc<Backend>,
    _slot: Option<Slot>,
    silence: Silence,
    issued: Option<super::issued::Watch>,
    /// Why the answer ends early, when that is known but not yet told.
    broken: Option<Broken>,
    trip: Box<Trip>,
}

impl Relay {
    pub(super) fn new(
        exchange: Exchange,
        worker: Arc<Worker>,
        backend: Arc<Backend>,
        slot: Option<Slot>,
        issued: Option<super::issued::Watch>,
        trip: Box<Trip>,
    ) -> Self {
        let silence = Silence::new(worker.shared.limits.idle);
        let mut relay = Self {
            exchange: Some(exchange),
            worker,
            backend,
            _slot: slot,
            silence,
            issued,
            broken: None,
            trip,
        };
        relay.end_if_over();
        relay
    }

    /// When the answer is over the connection is for the next request.
    fn end_if_over(&mut self) {
        if let Some(exchange) = self.exchange.take_if(|exchange| exchange.is_ended()) {
            self.trip.end = End::Complete;
            if let Some(stream) = exchange.into_idle() {
                self.worker.idle.keep(self.backend.id, stream);
            }
        }
    }

    /// The client sees it too: its connection is closed without the end of the answer. But first it
    /// gets what there is: an error makes hyper forget what it has not sent.
    fn cut(&mut self, broken: Broken, cx: &Context<'_>) -> Poll<Option<Answered>> {
        self.exchange = None;
        self.trip.end = End::Cut;
        let name = &self.backend.name;
        tracing::warn!("backend {name} cut its answer: {broken}");
        self.broken = Some(broken);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Answered>> {
        let Some(exchange) = &mut self.exchange else {
            return Poll::Ready(self.broken.take().map(Err));
        };
        match exchange.poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let this = &mut *self;
                this.silence.heard = true;
                if let Some(data) = frame.data_ref() {
                    this.trip.bytes += data.len() as u64;
                    if let Some(watch) = &mut this.issued {
                        watch.see(data, &this.worker.shared.pool, &this.backend);
                    }
                }
                this.end_if_over();
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(None) => {
                self.end_if_over();
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(broken))) => self.cut(broken, cx),
            Poll::Pending => {
                if self.silence.is_too_long(cx) {
                    let seconds = self.worker.shared.limits.idle.as_secs_f32();
                    let why = format!("it was silent for {seconds} s");
                    return self.cut(Broken::Slow(why), cx);
                }
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.exchange.is_none() && self.broken.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match &self.exchange {
            Some(exchange) => exchange.size_hint(),
            None if self.broken.is_some() => SizeHint::new(),
            None => SizeHint::with_exact(0),
        }
    }
}

/// How long a backend may be silent within an answer. A timer that looks now and then costs less
/// than one that is set anew for every token.
#[derive(Debug)]
struct Silence {
    limit: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    heard: bool,
    looks: u32,
}

impl Silence {
    fn new(limit: Duration) -> Self {
        Self {
            limit,
            timer: None,
            heard: false,
            looks: 0,
        }
    }

    fn is_too_long(&mut self, cx: &mut Context<'_>) -> bool {
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
