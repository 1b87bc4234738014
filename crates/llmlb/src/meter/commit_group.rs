//! Records of answers that end together go to the kernel together: one system call for all that a
//! worker finishes in a turn of its event loop.

use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use spool::Record;
use tokio::sync::Notify;

use super::Meter;

/// The records of one worker that the kernel does not have yet, and the requests that wait for it.
#[derive(Debug, Default)]
pub(crate) struct CommitGroup {
    gathered: Mutex<Gathered>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct Gathered {
    records: Vec<Record>,
    waiting: Vec<Waker>,
    /// How many batches were begun, and how many the kernel has.
    begun: u64,
    kept: u64,
}

impl CommitGroup {
    /// Adds a record, which is kept even if nobody waits for that.
    pub(crate) fn add(&self, record: Record) -> Kept<'_> {
        let mut gathered = self.lock();
        gathered.records.push(record);
        if gathered.records.len() == 1 {
            self.wanted.notify_one();
        }
        Kept {
            group: self,
            number: gathered.begun,
        }
    }

    /// Keeps what comes, for ever. Whoever else has something to do does it first, and so adds to
    /// the same batch.
    pub(crate) async fn keep_up(&self, meter: &Meter) {
        loop {
            self.wanted.notified().await;
            self.flush(meter);
        }
    }

    /// Keeps what there is.
    pub(crate) fn flush(&self, meter: &Meter) {
        let (records, number) = {
            let mut gathered = self.lock();
            gathered.begun += 1;
            (std::mem::take(&mut gathered.records), gathered.begun)
        };
        meter.keep_all(&records);
        let waiting = {
            let mut gathered = self.lock();
            gathered.kept = number;
            std::mem::take(&mut gathered.waiting)
        };
        for waker in waiting {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ready when the kernel has the record, or it is counted as lost.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    group: &'a CommitGroup,
    /// How many batches were begun before it.
    number: u64,
}

impl Future for Kept<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut gathered = self.group.lock();
        if gathered.kept > self.number {
            return Poll::Ready(());
        }
        gathered.waiting.push(cx.waker().clone());
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio_util::task::TaskTracker;

    use super::*;

    fn record() -> Record {
        Record::parse("{}").unwrap()
    }

    #[tokio::test]
    async fn who_waits_goes_on_when_the_batch_is_kept_and_not_before() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Meter::new(dir.path(), false);
        let group = CommitGroup::default();
        let mut cx = Context::from_waker(Waker::noop());
        let mut first = Box::pin(group.add(record()));
        let mut second = Box::pin(group.add(record()));
        assert!(first.as_mut().poll(&mut cx).is_pending());
        group.flush(&meter);
        assert_eq!(meter.kept(), 2);
        let mut third = Box::pin(group.add(record()));
        assert!(first.as_mut().poll(&mut cx).is_ready());
        assert!(second.as_mut().poll(&mut cx).is_ready());
        assert!(third.as_mut().poll(&mut cx).is_pending());
        // Nobody waits for it any more.
        drop(third);
        group.flush(&meter);
        assert_eq!(meter.kept(), 3);
    }

    #[tokio::test]
    async fn what_comes_in_one_turn_is_one_batch() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Arc::new(Meter::new(dir.path(), false));
        let group: Arc<CommitGroup> = Arc::default();
        let tasks = TaskTracker::new();
        let (keeper, to) = (Arc::clone(&group), Arc::clone(&meter));
        let keeping = tasks.spawn(async move { keeper.keep_up(&to).await });
        let requests = TaskTracker::new();
        for _ in 0..50 {
            let group = Arc::clone(&group);
            requests.spawn(async move { group.add(record()).await });
        }
        requests.close();
        requests.wait().await;
        assert_eq!(meter.kept(), 50);
        assert_eq!(group.lock().kept, 1);
        keeping.abort();
    }
}
