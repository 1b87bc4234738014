//! The answers of an HTTP/2 connection, each a task of its own. A client that does not take one of
//! them does not keep a backend's place for ever, although its connection is well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::h2_idle::Streams;

/// How many looks at an answer make the time for which nothing of it may be taken.
const LOOKS: u32 = 4;

tokio::task_local! {
    static TAKING: Taking;
}

/// Runs the tasks of a connection where they are known of, and ends those whose client takes
/// nothing for so long.
#[derive(Clone, Debug)]
pub(crate) struct Answers {
    pub(crate) tasks: TaskTracker,
    pub(crate) limit: Duration,
    pub(crate) streams: Streams,
}

impl<F> hyper::rt::Executor<F> for Answers
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, task: F) {
        let (taking, limit) = (Taking::default(), self.limit);
        let open = self.streams.open();
        self.tasks.spawn(async move {
            tokio::select! {
                biased;
                () = TAKING.scope(taking.clone(), task) => {}
                // To drop the task is to reset the stream, and to end the request at the backend.
                () = taking.stopped(limit) => {}
            }
            drop(open);
        });
    }
}

/// How far a client is with an answer. hyper asks for the next piece when the client has room for
/// it, and not before it has taken most of what there is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taking(
    /// How often a piece was asked for and handed over. Odd: one waits for the client.
    Arc<AtomicU64>,
);

impl Taking {
    /// That of the answer which this task makes. There is none over HTTP/1.1: a connection has one
    /// answer at a time, and knows itself whether that is taken.
    pub(crate) fn of_this_task() -> Option<Self> {
        TAKING.try_with(Self::clone).ok()
    }

    /// The next piece is asked for: whatever was handed over has found room.
    pub(crate) fn asked(&self) {
        if self.is_waiting() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A piece was handed over.
    pub(crate) fn handed(&self) {
        if !self.is_waiting() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_waiting(&self) -> bool {
        self.0.load(Ordering::Relaxed) % 2 == 1
    }

    /// Returns when the same piece has waited for so long.
    async fn stopped(&self, limit: Duration) {
        let (mut before, mut looks) = (0, 0);
        while looks < LOOKS {
            sleep(limit / LOOKS).await;
            let now = self.0.load(Ordering::Relaxed);
            looks = if self.is_waiting() && now == before {
                looks + 1
            } else {
                0
            };
            before = now;
        }
    }
}
