//! Commit groups: records of requests that end at about the same time are persisted together, by one
//! system call for all that a worker finishes in one turn of its event loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use spool::Record;
use tokio::sync::Notify;

use super::Meter;

/// The records of one worker that the kernel does not have yet, and the requests that wait for them.
#[derive(Debug)]
pub(crate) struct CommitGroup {
    meter: Arc<Meter>,
    gathered: Mutex<Gathered>,
    wanted: Notify,
}

#[derive(Debug, Default)]
struct Gathered {
    records: Vec<Record>,
    waiting: Vec<Waker>,
    /// Number of groups that were begun, and of those that were persisted.
    begun: u64,
    persisted: u64,
}

/// A record that was added: the number of groups that were begun before it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitTicket(u64);

impl CommitGroup {
    pub(crate) fn new(meter: Arc<Meter>) -> Self {
        Self {
            meter,
            gathered: Mutex::default(),
            wanted: Notify::new(),
        }
    }

    /// Adds a record. It is persisted even if no request waits for it.
    pub(crate) fn add(&self, record: Record) -> CommitTicket {
        let mut gathered = self.lock();
        gathered.records.push(record);
        if gathered.records.len() == 1 {
            self.wanted.notify_one();
        }
        CommitTicket(gathered.begun)
    }

    /// Persists a record at once, together with all that were added.
    pub(crate) fn persist(&self, record: Record) {
        self.lock().records.push(record);
        self.flush();
    }

    /// Ready when the kernel has the record, or the record is counted as lost.
    pub(crate) fn poll_persisted(&self, ticket: CommitTicket, cx: &mut Context<'_>) -> Poll<()> {
        let mut gathered = self.lock();
        if gathered.persisted > ticket.0 {
            return Poll::Ready(());
        }
        gathered.waiting.push(cx.waker().clone());
        Poll::Pending
    }

    /// Persists records as they come, forever. Tasks that are ready run first, and so add to the same
    /// group.
    pub(crate) async fn run(&self) {
        loop {
            self.wanted.notified().await;
            self.flush();
        }
    }

    /// Persists all records that were added.
    pub(crate) fn flush(&self) {
        let (records, number) = {
            let mut gathered = self.lock();
            gathered.begun += 1;
            (std::mem::take(&mut gathered.records), gathered.begun)
        };
        self.meter.keep_all(&records);
        let waiting = {
            let mut gathered = self.lock();
            gathered.persisted = number;
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

impl Drop for CommitGroup {
    /// Persists the records of requests that were aborted with their worker.
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio_util::task::TaskTracker;

    use super::*;

    fn record() -> Record {
        Record::parse("{}").unwrap()
    }

    #[tokio::test]
    async fn requests_wait_until_their_group_is_persisted() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Arc::new(Meter::new(dir.path(), false));
        let group = CommitGroup::new(Arc::clone(&meter));
        let mut cx = Context::from_waker(Waker::noop());
        let (first, second) = (group.add(record()), group.add(record()));
        assert!(group.poll_persisted(first, &mut cx).is_pending());
        group.flush();
        assert_eq!(meter.kept(), 2);
        let third = group.add(record());
        assert!(group.poll_persisted(first, &mut cx).is_ready());
        assert!(group.poll_persisted(second, &mut cx).is_ready());
        assert!(group.poll_persisted(third, &mut cx).is_pending());
        group.persist(record());
        assert_eq!(meter.kept(), 4);
        assert!(group.poll_persisted(third, &mut cx).is_ready());
    }

    #[tokio::test]
    async fn dropping_the_group_persists_its_records() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Arc::new(Meter::new(dir.path(), false));
        let group = CommitGroup::new(Arc::clone(&meter));
        let _ = group.add(record());
        drop(group);
        assert_eq!(meter.kept(), 1);
    }

    #[tokio::test]
    async fn records_of_one_turn_of_the_event_loop_are_one_group() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Arc::new(Meter::new(dir.path(), false));
        let group = Arc::new(CommitGroup::new(Arc::clone(&meter)));
        let tasks = TaskTracker::new();
        let running = Arc::clone(&group);
        let running = tasks.spawn(async move { running.run().await });
        let requests = TaskTracker::new();
        for _ in 0..50 {
            let group = Arc::clone(&group);
            requests.spawn(async move {
                let ticket = group.add(record());
                poll_fn(|cx| group.poll_persisted(ticket, cx)).await;
            });
        }
        requests.close();
        requests.wait().await;
        assert_eq!(meter.kept(), 50);
        assert_eq!(group.lock().persisted, 1);
        running.abort();
    }
}
