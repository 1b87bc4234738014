//! Exchange of one request and its response on a connection to a backend.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use http::{Method, StatusCode};
use hyper::body::{Frame, SizeHint};
use tokio_util::io::poll_read_buf;

use super::framing::{Framing, Piece};
use super::{Head, Stream, Upload, UpstreamError, head};
use crate::memory_budget::{Budget, Share};

/// Size in bytes of the buffer for the first read of a response, and the minimum for later reads.
/// It is small because each forwarded frame keeps the whole buffer into which it was read.
const FIRST_READ: usize = 4 << 10;
/// Maximum size in bytes of a read from a backend, unless the memory budget is charged for larger
/// reads.
const USUAL_READ: usize = 8 << 10;
/// Maximum size in bytes of a read while the backend sends fast, which saves system calls. The
/// additional memory is charged to the budget.
const MAX_READ: usize = 64 << 10;
/// Maximum number of informational (1xx) responses in front of the final response. More are an
/// error, so that a backend cannot send them forever.
const MAX_INFORMATIONAL: u32 = 32;

/// Request and its response on one connection to a backend. Dropping the exchange before the end of
/// the response closes the connection, which cancels the request at the backend.
#[derive(Debug)]
pub(crate) struct Exchange {
    stream: Stream,
    method: Method,
    upload: Upload,
    /// Bytes of the response that were read and not yet parsed.
    inbox: BytesMut,
    /// Frames of the response that were read ahead and are not forwarded yet.
    peeked: VecDeque<Result<Frame<Bytes>, UpstreamError>>,
    /// Size of the next read from the backend, in bytes. It grows while the backend sends fast.
    next_read: usize,
    /// Maximum value of `next_read`. It is larger while the memory budget is charged for large
    /// reads.
    largest_read: usize,
    framing: Framing,
    /// Status of the response. After an error the backend may not have read the request's body, so
    /// the connection may not be reused.
    status: StatusCode,
    /// True if the response's head permits another request on this connection.
    reusable: bool,
    /// True if the whole request was sent before the response began. Otherwise the backend may not
    /// have read the request's body, and the connection is not reused.
    was_sent_first: bool,
    /// True if at least one byte of a response has arrived, so that a close of the connection does
    /// not mean that it was stale.
    received_any: bool,
    /// Number of informational (1xx) responses received so far, at most [`MAX_INFORMATIONAL`].
    informational: u32,
}

impl Exchange {
    /// Returns the exchange in a box, because it is large and is moved several times on the way to
    /// the client.
    pub(crate) fn new(stream: Stream, method: Method, upload: Upload) -> Box<Self> {
        Box::new(Self {
            stream,
            method,
            upload,
            inbox: BytesMut::new(),
            peeked: VecDeque::new(),
            next_read: FIRST_READ,
            largest_read: USUAL_READ,
            framing: Framing::UntilClose,
            status: StatusCode::OK,
            reusable: false,
            was_sent_first: false,
            received_any: false,
            informational: 0,
        })
    }

    /// True while llmlb waits for more of a streamed body from the client. The backend's time
    /// limits do not run in that time.
    pub(crate) fn is_paused(&self) -> bool {
        self.upload.is_paused()
    }

    /// Returns the time of the last write of a streamed body. The backend's time limit starts
    /// there, because a slow upload is not the backend's fault.
    pub(crate) fn last_write_at(&self) -> Option<Instant> {
        self.upload.last_write_at()
    }

    pub(crate) fn has_received_any(&self) -> bool {
        self.received_any
    }

    /// Sends the request and waits for the head of the response. Informational responses (`100 Continue`,
    /// `103 Early Hints`) are discarded.
    pub(crate) async fn head(&mut self) -> Result<Head, UpstreamError> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, UpstreamError>> {
        // Keep reading while the request is sent: a backend may respond before it has read the
        // whole request, and then close the connection.
        let sent = self.upload.poll(&mut self.stream, cx);
        loop {
            while !self.inbox.is_empty() {
                let parsed = head::parse(&mut self.inbox, &self.method)
                    .map_err(UpstreamError::InvalidResponse)?;
                let Some(parsed) = parsed else {
                    break;
                };
                let status = parsed.head.status;
                if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                    self.informational += 1;
                    if self.informational > MAX_INFORMATIONAL {
                        let why = "more than 32 informational (1xx) responses";
                        return Poll::Ready(Err(UpstreamError::InvalidResponse(why.to_owned())));
                    }
                    continue;
                }
                self.framing = parsed.framing;
                self.reusable = parsed.reusable;
                self.status = status;
                self.was_sent_first = self.upload.is_done();
                return Poll::Ready(Ok(parsed.head));
            }
            match self.poll_read(cx) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => {
                    // Report the error of sending, which is more precise than a missing response.
                    if let Poll::Ready(Err(error)) = sent {
                        return Poll::Ready(Err(error));
                    }
                    let why = "the backend closed the connection without a response";
                    return Poll::Ready(Err(UpstreamError::Closed(why.to_owned())));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    return match sent {
                        Poll::Ready(Err(error)) if error.is_clients_fault() => {
                            Poll::Ready(Err(error))
                        }
                        // The request could not be sent completely, but the backend may have
                        // responded before it closed its side. So keep reading.
                        _ => Poll::Pending,
                    };
                }
            }
        }
    }

    /// Reads ahead the whole response, or slightly more than `max` bytes of it, so that an error
    /// message can be searched. [`Self::poll_frame`] still returns the frames. If the future is
    /// dropped early, no frame is lost.
    pub(crate) async fn peek(&mut self, max: usize) {
        let mut length = 0;
        while length <= max
            && let Some(piece) = poll_fn(|cx| self.poll_unpeeked(cx)).await
        {
            let data = piece.as_ref().ok().and_then(Frame::data_ref);
            length += data.map_or(0, Bytes::len);
            let is_over = piece.is_err();
            self.peeked.push_back(piece);
            if is_over {
                return;
            }
        }
    }

    /// Returns the bytes of the response's body that [`Self::peek`] has read ahead. They are still
    /// forwarded to the client.
    pub(crate) fn peeked(&self) -> Vec<u8> {
        self.peeked_data().flatten().copied().collect()
    }

    fn peeked_data(&self) -> impl Iterator<Item = &Bytes> {
        let data = |piece| Result::ok(Result::as_ref(piece)).and_then(Frame::data_ref);
        self.peeked.iter().filter_map(data)
    }

    /// Returns the next frame of the response: one that was read ahead, or a new one.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        match self.peeked.pop_front() {
            Some(piece) => Poll::Ready(Some(piece)),
            None => self.poll_unpeeked(cx),
        }
    }

    fn poll_unpeeked(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let mut left = None;
        if !self.upload.is_done()
            && let Poll::Ready(Err(error)) = self.upload.poll(&mut self.stream, cx)
        {
            // Continue after a failed write: a backend that stops reading the request may still
            // complete its response. Only an error of the client ends the exchange.
            left = Some(error).filter(UpstreamError::is_clients_fault);
        }
        loop {
            match self.framing.next(&mut self.inbox) {
                Ok(Piece::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Piece::Trailers(fields)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(fields))));
                }
                Ok(Piece::End) => return Poll::Ready(None),
                Ok(Piece::More) => {}
                Err(why) => return Poll::Ready(Some(Err(UpstreamError::InvalidResponse(why)))),
            }
            if let Some(error) = left.take() {
                return Poll::Ready(Some(Err(error)));
            }
            match ready!(self.poll_read(cx)) {
                Ok(true) => {}
                Ok(false) if matches!(self.framing, Framing::UntilClose) => {
                    self.framing = Framing::Ended;
                    return Poll::Ready(None);
                }
                Ok(false) => {
                    let why = "the backend closed the connection before the end of the response";
                    return Poll::Ready(Some(Err(UpstreamError::Closed(why.to_owned()))));
                }
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    /// Reads available bytes from the backend into the inbox. Returns `false` at the end of the
    /// connection.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, UpstreamError>> {
        self.inbox.reserve(self.next_read);
        let read = ready!(poll_read_buf(
            Pin::new(&mut self.stream),
            cx,
            &mut self.inbox
        ));
        let read = read.map_err(|error| UpstreamError::closed(&error))?;
        self.received_any |= read > 0;
        if read >= self.next_read {
            self.next_read = (read * 2).min(self.largest_read);
        } else if read < self.next_read / 4 {
            // Size the buffer by the last reads: each forwarded frame keeps the whole buffer into
            // which it was read, so small frames need small buffers.
            self.next_read = (self.next_read / 2).max(FIRST_READ);
        }
        Poll::Ready(Ok(read > 0))
    }

    /// Enables large reads while the backend sends fast, if the memory budget permits, and charges
    /// their memory.
    pub(crate) fn fit_reads(&mut self, memory: &mut Option<Share>, budget: &Arc<Budget>) {
        let is_busy = self.next_read >= self.largest_read;
        if memory.is_none() && is_busy {
            let mut share = Share::new(budget);
            if share.grow_to(MAX_READ) {
                self.largest_read = MAX_READ;
                *memory = Some(share);
            }
        } else if memory.is_some() && self.next_read == FIRST_READ {
            self.largest_read = USUAL_READ;
            *memory = None;
        }
    }

    /// Takes the complete body if it arrived together with the head, or is empty. The whole
    /// response can then be forwarded in one write.
    pub(crate) fn take_complete(&mut self) -> Option<Bytes> {
        if self.is_ended() {
            return Some(Bytes::new());
        }
        let Framing::Length(left) = self.framing else {
            return None;
        };
        if !self.peeked.is_empty() {
            return None;
        }
        let length = usize::try_from(left).ok()?;
        (length <= self.inbox.len()).then(|| {
            self.framing = Framing::Ended;
            self.inbox.split_to(length).freeze()
        })
    }

    /// True if all frames of the response were returned, so that the connection may be reused.
    pub(crate) fn is_ended(&self) -> bool {
        self.framing.is_ended() && self.peeked.is_empty()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let peeked: u64 = self.peeked_data().map(|data| data.len() as u64).sum();
        let left = self.framing.remaining().map(|left| left + peeked);
        left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }

    /// Ends the exchange after the response. Returns the connection if it can be reused, and closes it
    /// otherwise.
    ///
    /// A backend that responds without reading the request body may parse the body as the next request. The
    /// response to that would reach another client. So a connection is reused only if the backend is known
    /// to have consumed the request: the request had no body, or it succeeded. With `reuse_after_errors`
    /// the operator asserts that the backend always reads the body.
    pub(crate) fn into_idle(self: Box<Self>, reuse_after_errors: bool) -> Option<Stream> {
        let is_consumed = !self.upload.has_body()
            || (self.was_sent_first
                && matches!(self.method, Method::POST | Method::PUT | Method::PATCH)
                && (self.status.is_success() || reuse_after_errors));
        let is_clean = self.framing.is_ended() && self.inbox.is_empty() && self.upload.is_done();
        (is_consumed && is_clean && self.reusable).then_some(self.stream)
    }

    /// Returns the connection and the bytes that were read after the head, which are the first
    /// bytes of a tunnel.
    pub(crate) fn into_parts(self: Box<Self>) -> (Stream, Bytes) {
        (self.stream, self.inbox.freeze())
    }
}
