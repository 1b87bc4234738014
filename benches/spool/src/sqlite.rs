//! SQLite as the competitor: WAL mode with a sync at every commit, and one committer for all producers.
//! Each transaction contains all queued rows; the committer does not wait for more.

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

use rusqlite::Connection;
use spool::Record;

/// Completion of one transaction, for which its producers wait.
#[derive(Default)]
struct Commit {
    is_done: Mutex<bool>,
    done: Condvar,
}

#[derive(Default)]
struct Queue {
    rows: Vec<Record>,
    commit: Arc<Commit>,
    is_closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
}

/// A database to which many threads add rows.
pub struct Grouped {
    shared: Arc<Shared>,
    committer: Option<JoinHandle<()>>,
}

impl Grouped {
    /// Opens a database. With ids, a record that is added twice is one row, as in spool. Without ids,
    /// the rows have the minimum of work for SQLite.
    pub fn open(path: &Path, with_ids: bool) -> Self {
        let mut database = Connection::open(path).expect("a database");
        let mode: String = database
            .query_row("PRAGMA journal_mode=WAL", [], |row| row.get(0))
            .expect("a journal");
        assert_eq!(mode, "wal");
        let table = if with_ids {
            "CREATE TABLE records (id TEXT PRIMARY KEY, json TEXT NOT NULL)"
        } else {
            "CREATE TABLE records (number INTEGER PRIMARY KEY, json TEXT NOT NULL)"
        };
        database
            .execute_batch(&format!("PRAGMA synchronous=FULL; {table};"))
            .expect("a table");
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        let committer = thread::spawn(move || own.commit(&mut database, with_ids));
        Self {
            shared,
            committer: Some(committer),
        }
    }

    /// Adds a row. The row is on the disk when this returns.
    pub fn add(&self, record: Record) {
        let commit = {
            let mut queue = self.shared.queue.lock().expect("the queue");
            queue.rows.push(record);
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
    fn commit(&self, database: &mut Connection, with_ids: bool) {
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
            let insert = if with_ids {
                "INSERT OR IGNORE INTO records (id, json) VALUES (?1, ?2)"
            } else {
                "INSERT INTO records (json) VALUES (?1)"
            };
            let mut insert = transaction.prepare_cached(insert).expect("a statement");
            for row in &rows {
                let done = if with_ids {
                    insert.execute((row.id().to_string(), row.json()))
                } else {
                    insert.execute([row.json()])
                };
                done.expect("a row");
            }
            drop(insert);
            transaction.commit().expect("a commit");
            *commit.is_done.lock().expect("the commit") = true;
            commit.done.notify_all();
        }
    }
}
