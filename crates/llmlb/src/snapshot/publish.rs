//! Makes snapshots for viewers: at most one per second, whose bytes all viewers share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use bytes::Bytes;
use tokio::sync::watch;

use super::averages::Averages;
use super::build;
use super::files::Files;
use super::sources::Sources;
use crate::limits::LimitUse;

/// Maximum number of viewers of the event stream.
pub(crate) const MAX_VIEWERS: usize = 64;
/// Maximum number of limits in a snapshot.
const MAX_LIMITS: usize = 20;
/// Interval of samples and snapshots.
const EVERY: Duration = Duration::from_secs(1);
/// Age up to which a snapshot is sent again. Less than [`EVERY`], so that each interval has a new one.
const FRESH_FOR: Duration = Duration::from_millis(990);
/// Pause after the limits were read, as a multiple of the time that took. There may be many keys.
const LIMITS_PAUSE: u32 = 200;

/// Snapshots of a server.
#[derive(Debug)]
pub(crate) struct Snapshots {
    sources: Sources,
    state: Mutex<State>,
    /// The latest snapshot as an event, for the viewers of the event stream.
    events: watch::Sender<Bytes>,
    viewers: AtomicUsize,
    files: Arc<Files>,
}

#[derive(Debug, Default)]
struct State {
    averages: Averages,
    latest: Option<Latest>,
    limits: Vec<LimitUse>,
    limits_due: Option<Instant>,
}

/// The latest snapshot.
#[derive(Clone, Debug)]
struct Latest {
    at: Instant,
    json: Bytes,
    event: Bytes,
}

/// Ends the threads when it is dropped.
#[derive(Debug)]
pub(crate) struct SnapshotThreads {
    snapshots: Arc<Snapshots>,
    /// Channel without messages. Dropping it ends the sampling thread.
    _until: Sender<()>,
}

/// A viewer of the event stream, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct Viewer {
    snapshots: Arc<Snapshots>,
    /// The snapshot of the moment when the viewer came.
    first: Option<Bytes>,
    events: watch::Receiver<Bytes>,
}

impl Snapshots {
    pub(crate) fn new(sources: Sources) -> Self {
        Self {
            sources,
            state: Mutex::default(),
            events: watch::Sender::new(Bytes::new()),
            viewers: AtomicUsize::new(0),
            files: Arc::default(),
        }
    }

    /// Starts the thread that samples the counters and makes snapshots while there are viewers, and the one
    /// that reads the files of the data directory.
    pub(crate) fn start(self: &Arc<Self>, data: Option<PathBuf>) -> io::Result<SnapshotThreads> {
        let (until, ended) = mpsc::channel();
        if let Some(data) = data.filter(|_| self.sources.export.is_some()) {
            self.files.start(data)?;
        }
        let snapshots = Arc::clone(self);
        thread::Builder::new()
            .name("llmlb-snapshot".to_owned())
            .spawn(move || snapshots.run(&ended))?;
        Ok(SnapshotThreads {
            snapshots: Arc::clone(self),
            _until: until,
        })
    }

    /// Returns the latest snapshot as JSON. It is at most one second old.
    pub(crate) fn json(&self) -> Bytes {
        self.latest().json
    }

    /// Counts a viewer of the event stream. `None` if there are too many.
    pub(crate) fn view(self: &Arc<Self>) -> Option<Viewer> {
        let counted = (self.viewers).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
            (count < MAX_VIEWERS).then_some(count + 1)
        });
        counted.ok()?;
        // Created before the snapshot is made: from here on, dropping it counts the viewer out.
        let mut viewer = Viewer {
            snapshots: Arc::clone(self),
            first: None,
            events: self.events.subscribe(),
        };
        viewer.first = Some(self.latest().event);
        Some(viewer)
    }

    /// Samples the counters until the channel is closed, and makes a snapshot while there are viewers.
    fn run(&self, ended: &Receiver<()>) {
        // The first sample is that of a server without requests, so that the first tokens count.
        self.lock().averages.sample(&self.sources, Instant::now());
        while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(EVERY) {
            self.lock().averages.sample(&self.sources, Instant::now());
            if self.viewers.load(Ordering::Relaxed) > 0 {
                self.events.send_replace(self.latest().event);
            }
        }
    }

    /// Returns the latest snapshot, or makes one if that is too old.
    fn latest(&self) -> Latest {
        self.files.request();
        let mut state = self.lock();
        let now = Instant::now();
        if let Some(latest) = &state.latest
            && now.duration_since(latest.at) < FRESH_FOR
        {
            return latest.clone();
        }
        if state.limits_due.is_none_or(|due| now >= due) {
            state.limits = self
                .sources
                .limiter
                .largest_uses(&self.sources.keys, MAX_LIMITS);
            let end = Instant::now();
            state.limits_due = Some(end + (end - now).saturating_mul(LIMITS_PAUSE));
        }
        let files = self.files.report();
        let snapshot = build::build(&self.sources, &state.averages, &state.limits, &files);
        let mut event = b"data: ".to_vec();
        if serde_json::to_writer(&mut event, &snapshot).is_err() {
            event.truncate(6); // Writing numbers and texts to memory does not fail.
        }
        let end = event.len();
        event.extend_from_slice(b"\n\n");
        let event = Bytes::from(event);
        let latest = Latest {
            at: now,
            json: event.slice(6..end),
            event,
        };
        state.latest = Some(latest.clone());
        latest
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Viewer {
    /// Returns the next snapshot as an event; `None` when the server drains.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        tokio::select! {
            biased;
            () = self.snapshots.sources.draining.cancelled() => None,
            changed = self.events.changed() => {
                changed.ok()?;
                Some(self.events.borrow_and_update().clone())
            }
        }
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.snapshots.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for SnapshotThreads {
    fn drop(&mut self) {
        self.snapshots.files.stop();
    }
}
