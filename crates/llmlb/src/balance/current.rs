//! The current table. Reading it costs one atomic load, because each thread caches the last table.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::table::Table;

/// Number of the next table. Numbers are unique across all pools, so that a thread never uses the
/// cached table of another pool.
static TABLES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The last table that this thread read, with its number.
    static SEEN: Cell<Option<(u64, Arc<Table>)>> = const { Cell::new(None) };
}

#[derive(Debug)]
pub(super) struct Current {
    number: AtomicU64,
    table: RwLock<(u64, Arc<Table>)>,
}

impl Current {
    pub(super) fn new(table: Table) -> Self {
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        Self {
            number: AtomicU64::new(number),
            table: RwLock::new((number, Arc::new(table))),
        }
    }

    /// Returns the table.
    pub(super) fn get(&self) -> Arc<Table> {
        self.read().1
    }

    pub(super) fn set(&self, table: Table) {
        let number = TABLES.fetch_add(1, Ordering::Relaxed);
        let mut held = self.table.write().unwrap_or_else(PoisonError::into_inner);
        *held = (number, Arc::new(table));
        self.number.store(number, Ordering::Release);
    }

    /// Calls `look_up` with the table.
    pub(super) fn with<T>(&self, look_up: impl FnOnce(&Table) -> T) -> T {
        let number = self.number.load(Ordering::Acquire);
        // A thread that is ending has no cache.
        let seen = SEEN.try_with(Cell::take).ok().flatten();
        let seen = seen.filter(|(last, _)| *last == number);
        let seen = seen.unwrap_or_else(|| self.read());
        let found = look_up(&seen.1);
        let _ = SEEN.try_with(|cell| cell.set(Some(seen)));
        found
    }

    fn read(&self) -> (u64, Arc<Table>) {
        let held = self.table.read().unwrap_or_else(PoisonError::into_inner);
        (held.0, Arc::clone(&held.1))
    }
}
