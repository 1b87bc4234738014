//! A request on its way to a backend.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Buf, Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use tokio::io::AsyncWrite;

use super::{Stream, UpstreamError};
use crate::body_deadline::{BodyDeadline, BodyPace};
use crate::body_edit::BodyPieces;
use crate::contention::Contention;

/// What is still to be sent.
#[derive(Debug)]
pub(crate) struct Upload {
    /// The head first; then the pieces of a body that passes, in their frames.
    out: Bytes,
    /// A body that was read already: the piece that is being sent, and those after it, the last one
    /// first.
    whole: Bytes,
    rest: Vec<Bytes>,
    passing: Option<Passing>,
    /// Time of the last write of a streamed body.
    last_write_at: Option<Instant>,
    flushed: bool,
    has_body: bool,
    /// The client's body broke off. Nothing that follows may look like its end.
    failed: bool,
}

/// A body that the client is still sending.
#[derive(Debug)]
struct Passing {
    body: Incoming,
    chunked: bool,
    /// How much is to come, if that was announced.
    left: Option<u64>,
    /// Expires when the client sends too slowly.
    deadline: BodyDeadline,
}

impl Upload {
    /// A body that was read already; `head` says how long it is.
    pub(crate) fn whole(head: Bytes, body: BodyPieces) -> Self {
        Self {
            out: head,
            has_body: body.len() > 0,
            whole: body.first,
            rest: body.rest,
            passing: None,
            last_write_at: None,
            flushed: false,
            failed: false,
        }
    }

    /// A body as it comes, at this pace, faster while other requests wait; `head` says whether in chunks or of which length.
    pub(crate) fn passing(
        head: Bytes,
        body: Incoming,
        chunked: bool,
        pace: BodyPace,
        contention: Contention,
    ) -> Self {
        Self {
            out: head,
            has_body: true,
            whole: Bytes::new(),
            rest: Vec::new(),
            passing: Some(Passing {
                left: (!chunked).then(|| body.size_hint().lower()),
                body,
                chunked,
                deadline: BodyDeadline::new(pace, Some(contention)),
            }),
            last_write_at: Some(Instant::now()),
            flushed: false,
            failed: false,
        }
    }

    /// True if the request has a body, sent or not.
    pub(super) fn has_body(&self) -> bool {
        self.has_body
    }

    pub(super) fn is_done(&self) -> bool {
        self.flushed
    }

    /// True while the next part of the body is awaited from the client.
    pub(super) fn is_paused(&self) -> bool {
        let passing = self.passing.as_ref();
        passing.is_some_and(|passing| passing.deadline.is_waiting())
    }

    /// Time of the last write; `None` for a body that is not streamed.
    pub(super) fn last_write_at(&self) -> Option<Instant> {
        self.last_write_at
    }

    /// Sends as much as can be sent. Ready when everything is.
    pub(super) fn poll(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), UpstreamError>> {
        if self.flushed {
            return Poll::Ready(Ok(()));
        }
        if self.failed {
            return Poll::Pending;
        }
        loop {
            while self.out.has_remaining() || self.whole.has_remaining() {
                let pieces = [IoSlice::new(&self.out), IoSlice::new(&self.whole)];
                let written = ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &pieces));
                match written {
                    Ok(0) => {
                        return Poll::Ready(Err(UpstreamError::closed(
                            &io::ErrorKind::WriteZero.into(),
                        )));
                    }
                    Ok(written) => self.advance(written),
                    Err(error) => return Poll::Ready(Err(UpstreamError::closed(&error))),
                }
            }
            if let Some(next) = self.rest.pop() {
                self.whole = next;
                continue;
            }
            let Some(passing) = &mut self.passing else {
                break;
            };
            let frame = Pin::new(&mut passing.body).poll_frame(cx);
            if let Poll::Ready(Some(Ok(frame))) = &frame {
                passing
                    .deadline
                    .note(frame.data_ref().map_or(0, Bytes::len));
            }
            match frame {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) if passing.chunked => self.out = chunk(&data),
                    Ok(data) => {
                        let left = passing.left.unwrap_or_default();
                        passing.left = Some(left.saturating_sub(data.len() as u64));
                        self.out = data;
                    }
                    // Trailers are fields that no rule forwards.
                    Err(_) => {}
                },
                Poll::Ready(None) if passing.left.is_some_and(|left| left > 0) => {
                    self.failed = true;
                    let why = "it ended before its length";
                    return Poll::Ready(Err(UpstreamError::ClientBody(why.to_owned())));
                }
                Poll::Ready(None) => {
                    if passing.chunked {
                        self.out = Bytes::from_static(b"0\r\n\r\n");
                    }
                    self.passing = None;
                }
                Poll::Ready(Some(Err(error))) => {
                    self.failed = true;
                    return Poll::Ready(Err(UpstreamError::ClientBody(error.to_string())));
                }
                Poll::Pending => {
                    // What was sent so far must not wait for what comes.
                    let _ = Pin::new(stream).poll_flush(cx);
                    ready!(passing.deadline.poll_expired(cx));
                    self.failed = true;
                    let why = "the client sends too slowly".to_owned();
                    return Poll::Ready(Err(UpstreamError::ClientBodyTimeout(why)));
                }
            }
        }
        let flushed = ready!(Pin::new(stream).poll_flush(cx));
        self.flushed = true;
        // An answer may last for minutes. What was asked is not needed for that, and an empty rest of
        // it would keep all of it.
        self.out = Bytes::new();
        self.whole = Bytes::new();
        Poll::Ready(flushed.map_err(|error| UpstreamError::closed(&error)))
    }

    fn advance(&mut self, written: usize) {
        if let Some(last_write_at) = &mut self.last_write_at {
            *last_write_at = Instant::now();
        }
        let of_first = written.min(self.out.len());
        self.out.advance(of_first);
        self.whole.advance(written - of_first);
    }
}

fn chunk(data: &[u8]) -> Bytes {
    let size = format!("{:x}\r\n", data.len());
    let mut chunk = BytesMut::with_capacity(size.len() + data.len() + 2);
    chunk.extend_from_slice(size.as_bytes());
    chunk.extend_from_slice(data);
    chunk.extend_from_slice(b"\r\n");
    chunk.freeze()
}
