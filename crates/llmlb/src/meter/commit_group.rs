//! Commit groups: one system call persists the usage records of all requests that a worker finishes in
//! one iteration of its event loop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use spool::Record;
use tokio::sync::Notify;

use super::Meter;
use super::in_flight_list::{self, Row, RowPool};

/// Usage records of one worker that wait for the next flush, and the requests that wait for it
/// before they send the last bytes of their responses.
#[derive(Debug)]
pub(crate) struct CommitGroup {
    meter: Arc<Meter>,
    pending: Mutex<PendingCommit>,
    has_records: Notify,
    /// Rows of this worker in the in-flight list, from which the next start writes records after a
    /// kill; `None` if there is no such list.
    rows: Option<Arc<RowPool>>,
}

#[derive(Debug, Default)]
struct PendingCommit {
    records: Vec<Record>,
    /// Rows of the in-flight list for the requests that the records describe. They are freed after
    /// the flush: a row freed earlier would lose its request in a kill.
    rows: Vec<Row>,
    waiting: Vec<Waker>,
    /// Number of flushes that have started. A new record remembers this number as its
    /// [`CommitTicket`].
    started: u64,
    /// Number of flushes that have finished. A record is persisted once this number exceeds its
    /// [`CommitTicket`].
    persisted: u64,
}

/// Identifies the flush that persists a record: the number of flushes that had started when the record
/// was added. The record is persisted once more flushes than that have finished.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CommitTicket(u64);

impl CommitGroup {
    pub(crate) fn new(meter: Arc<Meter>) -> Self {
        let rows = meter.in_flight().map(Arc::clone);
        Self {
            meter,
            pending: Mutex::default(),
            has_records: Notify::new(),
            rows: rows.map(|list| Arc::new(RowPool::new(list))),
        }
    }

    /// Adds a request to the in-flight list. The caller passes the row to [`add`](Self::add) or
    /// [`persist`](Self::persist) with the usage record, so that the row is not freed before the
    /// record is persisted.
    pub(crate) fn list(&self, request: &in_flight_list::Request<'_>) -> Option<Row> {
        self.rows.as_ref()?.add(request)
    }

    /// Adds a record to the next flush. The record is persisted even if the request that it describes is
    /// cancelled and no longer waits.
    pub(crate) fn add(&self, record: Record, row: Option<Row>) -> CommitTicket {
        let mut pending = self.lock();
        pending.records.push(record);
        pending.rows.extend(row);
        if pending.records.len() == 1 {
            self.has_records.notify_one();
        }
        CommitTicket(pending.started)
    }

    pub(crate) fn persist(&self, record: Record, row: Option<Row>) {
        {
            let mut pending = self.lock();
            pending.records.push(record);
            pending.rows.extend(row);
        }
        self.flush();
    }

    /// Ready when the kernel has the record, or the record is counted as lost. The last bytes of a
    /// response wait for this, so that `kill -9` loses no finished request.
    pub(crate) fn poll_persisted(&self, ticket: CommitTicket, cx: &mut Context<'_>) -> Poll<()> {
        let mut pending = self.lock();
        if pending.persisted > ticket.0 {
            return Poll::Ready(());
        }
        pending.waiting.push(cx.waker().clone());
        Poll::Pending
    }

    /// Flushes the group whenever it has records; never returns. The scheduler polls other tasks that
    /// are ready before this task, so their records join the same flush.
    pub(crate) async fn run(&self) {
        loop {
            self.has_records.notified().await;
            self.flush();
        }
    }

    /// Persists all records that were added, frees their rows in the in-flight list, and wakes the
    /// requests that wait for them.
    pub(crate) fn flush(&self) {
        let (records, rows, number) = {
            let mut pending = self.lock();
            pending.started += 1;
            let records = std::mem::take(&mut pending.records);
            let rows = std::mem::take(&mut pending.rows);
            (records, rows, pending.started)
        };
        self.meter.persist(&records);
        // Free the rows only now: until the kernel has the records, a kill would lose requests that
        // are not in the in-flight list.
        drop(rows);
        let waiting = {
            let mut pending = self.lock();
            pending.persisted = number;
            std::mem::take(&mut pending.waiting)
        };
        for waker in waiting {
            waker.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, PendingCommit> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for CommitGroup {
    /// Persists the records of requests that are aborted because their worker stops. No later flush
    /// would write them.
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::config::{Instance, OnFailure};

    fn meter(data: &std::path::Path) -> Meter {
        Meter::new(data, OnFailure::Serve, &Instance::from_host(None, 1))
    }

    fn record() -> Record {
        Record::parse("{}").unwrap()
    }

    #[tokio::test]
    async fn request_waits_until_the_group_of_its_record_is_persisted() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Arc::new(meter(dir.path()));
        let group = CommitGroup::new(Arc::clone(&meter));
        let mut cx = Context::from_waker(Waker::noop());
        let (first, second) = (group.add(record(), None), group.add(record(), None));
        assert!(group.poll_persisted(first, &mut cx).is_pending());
        group.flush();
        assert_eq!(meter.persisted(), 2);
        let third = group.add(record(), None);
        assert!(group.poll_persisted(first, &mut cx).is_ready());
        assert!(group.poll_persisted(second, &mut cx).is_ready());
        assert!(group.poll_persisted(third, &mut cx).is_pending());
        group.persist(record(), None);
        assert_eq!(meter.persisted(), 4);
        assert!(group.poll_persisted(third, &mut cx).is_ready());
    }

    #[tokio::test]
    async fn dropped_group_persists_its_records() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Arc::new(meter(dir.path()));
        let group = CommitGroup::new(Arc::clone(&meter));
        let _ = group.add(record(), None);
        drop(group);
        assert_eq!(meter.persisted(), 1);
    }

    #[tokio::test]
    async fn records_of_one_event_loop_iteration_share_one_flush() {
        let dir = tempfile::tempdir().unwrap();
        let meter = Arc::new(meter(dir.path()));
        let group = Arc::new(CommitGroup::new(Arc::clone(&meter)));
        let tasks = TaskTracker::new();
        let running = Arc::clone(&group);
        let running = tasks.spawn(async move { running.run().await });
        let requests = TaskTracker::new();
        for _ in 0..50 {
            let group = Arc::clone(&group);
            requests.spawn(async move {
                let ticket = group.add(record(), None);
                poll_fn(|cx| group.poll_persisted(ticket, cx)).await;
            });
        }
        requests.close();
        requests.wait().await;
        assert_eq!(meter.persisted(), 50);
        assert_eq!(group.lock().persisted, 1);
        running.abort();
    }
}
