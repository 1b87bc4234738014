//! Tasks of the streams of an HTTP/2 connection, and limits on slow readers and on cancelled
//! requests.
//!
//! A response that the client does not read is reset. Otherwise it would hold a backend's slot and memory
//! forever while the connection is alive. A response whose end is queued in h2 cannot be reset; if the client
//! does not read it either, the connection is closed. A connection whose client cancels requests faster than
//! `server.max_resets` allows is closed too.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::backlog::Backlog;
use super::h2_idle::OpenStreams;
use crate::body_deadline::BodyPace;
use crate::contention::Contention;
use crate::memory_budget::Budget;

/// Number of times that a stream is checked within `server.send_timeout`. Each check tests if the
/// client reads the response of the stream fast enough.
const CHECKS: u32 = 4;
/// Number of check intervals by which the time limit is longer for a response whose end is queued.
/// Such a response may be blocked by another response that is about to be reset. Without the
/// additional time its timeout would close the whole connection.
const CHECKS_AFTER_END: u32 = 2;
/// Minimum length of the list of streams at which ended streams are removed from it, so that a
/// short list is not searched at each request.
const SWEEP_FROM: usize = 64;
/// Fraction of the requests allowed per minute (`server.max_resets`) that a client may cancel at
/// once: 0.1 allows a tenth of them, and always at least one request.
const BURST: f64 = 0.1;

#[derive(Clone, Debug)]
pub(crate) struct StreamExecutor {
    pub(crate) tasks: TaskTracker,
    pub(crate) streams: OpenStreams,
    pub(crate) watch: Arc<StreamWatch>,
}

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let watch = Arc::clone(&self.watch);
        let stream = watch.take_opened();
        let open = self.streams.open();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = task => {}
                // End the task, which resets the stream and cancels the request at the backend.
                () = stream.stalled.notified() => {}
            }
            watch.ended(&stream);
            drop(open);
        });
    }
}

/// Enforces two limits on an HTTP/2 connection. A stream whose response the client reads too slowly
/// is reset (`server.send_timeout`). A connection that cancels too many requests is closed
/// (`server.max_resets`).
#[derive(Debug)]
pub(crate) struct StreamWatch {
    budget: Arc<Budget>,
    /// Time within which a client must read enough of a response (`server.send_timeout`). `rate` is
    /// the minimum rate in bytes per second.
    limit: Duration,
    rate: u64,
    /// Shortens `limit` while requests wait for a backend's slot that a slow reader may hold.
    contention: Contention,
    streams: Mutex<WatchList>,
    /// Stream whose request was passed to the service last. The next task that hyper executes
    /// belongs to it.
    opened: Mutex<Option<Arc<H2Stream>>>,
    cancelled: CancelledRequests,
    violation: Mutex<Option<Violation>>,
    is_violated: Notify,
}

/// Reason to close an HTTP/2 connection, which the client receives in a GOAWAY frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The client does not read the end of a response, which is queued, so that the stream can no
    /// longer be reset.
    Unsent,
    Resets,
}

impl Violation {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Unsent => "the client does not read responses (server.send_timeout)",
            Self::Resets => "the client cancelled too many requests (server.max_resets)",
        }
    }
}

#[derive(Debug, Default)]
struct WatchList {
    list: Vec<WatchedStream>,
    /// Length of the list of streams at which ended ones are removed from it.
    sweep_at: usize,
}

#[derive(Debug)]
struct H2Stream {
    backlog: Arc<Backlog>,
    is_ended: AtomicBool,
    stalled: Notify,
}

/// HTTP/2 stream, and the progress of its response since the current period began.
#[derive(Debug)]
struct WatchedStream {
    stream: Arc<H2Stream>,
    /// Start of the period in which response bytes wait for the client. `written` is the number of
    /// bytes written before it.
    since: Instant,
    written: u64,
}

impl StreamWatch {
    pub(crate) fn new(
        budget: &Arc<Budget>,
        limit: Duration,
        rate: u64,
        contention: Contention,
        max_resets: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::clone(budget),
            limit,
            rate,
            contention,
            streams: Mutex::default(),
            opened: Mutex::default(),
            cancelled: CancelledRequests::new(max_resets),
            violation: Mutex::default(),
            is_violated: Notify::new(),
        })
    }

    /// Checks the streams periodically until the client violates a limit. Returns the violation,
    /// for which the connection must be closed.
    pub(crate) async fn violation(&self) -> Violation {
        loop {
            if let Some(violation) = *lock(&self.violation) {
                return violation;
            }
            tokio::select! {
                () = self.is_violated.notified() => {}
                () = sleep(self.interval()) => self.check(),
            }
        }
    }

    /// Returns the time between two checks for responses that the client does not read.
    fn interval(&self) -> Duration {
        self.contention.interval(self.limit) / CHECKS
    }

    fn violate(&self, violation: Violation) {
        lock(&self.violation).get_or_insert(violation);
        self.is_violated.notify_one();
    }

    /// Opens the stream of a request, and returns the backlog of its response. hyper executes the
    /// task of a request right after it called the service, so the next executed task belongs to
    /// this stream. If the client does not read the response, dropping that task resets the stream.
    pub(crate) fn open(&self) -> Arc<Backlog> {
        let stream = self.add();
        let backlog = Arc::clone(&stream.backlog);
        *lock(&self.opened) = Some(stream);
        backlog
    }

    /// Returns the stream that was opened last, so that the next task is assigned to it.
    fn take_opened(&self) -> Arc<H2Stream> {
        let opened = lock(&self.opened).take();
        opened.unwrap_or_else(|| self.add())
    }

    fn add(&self) -> Arc<H2Stream> {
        let stream = Arc::new(H2Stream {
            backlog: Backlog::new(&self.budget),
            is_ended: AtomicBool::new(false),
            stalled: Notify::new(),
        });
        let mut streams = lock(&self.streams);
        if streams.list.len() >= streams.sweep_at {
            streams.list.retain(|watched| !watched.is_over());
            streams.sweep_at = SWEEP_FROM.max(streams.list.len() * 2);
        }
        streams.list.push(WatchedStream {
            stream: Arc::clone(&stream),
            since: Instant::now(),
            written: 0,
        });
        stream
    }

    fn ended(&self, stream: &H2Stream) {
        stream.is_ended.store(true, Ordering::Relaxed);
        if stream.backlog.is_cancelled() && !self.cancelled.note(Instant::now()) {
            self.violate(Violation::Resets);
        }
    }

    fn check(&self) {
        let mut streams = lock(&self.streams);
        streams.list.retain(|watched| !watched.is_over());
        let (now, limit) = (Instant::now(), self.contention.limit(self.limit));
        for watched in &mut streams.list {
            let more = self.interval() * CHECKS_AFTER_END;
            let limit = limit
                + if watched.is_ended() {
                    more
                } else {
                    Duration::ZERO
                };
            if !watched.check_stalled(now, limit, self.rate) {
                continue;
            }
            if watched.is_ended() {
                self.violate(Violation::Unsent);
            } else {
                watched.stream.backlog.mark_timed_out();
                watched.stream.stalled.notify_one();
            }
        }
    }
}

impl WatchedStream {
    fn is_ended(&self) -> bool {
        self.stream.is_ended.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_ended() && self.stream.backlog.bytes() == 0
    }

    /// Returns true if response bytes have waited for the client for the whole limit, and the
    /// client has read too few bytes in that time. A new period starts when the limit has passed.
    fn check_stalled(&mut self, now: Instant, limit: Duration, rate: u64) -> bool {
        let backlog = &self.stream.backlog;
        let written = backlog.written();
        if backlog.take_was_empty() {
            (self.since, self.written) = (now, written);
            return false;
        }
        let waited = now.saturating_duration_since(self.since);
        if waited < limit {
            return false;
        }
        let is_stalled = written - self.written < BodyPace::min_bytes(rate, waited);
        (self.since, self.written) = (now, written);
        is_stalled
    }
}

/// Rate limit on requests that the client of one connection cancels before the end of their
/// responses (`server.max_resets`).
#[derive(Debug)]
struct CancelledRequests {
    per_minute: f64,
    /// Number of requests that may still be cancelled, and the time when the number was last
    /// refilled.
    remaining: Mutex<(f64, Instant)>,
}

impl CancelledRequests {
    fn new(per_minute: u32) -> Self {
        let per_minute = f64::from(per_minute);
        Self {
            per_minute,
            remaining: Mutex::new((burst(per_minute), Instant::now())),
        }
    }

    /// Counts a cancelled request. Returns `false` if the client has cancelled more than
    /// `server.max_resets` allows, so that its connection must be closed.
    fn note(&self, now: Instant) -> bool {
        let mut remaining = lock(&self.remaining);
        let (count, since) = *remaining;
        let refilled = now.saturating_duration_since(since).as_secs_f64() * self.per_minute / 60.0;
        let count = (count + refilled).min(burst(self.per_minute)) - 1.0;
        *remaining = (count.max(-1.0), now);
        count >= 0.0 || self.per_minute == 0.0
    }
}

fn burst(per_minute: f64) -> f64 {
    (per_minute * BURST).max(1.0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cancelled_requests_are_limited_in_a_burst_and_per_minute() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let cancelled = CancelledRequests::new(1200);
        assert!((0..120).all(|_| cancelled.note(at(0))));
        assert!(!cancelled.note(at(1)));
        // 1200 per minute are one every 50 ms. One cancellation every 51 ms must stay within the
        // limit, and one every 49 ms must exceed it.
        let cancelled = CancelledRequests::new(1200);
        assert!((0..10_000).all(|number| cancelled.note(at(number * 51))));
        let cancelled = CancelledRequests::new(1200);
        assert!(!(0..10_000).all(|number| cancelled.note(at(number * 49))));
    }

    #[test]
    fn limit_of_zero_permits_any_number_of_cancelled_requests() {
        let now = Instant::now();
        let unlimited = CancelledRequests::new(0);
        assert!((0..1000).all(|_| unlimited.note(now)));
        let one = CancelledRequests::new(1);
        assert!(one.note(now) && !one.note(now));
        assert!(one.note(now + Duration::from_secs(121)));
    }
}
