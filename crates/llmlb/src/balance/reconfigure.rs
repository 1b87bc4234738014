//! Replaces backends, aliases and settings of a running server, after a reload of the configuration.
//!
//! A backend is the same as before if its URL is the same: it keeps its id, load, latency, failures and
//! affinity, whatever else changes. A removed backend finishes its requests in flight and gets no further
//! ones. It is remembered for a while, and has its state again if the configuration names it again.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::backend::{Backend, BackendState};
use super::pool::{Pool, lock};
use super::table::Table;
use crate::backend_id::BackendId;
use crate::config::Alias;
use crate::issued_ids::BackendKey;
use crate::request_settings::RequestSettings;

/// Maximum number of removed backends whose state is remembered, which bounds memory.
const MAX_REMOVED: usize = 1024;

/// Ids that were given to backends, and removed backends whose state is remembered.
#[derive(Debug, Default)]
pub(super) struct KnownBackends {
    /// Number of ids that were given to backends. Ids are never given twice.
    ids: u32,
    /// Removed backends, newest last.
    removed: VecDeque<Arc<Backend>>,
}

/// A backend of a new configuration, which gets requests only after [`Pool::reconfigure`].
#[derive(Debug)]
pub(crate) struct PlannedBackend {
    pub(crate) backend: Arc<Backend>,
    /// True if the pool has not had a backend with this URL.
    pub(crate) is_new: bool,
    /// State that a probe with the new settings found. `None` if the backend keeps its state.
    pub(crate) state: Option<BackendState>,
}

/// Backends, aliases and settings of a reloaded configuration, which replace those of the pool at
/// once.
#[derive(Debug)]
pub(crate) struct Reconfigured {
    /// Configured backends, in the order of the configuration. See [`Pool::plan`].
    pub(crate) backends: Vec<PlannedBackend>,
    /// True if backends that were discovered on this machine stay. Only without configured backends.
    pub(crate) keeps_discovered: bool,
    pub(crate) aliases: Vec<Alias>,
    pub(crate) settings: Arc<RequestSettings>,
    pub(crate) queue: usize,
    pub(crate) queue_timeout: Duration,
}

impl KnownBackends {
    /// Gives a new backend its id. `None` if all ids are in use.
    pub(super) fn admit(
        &mut self,
        mut backend: Backend,
        host: Option<&str>,
    ) -> Option<Arc<Backend>> {
        backend.id = BackendId(self.ids);
        self.ids = self.ids.checked_add(1)?;
        let host = host.filter(|_| backend.url.is_loopback());
        backend.key = BackendKey::new(&backend.url.to_string(), host);
        Some(Arc::new(backend))
    }

    fn remember(&mut self, backend: Arc<Backend>) {
        if self.removed.len() >= MAX_REMOVED {
            self.removed.pop_front();
        }
        self.removed.push_back(backend);
    }
}

impl Pool {
    /// Returns the backends of a new configuration. A backend that exists already is returned as it is, or
    /// with its new settings if they differ. Nothing changes until [`Pool::reconfigure`].
    pub(crate) fn plan(&self, wanted: impl IntoIterator<Item = Backend>) -> Vec<PlannedBackend> {
        let mut known = lock(&self.changing);
        let table = self.table();
        // Use any entry of the backend: if it was removed and added several times, all its entries
        // have the same state.
        let existing = known.removed.iter().chain(&table.backends);
        let existing: HashMap<String, Arc<Backend>> = existing
            .map(|one| (one.url.to_string(), Arc::clone(one)))
            .collect();
        let plan = |wanted: Backend| {
            let old = existing.get(&wanted.url.to_string());
            let backend = match old {
                Some(old) if old.has_same_settings(&wanted) => Arc::clone(old),
                Some(old) => Arc::new(wanted.with_state_of(old)),
                None => known.admit(wanted, self.host.as_deref())?,
            };
            Some(PlannedBackend {
                backend,
                is_new: old.is_none(),
                state: None,
            })
        };
        wanted.into_iter().filter_map(plan).collect()
    }

    /// Replaces backends, aliases and settings at once: each request gets all of the old or all of the new
    /// configuration. Waiting requests are routed anew. Returns the removed backends.
    pub(crate) fn reconfigure(&self, new: Reconfigured) -> Vec<Arc<Backend>> {
        let mut known = lock(&self.changing);
        let before = self.table();
        let mut backends = Vec::with_capacity(new.backends.len());
        for PlannedBackend { backend, state, .. } in new.backends {
            backend.stats.set_removed(false);
            match state {
                Some(state) => drop(backend.replace_state(state)),
                None => backend.restrict_models(),
            }
            backends.push(backend);
        }
        let is_kept = |one: &&Arc<Backend>| new.keeps_discovered && one.settings.is_discovered;
        let discovered = before.backends.iter().filter(is_kept);
        backends.extend(discovered.cloned());
        let kept: HashSet<BackendId> = backends.iter().map(|one| one.id).collect();
        known.removed.retain(|one| !kept.contains(&one.id));
        let is_gone = |one: &&Arc<Backend>| !kept.contains(&one.id);
        let removed: Vec<_> = before.backends.iter().filter(is_gone).cloned().collect();
        let table = Table::new(backends, new.aliases.into(), new.settings, &self.queue);
        // The new table is stored first: a request that finds that its backend is removed then finds the new
        // backends there.
        self.current.set(table);
        for backend in &removed {
            backend.stats.set_removed(true);
            // If the configuration names the backend again later, it is not drained.
            backend.stats.set_drained(false);
            known.remember(Arc::clone(backend));
        }
        drop(known);
        self.queue.set_limits(new.queue, new.queue_timeout);
        self.reroute();
        removed
    }
}
