//! The current [`Table`] of backends, routes and models. Readers never wait for a writer.

use std::sync::Arc;

use arc_swap::ArcSwap;

use super::table::Table;

#[derive(Debug)]
pub(super) struct Current(ArcSwap<Table>);

impl Current {
    pub(super) fn new(table: Table) -> Self {
        Self(ArcSwap::from_pointee(table))
    }

    /// Returns the table.
    pub(super) fn get(&self) -> Arc<Table> {
        self.0.load_full()
    }

    pub(super) fn set(&self, table: Table) {
        self.0.store(Arc::new(table));
    }

    /// Calls `look_up` with the current table of backends, routes and models, and returns the
    /// result.
    pub(super) fn with<T>(&self, look_up: impl FnOnce(&Table) -> T) -> T {
        look_up(&self.0.load())
    }
}
