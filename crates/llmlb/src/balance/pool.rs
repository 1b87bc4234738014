//! All backends, and the selection of a slot at one of them for each request.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::affinity::{Affinity, BackendEpoch};
use super::backend::{Backend, BackendState};
use super::choose::{Availability, Choice, Selection};
use super::clock::Moment;
use super::current::Current;
use super::issuers::{Issuer, IssuerQueue, Issuers};
use super::queue::{Queue, WaitError};
use super::random::Random;
use super::reason::ChoiceReason;
use super::reconfigure::KnownBackends;
use super::route::Route;
use super::slot::Slot;
use super::suspicion::{Evidence, Fault};
use super::table::Table;
use super::wait_key::WaitKey;
use super::{PoolConfig, RouteError, SelectHints};
use crate::backend_id::BackendId;
use crate::config::{BackendUrl, Kind};
use crate::contention::Contention;
use crate::issued_ids::IdHash;
use crate::request_settings::RequestSettings;

/// All backends.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(super) current: Current,
    pub(super) queue: Arc<Queue>,
    affinity: Affinity,
    /// Backends by the hashes of ids that they issued, such as file ids. A request that names such
    /// an id is sent to the backend that issued the id, since no other backend knows it.
    issuers: Issuers,
    /// Queues of the threads that persist issued ids.
    issuer_queues: Vec<Arc<IssuerQueue>>,
    /// Name of this host, as a part of the keys of loopback backends, whose URLs can be equal on
    /// other hosts.
    pub(super) host: Option<String>,
    /// Lock held while a changed table of backends, routes and models is built and stored.
    /// Otherwise two concurrent changes could start from the same old table, and one of them would
    /// be lost.
    pub(super) changing: Mutex<KnownBackends>,
    /// Held while a backend is ejected that must not be the last one of a model. Otherwise two
    /// threads could eject both backends of a model, each relying on the other backend.
    ejecting: Mutex<()>,
}

impl Pool {
    pub(crate) fn new(config: PoolConfig, backends: impl IntoIterator<Item = Backend>) -> Self {
        let queue = Arc::new(Queue::new(config.queue, config.queue_timeout));
        let table = Table::new(Vec::new(), config.aliases.into(), config.settings, &queue);
        let pool = Self {
            current: Current::new(table),
            queue,
            affinity: Affinity::new(),
            issuers: Issuers::new(),
            issuer_queues: config.issuer_queues,
            host: config.host,
            changing: Mutex::default(),
            ejecting: Mutex::new(()),
        };
        pool.change(|list, known| {
            let admit = |backend| known.admit(backend, pool.host.as_deref());
            list.extend(backends.into_iter().filter_map(admit));
        });
        pool
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.current.get()
    }

    /// Returns the settings for requests that begin now. A reload replaces them for later requests
    /// only.
    pub(crate) fn settings(&self) -> Arc<RequestSettings> {
        self.current.with(|table| Arc::clone(table.settings()))
    }

    /// Returns the contention signal: while requests wait, a client that stalls is aborted after `limit`.
    pub(crate) fn contention(&self, limit: Duration) -> Contention {
        self.queue.contention(limit)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Number of requests that wait for a slot of each of the backends.
    pub(crate) fn waiting_for(&self, backends: &[Arc<Backend>]) -> Vec<usize> {
        self.queue.waiting_for(backends)
    }

    /// True if the pool has a backend at this address, so that discovery does not probe the address
    /// again.
    pub(crate) fn has_backend_at(&self, url: &BackendUrl) -> bool {
        is_among(&self.table().backends, url)
    }

    /// Adds a discovered backend. `None` if the pool has a backend at its address already.
    pub(crate) fn add(&self, backend: Backend) -> Option<Arc<Backend>> {
        let mut added = None;
        self.change(|list, known| {
            if !is_among(list, &backend.url) {
                added = known.admit(backend, self.host.as_deref());
                list.extend(added.clone());
            }
        });
        added
    }

    /// Replaces the state of a backend and rebuilds the routes if the state differs. Returns the
    /// old state.
    pub(crate) fn set_state(&self, backend: &Backend, state: BackendState) -> BackendState {
        if backend.state() == state {
            return state; // The usual case, which builds no table.
        }
        let mut before = None;
        self.change(|_, _| before = Some(backend.replace_state(state.clone())));
        before.unwrap_or(state)
    }

    /// Marks a backend as down, and logs the reason if it is new.
    pub(crate) fn mark_down(&self, backend: &Backend, why: &str) {
        let down = BackendState::Down(why.to_owned());
        if self.set_state(backend, down.clone()) != down {
            tracing::warn!("backend {} at {} is down: {why}", backend.name, backend.url);
        }
    }

    /// Drains a backend, so that it gets no further requests, or ends its drain. Requests in flight finish, and
    /// waiting requests are routed anew. Returns the backend and its old state; `None` if no backend has the name.
    pub(crate) fn set_drained(&self, name: &str, is_drained: bool) -> Option<(Arc<Backend>, bool)> {
        let mut found = None;
        self.change(|list, _| {
            let backend = list.iter().find(|one| one.name == name);
            found = backend.map(|one| (Arc::clone(one), one.stats.set_drained(is_drained)));
        });
        found
    }

    /// Counts a response that a client may have provoked. Ejects the backend if the evidence is sufficient
    /// and if another backend is available for each of its models.
    pub(crate) fn suspect(&self, backend: &Backend, evidence: Evidence) {
        let name = &backend.name;
        let suspected = backend.learned.suspicion.note(evidence);
        if let Fault::Status(status) = evidence.fault
            && suspected.is_first
            && status.is_server_error()
        {
            tracing::warn!("backend {name} responded {}", status.as_u16());
        }
        if !suspected.is_enough {
            return self.note_inconclusive(backend);
        }
        let now = Moment::now();
        let one_at_a_time = lock(&self.ejecting);
        if self.is_last(backend, now) {
            drop(one_at_a_time);
            return self.note_inconclusive(backend);
        }
        let ejected = backend.stats.eject(now);
        drop(one_at_a_time);
        if let Some(until) = ejected {
            let pause = until.seconds_after(now);
            let last = match evidence.fault {
                Fault::Status(status) => format!("with status {}", status.as_u16()),
                Fault::Cut => "cut".to_owned(),
            };
            tracing::warn!(
                "backend {name} ejected for {pause} s after 3 or more failed responses without a \
                 success in between, the last one {last}"
            );
            self.queue.backend_ejected();
        }
    }

    /// Notes a response that is evidence neither for nor against the backend's health.
    pub(crate) fn note_inconclusive(&self, backend: &Backend) {
        if backend.stats.note_inconclusive(Moment::now()) {
            self.queue.backend_recovered();
        }
    }

    /// Sends a backend no requests during a pause that it requested. False if the pause is not granted,
    /// because no other backend is available for one of its models.
    pub(crate) fn back_off(&self, backend: &Backend, pause: Duration) -> bool {
        let now = Moment::now();
        let one_at_a_time = lock(&self.ejecting);
        if self.is_last(backend, now) {
            return false;
        }
        let paused = backend.stats.back_off(pause, now);
        drop(one_at_a_time);
        if let Some(until) = paused {
            let (name, pause) = (&backend.name, until.seconds_after(now));
            tracing::warn!("backend {name} responded 429: it gets no requests for {pause} s");
            self.queue.backend_ejected();
        }
        true
    }

    fn is_last(&self, backend: &Backend, now: Moment) -> bool {
        self.current.with(|table| table.is_last(backend.id, now))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Backend>>, &mut KnownBackends)) {
        let mut known = lock(&self.changing);
        let table = self.table();
        let mut backends = table.backends.clone();
        change(&mut backends, &mut known);
        let (aliases, settings) = (Arc::clone(table.aliases()), Arc::clone(table.settings()));
        self.current
            .set(Table::new(backends, aliases, settings, &self.queue));
        drop(known);
        self.reroute();
    }

    /// Replaces the routes of waiting requests, so that they can be served by backends of the
    /// current table.
    pub(super) fn reroute(&self) {
        self.queue.reroute(|route| self.find_current(route));
    }

    #[cfg(test)]
    pub(crate) fn route(&self, model: Option<&str>) -> Result<Arc<Route>, RouteError> {
        self.route_for_kind(None, model)
    }

    #[cfg(test)]
    pub(crate) fn route_for_kind(
        &self,
        kind: Option<Kind>,
        model: Option<&str>,
    ) -> Result<Arc<Route>, RouteError> {
        self.route_with_settings(kind, model)
            .map(|(route, _)| route)
    }

    /// Returns the backends that may serve a model, and the settings of the same configuration; only backends
    /// of `kind`, if it is given. A request without a model may be sent to any backend.
    pub(crate) fn route_with_settings(
        &self,
        kind: Option<Kind>,
        model: Option<&str>,
    ) -> Result<(Arc<Route>, Arc<RequestSettings>), RouteError> {
        self.current.with(|table| match table.route(kind, model) {
            Some(route) => Ok((Arc::clone(route), Arc::clone(table.settings()))),
            None if table.is_complete() => Err(RouteError::Unknown),
            None => Err(RouteError::NotYet),
        })
    }

    /// Returns the current route for the model of an older route. `None` if no backend serves the
    /// model any more.
    fn find_current(&self, route: &Route) -> Option<Arc<Route>> {
        let (kind, model) = (route.kind, route.name.as_deref());
        self.current.with(|table| table.route(kind, model).cloned())
    }

    /// Selects a backend that was not tried yet, and acquires a slot there.
    pub(crate) fn choose(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
    ) -> Choice {
        Random::with_thread_local(|random| {
            self.choose_at(route, hints, tried, Moment::now(), random)
        })
    }

    /// Like [`Self::choose`], with the time and the random numbers as parameters, so that tests can
    /// set them.
    pub(super) fn choose_at(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
        now: Moment,
        random: &mut Random,
    ) -> Choice {
        let mut selection = Selection {
            route,
            only: self.issuer(route, hints),
            tried,
            endpoint: hints.endpoint,
            now,
            average: None,
        };
        let is_free = selection.only.is_none() && !route.is_in_order();
        let near = if is_free {
            self.acquire_nearest(&mut selection, hints.blocks)
        } else {
            None
        };
        let choice = near.map_or_else(|| selection.choose(random), Choice::Slot);
        if let Choice::Slot(slot) = &choice {
            self.affinity.remember(hints.blocks, slot.backend());
        }
        choice
    }

    /// Returns a slot at a backend that refused its last connection, when no other backend is left.
    /// The backend may be up again. If it is not, the attempt fails at once.
    pub(crate) fn last_resort(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
    ) -> Option<Slot> {
        let only = self.issuer(route, hints);
        let indices =
            (0..route.candidates.len()).filter(|index| only.is_none_or(|one| one == *index));
        indices
            .filter(|index| {
                let backend = route.backend(*index);
                backend.health.refuses_connections()
                    && !backend.is_removed()
                    && !backend.is_drained()
                    && !tried.contains(&backend.id)
            })
            .find_map(|index| Slot::acquire(route, index, ChoiceReason::LastResort))
    }

    /// Acquires a slot at the backend that received the longest known beginning of the prompt,
    /// whose prefix cache may still contain it. Backends with a load far above the average are
    /// skipped.
    ///
    /// The average is stored in `selection`: if no slot is acquired here, the random choice that
    /// follows avoids overloaded backends too.
    fn acquire_nearest(&self, selection: &mut Selection<'_>, blocks: &[u64]) -> Option<Slot> {
        self.affinity.recall(blocks).find_map(|epoch| {
            let index = selection.route.index_of(epoch.id())?;
            if BackendEpoch::new(selection.route.backend(index)) != Some(epoch) {
                return None;
            }
            let is_allowed = match selection.availability(index) {
                Availability::Free(load) => selection
                    .average
                    .get_or_insert_with(|| selection.route.average(selection.now))
                    .allows(load.outstanding, load.weight),
                availability => availability == Availability::TrialDue,
            };
            let mut slot = is_allowed.then(|| selection.acquire(index)).flatten()?;
            slot.note_reason(ChoiceReason::Affinity);
            Some(slot)
        })
    }

    /// True if a backend that was not tried yet may serve the request, so that a failed attempt can
    /// be retried there.
    pub(crate) fn has_another(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
    ) -> bool {
        let route = &self.current_route(route);
        let selection = Selection {
            route,
            only: self.issuer(route, hints),
            tried,
            endpoint: hints.endpoint,
            now: Moment::now(),
            average: None,
        };
        let mut indices = 0..route.candidates.len();
        indices.any(|index| {
            selection.only.is_none_or(|only| only == index)
                && selection.availability(index) != Availability::Unavailable
        })
    }

    /// Returns the current route for the model of an older route, since backends may have changed
    /// after that route was built.
    pub(crate) fn current_route(&self, route: &Arc<Route>) -> Arc<Route> {
        self.find_current(route)
            .unwrap_or_else(|| Arc::clone(route))
    }

    /// Waits in the fair queue until a backend of the route has a free slot for the request.
    pub(crate) async fn wait(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
    ) -> Result<Slot, WaitError> {
        let only = self.issuer(route, hints);
        let only = only.map(|index| route.backend(index).id);
        let waiter = self.queue.join(hints.client, || {
            WaitKey::new(self.current_route(route), only, tried, hints.endpoint)
        })?;
        let mut slot = waiter.outcome().await?;
        slot.note_reason(ChoiceReason::Queue);
        self.affinity.remember(hints.blocks, slot.backend());
        Ok(slot)
    }

    /// Notes that a backend issued the id with this hash, such as a file id. Later requests that
    /// name the id are sent to this backend.
    pub(crate) fn note_issued(&self, id: IdHash, backend: &Backend) {
        let issuer = Issuer {
            id,
            backend: backend.key,
        };
        // Persist an id only once: a response may be searched for ids several times.
        if self.issuers.put(issuer) {
            for queue in &self.issuer_queues {
                queue.push(issuer);
            }
        }
    }

    /// True if the backend that issued this id is known, even if the configuration does not name
    /// the backend any more.
    pub(crate) fn knows_issuer(&self, id: IdHash) -> bool {
        self.issuers.get(id).is_some()
    }

    /// Stores the backend of an id that an earlier process or another server has persisted.
    pub(crate) fn restore_issuer(&self, issuer: Issuer) {
        self.issuers.put(issuer);
    }

    /// Returns the index of the candidate that issued the id which the request names.
    fn issuer(&self, route: &Route, hints: &SelectHints<'_>) -> Option<usize> {
        let key = self.issuers.get(hints.issued?)?;
        let candidates = &route.candidates;
        candidates.iter().position(|one| one.backend.key == key)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_among(backends: &[Arc<Backend>], url: &BackendUrl) -> bool {
    backends
        .iter()
        .any(|one| one.url.authority() == url.authority())
}
