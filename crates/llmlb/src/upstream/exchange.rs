//! One request and its answer on a connection.

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
use super::{Broken, Head, Stream, Upload, head};
use crate::memory_budget::{Budget, Share};

/// Size of a read at first, of one that needs no further memory, and of the largest: a busy stream
/// gets more.
const FIRST_READ: usize = 4 << 10;
const USUAL_READ: usize = 8 << 10;
const LARGEST_READ: usize = 64 << 10;
/// How often a backend may inform before it answers.
const MOST_INFORMATION: u32 = 32;

/// One request and its answer. Dropped before its end, it closes the connection, by which the
/// backend knows that nobody wants the rest.
#[derive(Debug)]
pub(crate) struct Exchange {
    stream: Stream,
    method: Method,
    upload: Upload,
    /// What was read and not yet passed on.
    inbox: BytesMut,
    /// The pieces of the answer that somebody looked at before they were passed on.
    seen: VecDeque<Result<Frame<Bytes>, Broken>>,
    next_read: usize,
    /// Maximum of `next_read`.
    largest_read: usize,
    framing: Framing,
    /// The status of the response.
    status: StatusCode,
    /// The response's head allows another request on this connection.
    reusable: bool,
    /// The request was sent before the response began.
    was_sent_first: bool,
    /// The backend has said something.
    heard: bool,
    /// How often it has only informed.
    informed: u32,
}

impl Exchange {
    /// In a box: it is handed on several times on its way to the client.
    pub(crate) fn new(stream: Stream, method: Method, upload: Upload) -> Box<Self> {
        Box::new(Self {
            stream,
            method,
            upload,
            inbox: BytesMut::new(),
            seen: VecDeque::new(),
            next_read: FIRST_READ,
            largest_read: USUAL_READ,
            framing: Framing::UntilClose,
            status: StatusCode::OK,
            reusable: false,
            was_sent_first: false,
            heard: false,
            informed: 0,
        })
    }

    /// Whether it is the client that is waited for: the rest of a body that passes.
    pub(crate) fn is_paused(&self) -> bool {
        self.upload.is_paused()
    }

    /// When the backend took the last of a body that passes: before, it could not answer.
    pub(crate) fn taken(&self) -> Option<Instant> {
        self.upload.taken()
    }

    /// Whether anything came back.
    pub(crate) fn is_heard(&self) -> bool {
        self.heard
    }

    /// Sends the request and waits for the head of the answer. What the backend says before that
    /// (`100 Continue`, `103 Early Hints`) is for nobody.
    pub(crate) async fn head(&mut self) -> Result<Head, Broken> {
        poll_fn(|cx| self.poll_head(cx)).await
    }

    fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Broken>> {
        // A backend may answer before it has heard everything, and then hang up.
        let sent = self.upload.poll(&mut self.stream, cx);
        loop {
            while !self.inbox.is_empty() {
                let parsed = head::parse(&mut self.inbox, &self.method).map_err(Broken::Garbage)?;
                let Some(parsed) = parsed else {
                    break;
                };
                let status = parsed.head.status;
                if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
                    self.informed += 1;
                    if self.informed > MOST_INFORMATION {
                        let why = "it informs and informs, and does not answer";
                        return Poll::Ready(Err(Broken::Garbage(why.to_owned())));
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
                    // Why it could not be sent says more than that there is no answer.
                    if let Poll::Ready(Err(broken)) = sent {
                        return Poll::Ready(Err(broken));
                    }
                    let why = "it closed the connection without an answer";
                    return Poll::Ready(Err(Broken::Cut(why.to_owned())));
                }
                Poll::Ready(Err(broken)) => return Poll::Ready(Err(broken)),
                Poll::Pending => {
                    return match sent {
                        Poll::Ready(Err(broken)) if broken.is_clients() => Poll::Ready(Err(broken)),
                        // What could not be sent may have been answered: the end of the
                        // connection is to be read too.
                        _ => Poll::Pending,
                    };
                }
            }
        }
    }

    /// Looks at the beginning of the answer: at all of it, or at somewhat more than so much. It is
    /// passed on as if nobody had looked. Dropped before its end, it has looked at what there was.
    pub(crate) async fn look(&mut self, most: usize) {
        let mut length = 0;
        while length <= most
            && let Some(piece) = poll_fn(|cx| self.poll_unseen(cx)).await
        {
            let data = piece.as_ref().ok().and_then(Frame::data_ref);
            length += data.map_or(0, Bytes::len);
            let is_over = piece.is_err();
            self.seen.push_back(piece);
            if is_over {
                return;
            }
        }
    }

    /// What was looked at.
    pub(crate) fn seen(&self) -> Vec<u8> {
        self.seen_data().flatten().copied().collect()
    }

    fn seen_data(&self) -> impl Iterator<Item = &Bytes> {
        let data = |piece| Result::ok(Result::as_ref(piece)).and_then(Frame::data_ref);
        self.seen.iter().filter_map(data)
    }

    /// The next piece of the answer.
    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match self.seen.pop_front() {
            Some(piece) => Poll::Ready(Some(piece)),
            None => self.poll_unseen(cx),
        }
    }

    fn poll_unseen(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let mut left = None;
        if !self.upload.is_done()
            && let Poll::Ready(Err(broken)) = self.upload.poll(&mut self.stream, cx)
        {
            // What the backend does not take is its own affair: its answer is what counts now.
            left = Some(broken).filter(Broken::is_clients);
        }
        loop {
            match self.framing.next(&mut self.inbox) {
                Ok(Piece::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Ok(Piece::Trailers(fields)) => {
                    return Poll::Ready(Some(Ok(Frame::trailers(fields))));
                }
                Ok(Piece::End) => return Poll::Ready(None),
                Ok(Piece::More) => {}
                Err(why) => return Poll::Ready(Some(Err(Broken::Garbage(why)))),
            }
            if let Some(broken) = left.take() {
                return Poll::Ready(Some(Err(broken)));
            }
            match ready!(self.poll_read(cx)) {
                Ok(true) => {}
                Ok(false) if matches!(self.framing, Framing::UntilClose) => {
                    self.framing = Framing::Ended;
                    return Poll::Ready(None);
                }
                Ok(false) => {
                    let why = "it closed the connection before the end of its answer";
                    return Poll::Ready(Some(Err(Broken::Cut(why.to_owned()))));
                }
                Err(broken) => return Poll::Ready(Some(Err(broken))),
            }
        }
    }

    /// Reads what there is; `false` at the end of the connection.
    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        self.inbox.reserve(self.next_read);
        let read = ready!(poll_read_buf(
            Pin::new(&mut self.stream),
            cx,
            &mut self.inbox
        ));
        let read = read.map_err(|error| Broken::cut(&error))?;
        self.heard |= read > 0;
        if read >= self.next_read {
            self.next_read = (read * 2).min(self.largest_read);
        } else if read < self.next_read / 4 {
            // Each piece keeps the buffer that it was read into.
            self.next_read = (self.next_read / 2).max(FIRST_READ);
        }
        Poll::Ready(Ok(read > 0))
    }

    /// Charges the memory of large reads while the backend sends that much, if it is left.
    pub(crate) fn fit_reads(&mut self, memory: &mut Option<Share>, budget: &Arc<Budget>) {
        let is_busy = self.next_read >= self.largest_read;
        if memory.is_none() && is_busy {
            let mut share = Share::new(budget);
            if share.grow_to(LARGEST_READ) {
                self.largest_read = LARGEST_READ;
                *memory = Some(share);
            }
        } else if memory.is_some() && self.next_read == FIRST_READ {
            self.largest_read = USUAL_READ;
            *memory = None;
        }
    }

    /// All of the body, if it came with the head.
    pub(crate) fn take_whole(&mut self) -> Option<Bytes> {
        let Framing::Length(left) = self.framing else {
            return None;
        };
        if !self.seen.is_empty() {
            return None;
        }
        let length = usize::try_from(left).ok()?;
        (1..=self.inbox.len()).contains(&length).then(|| {
            self.framing = Framing::Ended;
            self.inbox.split_to(length).freeze()
        })
    }

    /// Whether the answer is over.
    pub(crate) fn is_ended(&self) -> bool {
        self.framing.is_ended() && self.seen.is_empty()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        let seen: u64 = self.seen_data().map(|data| data.len() as u64).sum();
        let left = self.framing.remaining().map(|left| left + seen);
        left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }

    /// Ends the exchange after the response. Returns the connection if another request may be sent on
    /// it; any other connection is closed.
    ///
    /// A backend that responds without reading the request's body parses the body as the next
    /// request, and the response to that would reach another client. So a connection is kept only
    /// if the backend is known to have consumed the request: the request had no body, or it
    /// succeeded. With `reuse_after_errors` the operator vouches for the backend.
    pub(crate) fn into_idle(self: Box<Self>, reuse_after_errors: bool) -> Option<Stream> {
        let is_consumed = !self.upload.has_body()
            || (self.was_sent_first
                && matches!(self.method, Method::POST | Method::PUT | Method::PATCH)
                && (self.status.is_success() || reuse_after_errors));
        let is_clean = self.framing.is_ended() && self.inbox.is_empty() && self.upload.is_done();
        (is_consumed && is_clean && self.reusable).then_some(self.stream)
    }

    /// The connection, and what was already read of what follows the head: for a protocol that
    /// begins after it.
    pub(crate) fn into_parts(self: Box<Self>) -> (Stream, Bytes) {
        (self.stream, self.inbox.freeze())
    }
}
