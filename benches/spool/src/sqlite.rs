//! The peer: SQLite in WAL mode, which syncs at every commit, with one committer for all producers.
//! It takes everything that is queued into one transaction and does not wait for more.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;

/// Those who wait for the same transaction.
#[derive(Default)]
struct Commit {
    is_done: Mutex<bool>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    rows: Vec<Arc<str>>,
    commit: Arc<Commit>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// A database that many threads add rows to.
pub struct Grouped {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
}

impl Grouped {
    /// One key, one column, no index: as little as SQLite can be asked to do.
    pub fn open(path: &Path) -> Self {
        let mut database = Connection::open(path).expect("a database");
        let mode: String = database
            .query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))
            .expect("a journal");
        assert_eq!(mode, "wal");
        database
            .execute_batch(
                "PRAGMA synchronous=FULL;
                 CREATE TABLE records (number INTEGER PRIMARY KEY, json TEXT NOT NULL);",
            )
            .expect("a table");
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let committer = thread::spawn(move || own.commit(&mut database));
        Self {
            shared,
            committer: Some(committer),
        }
    }

    /// Adds a row. It is on the disk when this returns.
    pub fn add(&self, json: Arc<str>) {
        let commit = {
            let mut queue = self.shared.queue.lock().expect("the queue");
            queue.rows.push(json);
            if queue.rows.len() == 1 {
                self.shared.filled.notify_one();
            }
            Arc::clone(&queue.commit)
        };
        let is_done = commit.is_done.lock().expect("the commit");
        drop(commit.done.wait_while(is_done, |is_done| !*is_done));
    }
}

impl Drop for Grouped {
    fn drop(&mut self) {
        self.shared.queue.lock().expect("the queue").is_closed = true;
        self.shared.filled.notify_one();
        if let Some(committer) = self.committer.take() {
            committer.join().expect("the committer");
        }
    }
}

impl Shared {
    fn commit(&self, database: &mut Connection) {
        loop {
            let queue = self.queue.lock().expect("the queue");
            let mut queue = self
                .filled
                .wait_while(queue, |queue| queue.rows.is_empty() && !queue.is_closed)
                .expect("the queue");
            if queue.rows.is_empty() {
                return;
            }
            let rows = std::mem::take(&mut queue.rows);
            let commit = std::mem::take(&mut queue.commit);
            drop(queue);
            let transaction = database.transaction().expect("a transaction");
            let mut insert = transaction
                .prepare_cached("INSERT INTO records (json) VALUES (?1)")
                .expect("a statement");
            for row in &rows {
                insert.execute([&**row]).expect("a row");
            }
            drop(insert);
            transaction.commit().expect("a commit");
            *commit.is_done.lock().expect("the commit") = true;
            commit.done.notify_all();
        }
    }
}
