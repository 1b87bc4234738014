//! Closes idle HTTP/2 connections. A client that only responds to PING frames would hold its connection
//! forever, so a connection without an open stream for the idle time is closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// Number of checks for open streams within the idle time of an HTTP/2 connection. They are cheaper
/// than a timestamp for every stream.
const CHECKS: u32 = 4;

/// Counters of the opened and closed streams of one HTTP/2 connection, which is closed if it has no
/// open stream for the idle time.
#[derive(Clone, Debug, Default)]
pub(crate) struct OpenStreams(Arc<StreamCounts>);

#[derive(Debug, Default)]
struct StreamCounts {
    opened: AtomicU64,
    closed: AtomicU64,
}

/// Guard of an open HTTP/2 stream, which is counted as closed when the guard is dropped.
#[derive(Debug)]
pub(crate) struct StreamGuard(OpenStreams);

impl OpenStreams {
    pub(crate) fn open(&self) -> StreamGuard {
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        StreamGuard(self.clone())
    }

    fn opened(&self) -> u64 {
        self.0.opened.load(Ordering::Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        // All streams of a connection run on one thread. So no stream opens or closes between the
        // reads of the counters `opened` and `closed`.
        self.opened() == self.0.closed.load(Ordering::Relaxed)
    }

    /// Returns when no stream of the connection has been open for `limit`, or up to a quarter
    /// longer.
    pub(crate) async fn idle(&self, limit: Duration) {
        let (mut before, mut checks) = (self.opened(), 0);
        while checks < CHECKS {
            sleep(limit / CHECKS).await;
            let now = self.opened();
            checks = if self.is_empty() && now == before {
                checks + 1
            } else {
                0
            };
            before = now;
        }
    }
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.0.closed.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, advance, timeout};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(80);

    #[tokio::test(start_paused = true)]
    async fn connection_is_idle_when_no_stream_was_open_for_the_whole_limit() {
        let streams = OpenStreams::default();
        let start = Instant::now();
        streams.idle(LIMIT).await;
        assert_eq!(start.elapsed(), LIMIT);

        let open = streams.open();
        assert!(timeout(LIMIT * 10, streams.idle(LIMIT)).await.is_err());
        drop(open);
        let start = Instant::now();
        streams.idle(LIMIT).await;
        assert_eq!(start.elapsed(), LIMIT);
    }

    #[tokio::test(start_paused = true)]
    async fn occasional_short_streams_keep_a_connection_open() {
        let streams = OpenStreams::default();
        let busy = async {
            for _ in 0..20 {
                advance(LIMIT / 2).await;
                drop(streams.open());
                assert!(streams.is_empty());
            }
        };
        tokio::select! {
            () = streams.idle(LIMIT) => panic!("a connection in use was reported as idle"),
            () = busy => {}
        }
    }
}
