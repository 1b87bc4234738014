//! The streams of an HTTP/2 connection, each a task of its own, and the limits on them.
//!
//! A response that the client does not take is reset, so that it does not hold a backend's slot and
//! memory forever although the connection is alive. A response whose end is queued in h2 cannot be
//! reset any more; if the client does not take that either, the connection is closed. So is a
//! connection whose client cancels requests faster than `server.max_resets` allows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use super::backlog::Backlog;
use super::h2_idle::Streams;
use crate::body_deadline::BodyPace;
use crate::contention::Contention;
use crate::memory_budget::Budget;

/// Number of looks at a response in the time within which the client must take enough of it.
const LOOKS: u32 = 4;
/// Looks that a response has more if its end is queued. It may wait behind one that is about to be
/// reset.
const MORE_LOOKS_AFTER_END: u32 = 2;
/// Streams that have ended are removed from the list when it has become this long.
const SWEEP_FROM: usize = 64;
/// A client may cancel as many requests at once as the limit allows in this part of a minute.
const BURST: f64 = 0.1;

/// Runs the tasks of the streams of a connection.
#[derive(Clone, Debug)]
pub(crate) struct StreamExecutor {
    pub(crate) tasks: TaskTracker,
    pub(crate) streams: Streams,
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
                // Dropping the task resets the stream, and cancels the request at the backend.
                () = stream.stalled.notified() => {}
            }
            watch.ended(&stream);
            drop(open);
        });
    }
}

/// The limits on the streams of one connection.
#[derive(Debug)]
pub(crate) struct StreamWatch {
    budget: Arc<Budget>,
    /// Time within which a client must take enough of a response that waits for it, at this rate.
    limit: Duration,
    rate: u64,
    /// Shortens the limit.
    contention: Contention,
    streams: Mutex<WatchList>,
    /// The stream of the request whose task hyper executes next.
    opened: Mutex<Option<Arc<Stream>>>,
    cancelled: CancelledRequests,
    violation: Mutex<Option<Violation>>,
    is_violated: Notify,
}

/// The reason to close a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Violation {
    /// The client does not take the end of a response.
    Unsent,
    /// The client cancels too many requests.
    Resets,
}

impl Violation {
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Unsent => "responses are not read (server.send_timeout)",
            Self::Resets => "too many requests cancelled (server.max_resets)",
        }
    }
}

#[derive(Debug, Default)]
struct WatchList {
    list: Vec<Watched>,
    /// Length of the list at which it is swept.
    sweep_at: usize,
}

#[derive(Debug)]
struct Stream {
    backlog: Arc<Backlog>,
    is_ended: AtomicBool,
    stalled: Notify,
}

/// A stream as it was when it was looked at last.
#[derive(Debug)]
struct Watched {
    stream: Arc<Stream>,
    /// Start of the time in which something waits for the client, and the bytes written before it.
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

    /// Returns when the connection is to be closed.
    pub(crate) async fn violation(&self) -> Violation {
        loop {
            if let Some(violation) = *lock(&self.violation) {
                return violation;
            }
            tokio::select! {
                () = self.is_violated.notified() => {}
                () = sleep(self.interval()) => self.look(),
            }
        }
    }

    /// Time between two looks.
    fn interval(&self) -> Duration {
        self.contention.interval(self.limit) / LOOKS
    }

    fn violate(&self, violation: Violation) {
        lock(&self.violation).get_or_insert(violation);
        self.is_violated.notify_one();
    }

    /// Opens the stream of a request. Returns the backlog of its response. hyper executes the task of a
    /// request right after it has called the service, so the next task belongs to this stream.
    pub(crate) fn open(&self) -> Arc<Backlog> {
        let stream = self.add();
        let backlog = Arc::clone(&stream.backlog);
        *lock(&self.opened) = Some(stream);
        backlog
    }

    /// The stream that was opened last, for its task.
    fn take_opened(&self) -> Arc<Stream> {
        let opened = lock(&self.opened).take();
        opened.unwrap_or_else(|| self.add())
    }

    fn add(&self) -> Arc<Stream> {
        let stream = Arc::new(Stream {
            backlog: Backlog::new(&self.budget),
            is_ended: AtomicBool::new(false),
            stalled: Notify::new(),
        });
        let mut streams = lock(&self.streams);
        if streams.list.len() >= streams.sweep_at {
            streams.list.retain(|watched| !watched.is_over());
            streams.sweep_at = SWEEP_FROM.max(streams.list.len() * 2);
        }
        streams.list.push(Watched {
            stream: Arc::clone(&stream),
            since: Instant::now(),
            written: 0,
        });
        stream
    }

    fn ended(&self, stream: &Stream) {
        stream.is_ended.store(true, Ordering::Relaxed);
        if stream.backlog.is_left() && !self.cancelled.note(Instant::now()) {
            self.violate(Violation::Resets);
        }
    }

    fn look(&self) {
        let mut streams = lock(&self.streams);
        streams.list.retain(|watched| !watched.is_over());
        let (now, limit) = (Instant::now(), self.contention.limit(self.limit));
        for watched in &mut streams.list {
            let more = self.interval() * MORE_LOOKS_AFTER_END;
            let limit = limit
                + if watched.is_ended() {
                    more
                } else {
                    Duration::ZERO
                };
            if !watched.is_stalled(now, limit, self.rate) {
                continue;
            }
            if watched.is_ended() {
                self.violate(Violation::Unsent);
            } else {
                watched.stream.backlog.give_up();
                watched.stream.stalled.notify_one();
            }
        }
    }
}

impl Watched {
    fn is_ended(&self) -> bool {
        self.stream.is_ended.load(Ordering::Relaxed)
    }

    fn is_over(&self) -> bool {
        self.is_ended() && self.stream.backlog.bytes() == 0
    }

    /// True if the response has waited for the client for this long, without ever being taken whole,
    /// and too little of it was taken meanwhile.
    fn is_stalled(&mut self, now: Instant, limit: Duration, rate: u64) -> bool {
        let backlog = &self.stream.backlog;
        let written = backlog.written();
        if backlog.was_empty() {
            (self.since, self.written) = (now, written);
            return false;
        }
        let waited = now.saturating_duration_since(self.since);
        if waited < limit {
            return false;
        }
        let is_stalled = written - self.written < BodyPace::least_bytes(rate, waited);
        (self.since, self.written) = (now, written);
        is_stalled
    }
}

/// Counts the requests that a client cancels before the end of their response.
#[derive(Debug)]
struct CancelledRequests {
    per_minute: f64,
    /// Requests that may be cancelled now, and when that was known.
    left: Mutex<(f64, Instant)>,
}

impl CancelledRequests {
    fn new(per_minute: u32) -> Self {
        let per_minute = f64::from(per_minute);
        Self {
            per_minute,
            left: Mutex::new((burst(per_minute), Instant::now())),
        }
    }

    /// Counts one; `false` if it exceeds the limit. A limit of 0 is none.
    fn note(&self, now: Instant) -> bool {
        let mut left = lock(&self.left);
        let (count, since) = *left;
        let refilled = now.saturating_duration_since(since).as_secs_f64() * self.per_minute / 60.0;
        let count = (count + refilled).min(burst(self.per_minute)) - 1.0;
        *left = (count.max(-1.0), now);
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
        // 20 per second are refilled.
        let cancelled = CancelledRequests::new(1200);
        assert!((0..10_000).all(|number| cancelled.note(at(number * 51))));
        let cancelled = CancelledRequests::new(1200);
        assert!(!(0..10_000).all(|number| cancelled.note(at(number * 49))));
    }

    #[test]
    fn cancelled_requests_are_not_limited_by_zero_and_hardly_by_one() {
        let now = Instant::now();
        let unlimited = CancelledRequests::new(0);
        assert!((0..1000).all(|_| unlimited.note(now)));
        let one = CancelledRequests::new(1);
        assert!(one.note(now) && !one.note(now));
        assert!(one.note(now + Duration::from_secs(121)));
    }
}
