//! Response body of a demo stream, whose server-sent events are each sent when they are due.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame};
use serde_json::Value;
use tokio::time::{Instant, Sleep};

/// Events of one streamed response. All state of a stream is in this body, which is dropped with
/// the connection when the client disconnects.
#[derive(Debug)]
pub(super) struct Events {
    queue: VecDeque<(Instant, Bytes)>,
    started: Instant,
    wait: Pin<Box<Sleep>>,
}

impl Events {
    pub(super) fn new() -> Self {
        let started = Instant::now();
        Self {
            queue: VecDeque::new(),
            started,
            wait: Box::pin(tokio::time::sleep_until(started)),
        }
    }

    /// Adds an event that is due this long after the start. An event that is already due is sent
    /// without a timer.
    pub(super) fn push(&mut self, due: Duration, event: &Value) {
        self.line(due, &event.to_string());
    }

    /// Adds `[DONE]`, which clients take as the end of the stream.
    pub(super) fn push_done(&mut self, due: Duration) {
        self.line(due, "[DONE]");
    }

    fn line(&mut self, due: Duration, data: &str) {
        let line = Bytes::from(format!("data: {data}\n\n"));
        self.queue.push_back((self.started + due, line));
    }
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let Some(&(due, _)) = self.queue.front() else {
            return Poll::Ready(None);
        };
        if Instant::now() < due {
            if self.wait.deadline() != due {
                self.wait.as_mut().reset(due);
            }
            ready!(self.wait.as_mut().poll(context));
        }
        let event = self.queue.pop_front();
        Poll::Ready(event.map(|(_, data)| Ok(Frame::data(data))))
    }
}
