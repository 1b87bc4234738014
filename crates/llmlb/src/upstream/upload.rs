//! Sends a request with its body to a backend.

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

/// Part of a request that is not sent to the backend yet.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Bytes to write next: first the head of the request, later the current frame of a streamed
    /// body.
    out: Bytes,
    /// Body that was read completely: the current piece, and the pieces after it in reverse order.
    buffered: Bytes,
    rest: Vec<Bytes>,
    streamed: Option<StreamedBody>,
    /// Time of the last write of a streamed body, from which the backend's time limit counts.
    last_write_at: Option<Instant>,
    flushed: bool,
    has_body: bool,
    /// True if the client aborted its body. Nothing more is sent then, so that the backend does not
    /// take the request for a complete one.
    failed: bool,
}

/// Body that the client is still sending.
#[derive(Debug)]
struct StreamedBody {
    body: Incoming,
    chunked: bool,
    /// Number of body bytes that the client has announced and not sent; `None` if it announced no
    /// length.
    remaining: Option<u64>,
    /// Deadline for the next body bytes of the client, after which the request is aborted.
    deadline: BodyDeadline,
}

impl Upload {
    /// Returns the upload of a request whose body was read completely. `head` must contain the
    /// length of the body.
    pub(crate) fn buffered(head: Bytes, body: BodyPieces) -> Self {
        Self {
            out: head,
            has_body: body.len() > 0,
            buffered: body.first,
            rest: body.rest,
            streamed: None,
            last_write_at: None,
            flushed: false,
            failed: false,
        }
    }

    /// Returns the upload of a request whose body is streamed from the client. The client must send
    /// at least at `pace`; while other requests wait for a slot, a slower client is aborted sooner.
    /// `head` must announce chunks if `chunked` is true, and the length of the body otherwise.
    pub(crate) fn streamed(
        head: Bytes,
        body: Incoming,
        chunked: bool,
        pace: BodyPace,
        contention: Contention,
    ) -> Self {
        Self {
            out: head,
            has_body: true,
            buffered: Bytes::new(),
            rest: Vec::new(),
            streamed: Some(StreamedBody {
                remaining: (!chunked).then(|| body.size_hint().lower()),
                body,
                chunked,
                deadline: BodyDeadline::new(pace, Some(contention)),
            }),
            last_write_at: Some(Instant::now()),
            flushed: false,
            failed: false,
        }
    }

    pub(super) fn has_body(&self) -> bool {
        self.has_body
    }

    pub(super) fn is_done(&self) -> bool {
        self.flushed
    }

    /// True while llmlb waits for the next part of the body from the client. The backend's time
    /// limits do not run in that time.
    pub(super) fn is_paused(&self) -> bool {
        let streamed = self.streamed.as_ref();
        streamed.is_some_and(|streamed| streamed.deadline.is_waiting())
    }

    /// Returns the time of the last write of a streamed body; `None` for a body that is not
    /// streamed.
    pub(super) fn last_write_at(&self) -> Option<Instant> {
        self.last_write_at
    }

    /// Sends as much of the request as the socket accepts. Ready when the whole request is sent.
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
            if let Err(error) = ready!(self.poll_write(stream, cx)) {
                return Poll::Ready(Err(UpstreamError::closed(&error)));
            }
            if let Some(next) = self.rest.pop() {
                self.buffered = next;
                continue;
            }
            let Some(streamed) = &mut self.streamed else {
                break;
            };
            match streamed.poll_next(stream, cx) {
                Poll::Ready(Ok(Some(data))) => self.out = data,
                Poll::Ready(Ok(None)) => {
                    self.out = streamed.end_mark();
                    self.streamed = None;
                }
                Poll::Ready(Err(error)) => {
                    self.failed = true;
                    return Poll::Ready(Err(error));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        let flushed = ready!(Pin::new(stream).poll_flush(cx));
        self.flushed = true;
        // Free the memory of the request, which even an empty slice would keep: the response may
        // take minutes.
        self.out = Bytes::new();
        self.buffered = Bytes::new();
        Poll::Ready(flushed.map_err(|error| UpstreamError::closed(&error)))
    }

    fn poll_write(&mut self, stream: &mut Stream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.out.has_remaining() || self.buffered.has_remaining() {
            let pieces = [IoSlice::new(&self.out), IoSlice::new(&self.buffered)];
            match ready!(Pin::new(&mut *stream).poll_write_vectored(cx, &pieces)) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(written) => self.advance(written),
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, written: usize) {
        if let Some(last_write_at) = &mut self.last_write_at {
            *last_write_at = Instant::now();
        }
        let of_first = written.min(self.out.len());
        self.out.advance(of_first);
        self.buffered.advance(written - of_first);
    }
}

impl StreamedBody {
    /// Reads the next bytes of the body from the client; `None` at the end of the body. While it
    /// waits, it flushes `stream`, so that the backend gets the written bytes at once.
    fn poll_next(
        &mut self,
        stream: &mut Stream,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, UpstreamError>> {
        loop {
            let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
                let _ = Pin::new(stream).poll_flush(cx);
                ready!(self.deadline.poll_expired(cx));
                let why = "the client sends the body too slowly".to_owned();
                return Poll::Ready(Err(UpstreamError::ClientBodyTimeout(why)));
            };
            let frame = match frame {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => {
                    return Poll::Ready(Err(UpstreamError::ClientBody(error.to_string())));
                }
                None if self.remaining.is_some_and(|left| left > 0) => {
                    let why = "the body ended before its announced length";
                    return Poll::Ready(Err(UpstreamError::ClientBody(why.to_owned())));
                }
                None => return Poll::Ready(Ok(None)),
            };
            self.deadline.note(frame.data_ref().map_or(0, Bytes::len));
            // Drop the trailers of the request, because no rule for header fields allows them.
            let Ok(data) = frame.into_data() else {
                continue;
            };
            if data.is_empty() {
                continue;
            }
            if self.chunked {
                return Poll::Ready(Ok(Some(chunk(&data))));
            }
            let left = self.remaining.unwrap_or_default();
            self.remaining = Some(left.saturating_sub(data.len() as u64));
            return Poll::Ready(Ok(Some(data)));
        }
    }

    /// Returns the bytes that mark the end of the body for the backend: the last chunk of a chunked
    /// body, nothing for a body with a known length.
    fn end_mark(&self) -> Bytes {
        if self.chunked {
            Bytes::from_static(b"0\r\n\r\n")
        } else {
            Bytes::new()
        }
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
