//! Backlogs: response bytes that hyper has accepted but not yet written to the client's connection.
//! They are charged to the memory budget.
//!
//! hyper and h2 do not report when a response is written. But they write buffers of a type of llmlb's own:
//! [`OutgoingData`] counts its bytes as they are written, and the rest when it is dropped. So the backlog of
//! every response is known. The responses of an HTTP/1.1 connection share one backlog; every HTTP/2 stream
//! has its own.
//!
//! Only the thread that serves the connection uses a backlog. Its counters are atomic because hyper requires
//! bodies that are `Send`, so relaxed loads and stores suffice.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use http::Response;
use http_body_util::{Either, Full};
use hyper::body::{Body, Frame, SizeHint};

use super::client_memory::RequestMemory;
use super::events::{EventBody, EventStream};
use crate::forward::{ClientResponse, Relay};
use crate::memory_budget::Budget;

/// Part of a backlog that is not charged to the memory budget, because the charge of the connection
/// or request covers it.
pub(crate) const FREE: usize = 16 << 10;
/// Memory that a piece of a response is charged besides its bytes. A small piece may keep the whole
/// buffer into which the backend's response was read.
const PER_PIECE: usize = 4 << 10;
/// Maximum backlog when the end of an HTTP/2 response is queued. h2 cannot reset a stream whose end
/// is queued, so the end is held back until the client has read almost everything.
const BEFORE_END: usize = 16 << 10;

/// Backlog in which the unsent bytes of a response are counted, and the protocol of the connection.
/// Over HTTP/2 the end of a response is held back while its backlog is large.
#[derive(Debug)]
pub(crate) enum ResponseBacklog {
    Connection(Arc<Backlog>),
    Stream(Arc<Backlog>),
}

/// Response bytes that are not yet written to the client, of one HTTP/1.1 connection or one HTTP/2
/// stream.
#[derive(Debug)]
pub(crate) struct Backlog {
    budget: Arc<Budget>,
    bytes: AtomicUsize,
    /// Bytes of bodies that all clients share, such as the list of models. They are in memory once,
    /// so they are not charged.
    shared: AtomicUsize,
    pieces: AtomicUsize,
    /// Memory that this backlog has charged to the budget.
    charged: AtomicUsize,
    /// Total number of response bytes that have left the backlog, because they were written to the
    /// client or dropped with their response. Its growth is the progress of a client that reads
    /// slowly.
    written: AtomicU64,
    /// True if the client had read all response bytes at some time since the last call of
    /// [`Backlog::take_was_empty`]. The time limit for a slow client then starts anew.
    was_empty: AtomicBool,
    /// True after a response began. Set to false again if the response is dropped before the
    /// backend ended it: the client cancelled the request, which counts towards
    /// `server.max_resets`.
    has_response: AtomicBool,
    /// True if the client did not read the response in time. Its abort is then not counted as a
    /// cancellation by the client.
    is_timed_out: AtomicBool,
    /// True if a task waits until the backlog is smaller, so that only then the waker's lock is
    /// taken.
    is_awaited: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Backlog {
    pub(crate) fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::clone(budget),
            bytes: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
            pieces: AtomicUsize::new(0),
            charged: AtomicUsize::new(0),
            written: AtomicU64::new(0),
            was_empty: AtomicBool::new(true),
            has_response: AtomicBool::new(false),
            is_timed_out: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            waker: Mutex::new(None),
        })
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Returns the total number of response bytes that have left the backlog, because they were
    /// written to the client or dropped with their response. Its growth is the progress of a client
    /// that reads slowly.
    pub(crate) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns true if the client had read all response bytes at some time since the last call, and
    /// resets the flag.
    pub(crate) fn take_was_empty(&self) -> bool {
        self.was_empty.swap(self.bytes() == 0, Ordering::Relaxed)
    }

    /// True if the client cancelled the request before the backend ended its response, which counts
    /// towards `server.max_resets`.
    pub(crate) fn is_cancelled(&self) -> bool {
        !self.has_response.load(Ordering::Relaxed)
    }

    /// Marks the response as not read in time. The server aborts it soon, which must not count as a
    /// request that the client cancelled.
    pub(crate) fn mark_timed_out(&self) {
        self.is_timed_out.store(true, Ordering::Relaxed);
    }

    fn memory(&self) -> usize {
        let own = self.bytes() - self.shared.load(Ordering::Relaxed);
        own + self.pieces.load(Ordering::Relaxed) * PER_PIECE
    }

    fn add(self: &Arc<Self>, data: Bytes, is_shared: bool) -> OutgoingData {
        set(&self.bytes, |bytes| bytes + data.len());
        if is_shared {
            set(&self.shared, |shared| shared + data.len());
        }
        set(&self.pieces, |pieces| pieces + 1);
        let charged = self.charged.load(Ordering::Relaxed);
        let more = self.memory().saturating_sub(FREE + charged);
        if more > 0 {
            self.budget.charge(more);
            self.charged.store(charged + more, Ordering::Relaxed);
        }
        OutgoingData {
            data,
            is_shared,
            backlog: Arc::clone(self),
        }
    }

    /// Ready if the response may add another piece. While the memory budget is used up, a slow
    /// reader gets no more memory: the task waits until the client has read enough.
    fn poll_room(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.memory() <= FREE || !self.budget.is_full() {
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    /// Ready if the backlog is small enough for the end of an HTTP/2 response to be queued; until
    /// then the stream can be reset.
    fn poll_end(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.bytes() <= BEFORE_END {
            return Poll::Ready(());
        }
        self.wait(cx);
        Poll::Pending
    }

    fn wait(&self, cx: &mut Context<'_>) {
        *self.waker() = Some(cx.waker().clone());
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// Removes bytes of a response that were written, or dropped with the response.
    fn remove(&self, bytes: usize, is_shared: bool) {
        if is_shared {
            set(&self.shared, |all| all.saturating_sub(bytes));
        }
        set(&self.bytes, |all| all.saturating_sub(bytes));
        let written = self.written() + bytes as u64;
        self.written.store(written, Ordering::Relaxed);
        if self.bytes() == 0 {
            self.was_empty.store(true, Ordering::Relaxed);
        }
    }

    fn remove_piece(&self) {
        set(&self.pieces, |pieces| pieces.saturating_sub(1));
        if self.memory() == 0 {
            let charged = self.charged.load(Ordering::Relaxed);
            if charged > 0 {
                self.charged.store(0, Ordering::Relaxed);
                self.budget.release(charged);
            }
        }
    }

    fn wake(&self) {
        if self.is_awaited.load(Ordering::Relaxed)
            && (self.memory() <= FREE || self.bytes() <= BEFORE_END)
        {
            self.is_awaited.store(false, Ordering::Relaxed);
            let waker = self.waker().take();
            waker.into_iter().for_each(Waker::wake);
        }
    }

    fn waker(&self) -> MutexGuard<'_, Option<Waker>> {
        self.waker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes a counter with a load and a store, which is cheaper than an atomic update: only one
/// thread uses the counter.
fn set(counter: &AtomicUsize, change: impl FnOnce(usize) -> usize) {
    let value = counter.load(Ordering::Relaxed);
    counter.store(change(value), Ordering::Relaxed);
}

impl Drop for Backlog {
    fn drop(&mut self) {
        self.budget.release(*self.charged.get_mut());
    }
}

/// Piece of a response, which the backlog counts until it is written or dropped.
#[derive(Debug)]
pub(crate) struct OutgoingData {
    data: Bytes,
    is_shared: bool,
    backlog: Arc<Backlog>,
}

impl Buf for OutgoingData {
    fn remaining(&self) -> usize {
        self.data.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.data
    }

    fn advance(&mut self, count: usize) {
        self.data.advance(count);
        self.backlog.remove(count, self.is_shared);
        self.backlog.wake();
    }
}

impl Drop for OutgoingData {
    fn drop(&mut self) {
        self.backlog.remove(self.data.len(), self.is_shared);
        self.backlog.remove_piece();
        self.backlog.wake();
    }
}

/// Marker in a response whose body all clients share, such as the list of models. Its bytes are in
/// memory once and are not charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedBody;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Body of a response to a client, from llmlb itself or from a backend. It waits while its backlog
/// may not grow.
#[derive(Debug)]
pub(crate) struct Outgoing {
    body: Either<Full<Bytes>, Relay>,
    /// Snapshots for a viewer, which the response has instead of `body`.
    events: Option<EventStream>,
    backlog: Arc<Backlog>,
    is_http2: bool,
    is_shared: bool,
    /// Trailers that are held back until the client has read almost the whole body. They end the
    /// HTTP/2 stream, and h2 cannot reset a stream whose end is queued.
    trailers: Option<Frame<Bytes>>,
    /// Memory charge of the request, which is released when the response is dropped.
    _memory: Option<RequestMemory>,
}

impl Outgoing {
    /// Wraps the body of a response, so that its unsent bytes are counted in this backlog.
    pub(crate) fn respond(
        mut response: ClientResponse,
        backlog: ResponseBacklog,
        memory: Option<RequestMemory>,
    ) -> Response<Self> {
        let is_shared = response.extensions_mut().remove::<SharedBody>().is_some();
        let events = response.extensions_mut().remove::<EventBody>();
        response.map(|body| {
            let mut outgoing = Self::new(body, is_shared, backlog, memory);
            outgoing.events = events.and_then(EventBody::into_stream);
            outgoing
        })
    }

    fn new(
        body: Either<Full<Bytes>, Relay>,
        is_shared: bool,
        backlog: ResponseBacklog,
        memory: Option<RequestMemory>,
    ) -> Self {
        let (backlog, is_http2) = match backlog {
            ResponseBacklog::Connection(backlog) => (backlog, false),
            ResponseBacklog::Stream(backlog) => (backlog, true),
        };
        backlog.has_response.store(true, Ordering::Relaxed);
        Self {
            body,
            events: None,
            backlog,
            is_http2,
            is_shared,
            trailers: None,
            _memory: memory,
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        let Either::Right(relay) = &mut self.body else {
            return;
        };
        if self.backlog.is_timed_out.load(Ordering::Relaxed) {
            relay.note_send_timeout();
        } else if relay.is_unfinished() {
            self.backlog.has_response.store(false, Ordering::Relaxed);
        }
    }
}

impl Body for Outgoing {
    type Data = OutgoingData;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<OutgoingData>, BoxError>>> {
        ready!(self.backlog.poll_room(cx));
        let next = match self.trailers.take() {
            Some(trailers) => Some(Ok(trailers)),
            None => match &mut self.events {
                Some(events) => ready!(events.poll_frame(cx)).map(Ok),
                None => ready!(Pin::new(&mut self.body).poll_frame(cx)),
            },
        };
        let is_end = match &next {
            None => true,
            Some(frame) => frame.as_ref().is_ok_and(Frame::is_trailers),
        };
        if is_end && self.is_http2 && self.backlog.poll_end(cx).is_pending() {
            self.trailers = next.and_then(Result::ok);
            return Poll::Pending;
        }
        let add = |data| self.backlog.add(data, self.is_shared);
        Poll::Ready(next.map(|frame| frame.map(|frame| frame.map_data(add))))
    }

    fn is_end_stream(&self) -> bool {
        self.trailers.is_none()
            && self.events.is_none()
            && self.body.is_end_stream()
            && !(self.is_http2 && self.backlog.bytes() > BEFORE_END)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.events {
            Some(_) => SizeHint::default(),
            None => self.body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn bytes(length: usize) -> Bytes {
        vec![0; length].into()
    }

    #[test]
    fn backlog_counts_unwritten_bytes_and_charges_those_beyond_the_free_part() {
        let budget = Arc::new(Budget::new(1 << 20));
        let backlog = Backlog::new(&budget);
        let mut small = backlog.add(bytes(1000), false);
        assert_eq!((backlog.bytes(), budget.used()), (1000, 0));
        assert!(
            backlog.take_was_empty(),
            "the backlog was empty at the start"
        );
        assert!(!backlog.take_was_empty());
        let large = backlog.add(bytes(100_000), false);
        assert_eq!(budget.used(), 101_000 + 2 * PER_PIECE - FREE);
        small.advance(400);
        assert_eq!((backlog.bytes(), backlog.written()), (100_600, 400));
        drop(large);
        assert!(!backlog.take_was_empty());
        drop(small);
        assert!(backlog.take_was_empty());
        assert_eq!((backlog.bytes(), backlog.written()), (0, 101_000));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn shared_bytes_are_counted_but_not_charged() {
        let budget = Arc::new(Budget::new(1 << 20));
        let backlog = Backlog::new(&budget);
        let mut lists: Vec<_> = (0..8).map(|_| backlog.add(bytes(1 << 20), true)).collect();
        assert_eq!(backlog.bytes(), 8 << 20);
        assert_eq!(budget.used(), 8 * PER_PIECE - FREE);
        lists[0].advance(1000);
        let own = backlog.add(bytes(100_000), false);
        assert_eq!(budget.used(), 100_000 + 9 * PER_PIECE - FREE);
        drop((lists, own));
        assert_eq!((backlog.bytes(), budget.used()), (0, 0));
    }

    #[test]
    fn slow_reader_gets_no_more_memory_while_the_budget_is_used_up() {
        let woken = Arc::new(Woken::default());
        let waker = Arc::clone(&woken).into();
        let mut cx = Context::from_waker(&waker);
        let budget = Arc::new(Budget::without_reserve(200_000));
        let backlog = Backlog::new(&budget);
        let mut piece = backlog.add(bytes(100_000), false);
        assert!(backlog.poll_room(&mut cx).is_ready());
        budget.charge(150_000);
        assert!(backlog.poll_room(&mut cx).is_pending());
        piece.advance(50_000);
        assert_eq!(woken.0.load(Ordering::Relaxed), 0);
        piece.advance(45_000);
        assert_eq!(woken.0.load(Ordering::Relaxed), 1);
        assert!(
            backlog.poll_room(&mut cx).is_ready(),
            "the backlog is small"
        );
        // A client without a backlog must still be served.
        assert!(Backlog::new(&budget).poll_room(&mut cx).is_ready());
        drop((piece, backlog));
        budget.release(150_000);
        assert_eq!(budget.used(), 0);
    }
}
