//! An answer on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::balance::Slot;
use crate::request::InFlight;

/// The backend's answer, passed on frame by frame as it comes. While it exists the request is in
/// flight: the backend's slot and the server's count are given back when it is dropped, whether
/// the answer ended, was cut, or the client left.
#[derive(Debug)]
pub(crate) struct Relay {
    body: Incoming,
    slot: Slot,
    _in_flight: InFlight,
    ended: bool,
}

impl Relay {
    pub(super) fn new(body: Incoming, slot: Slot, in_flight: InFlight) -> Self {
        let ended = body.is_end_stream();
        Self {
            body,
            slot,
            _in_flight: in_flight,
            ended,
        }
    }
}

impl Body for Relay {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.ended = self.body.is_end_stream(),
            None => self.ended = true,
            Some(Err(error)) => {
                self.ended = true;
                // The client sees it too: its connection is closed without the end of the answer.
                tracing::warn!(
                    backend = self.slot.backend().name,
                    %error,
                    "the backend cut its answer"
                );
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if !self.ended {
            tracing::debug!(
                backend = self.slot.backend().name,
                "the client left before the answer ended"
            );
        }
    }
}
