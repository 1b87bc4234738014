//! An answer on its way to the client.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::balance::Slot;
use crate::request::{InFlight, Trip};

/// The backend's answer, passed on frame by frame as it comes. While it exists the request is in
/// flight: the backend's slot and the server's count are given back when it is dropped, whether
/// the answer ended, was cut, or the client left.
#[derive(Debug)]
pub(crate) struct Relay {
    body: Incoming,
    slot: Slot,
    _in_flight: InFlight,
    end: End,
    trip: Option<Box<Trip>>,
}

/// How an answer ended.
#[derive(Clone, Copy, Debug)]
enum End {
    /// It has not: whoever drops it now leaves before its end.
    Left,
    Complete,
    Cut,
}

impl Relay {
    pub(super) fn new(body: Incoming, slot: Slot, in_flight: InFlight) -> Self {
        let end = if body.is_end_stream() {
            End::Complete
        } else {
            End::Left
        };
        Self {
            body,
            slot,
            _in_flight: in_flight,
            end,
            trip: None,
        }
    }

    /// Tells the log when it is over.
    pub(crate) fn log(&mut self, mut trip: Box<Trip>) {
        trip.backend = Some(self.slot.backend().name.clone());
        self.trip = Some(trip);
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
            Some(Ok(frame)) => {
                if self.body.is_end_stream() {
                    self.end = End::Complete;
                }
                if let (Some(trip), Some(data)) = (&mut self.trip, frame.data_ref()) {
                    trip.first_byte.get_or_insert_with(Instant::now);
                    trip.bytes += data.len() as u64;
                }
            }
            None => self.end = End::Complete,
            Some(Err(error)) => {
                self.end = End::Cut;
                // The client sees it too: its connection is closed without the end of the answer.
                let name = &self.slot.backend().name;
                tracing::warn!("backend {name} cut its answer: {error}");
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
        if let Some(trip) = &self.trip {
            trip.tell(match self.end {
                End::Complete => "relayed",
                End::Cut => "cut by the backend",
                End::Left => "the client left",
            });
        }
    }
}
