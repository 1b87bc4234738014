//! Idle connections of HTTP/2. A client that only answers PING frames is alive, but its connection is
//! of no use: it is closed when no stream has been open for the idle time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

/// The idle time is divided into this many checks, so that no stream has to note the time.
const CHECKS: u32 = 4;

/// The streams of one connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Streams(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    opened: AtomicU64,
    closed: AtomicU64,
}

/// One open stream, until this is dropped.
#[derive(Debug)]
pub(crate) struct OpenStream(Streams);

impl Streams {
    pub(crate) fn open(&self) -> OpenStream {
        self.0.opened.fetch_add(1, Ordering::Relaxed);
        OpenStream(self.clone())
    }

    fn opened(&self) -> u64 {
        self.0.opened.load(Ordering::Relaxed)
    }

    /// True if no stream is open.
    pub(crate) fn is_empty(&self) -> bool {
        // All streams of a connection belong to one thread.
        self.opened() == self.0.closed.load(Ordering::Relaxed)
    }

    /// Returns when no stream has been open for this long, or up to a quarter more.
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

impl Drop for OpenStream {
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
    async fn a_connection_is_idle_when_no_stream_was_open_for_the_whole_time() {
        let streams = Streams::default();
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
    async fn a_short_stream_now_and_then_keeps_a_connection() {
        let streams = Streams::default();
        let busy = async {
            for _ in 0..20 {
                advance(LIMIT / 2).await;
                drop(streams.open());
                assert!(streams.is_empty());
            }
        };
        tokio::select! {
            () = streams.idle(LIMIT) => panic!("it was used"),
            () = busy => {}
        }
    }
}
