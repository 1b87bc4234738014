//! All backends, and the way from a request to a place at one of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::StatusCode;

use super::affinity::{Affinity, BackendEpoch};
use super::backend::{Backend, State};
use super::choose::{Choice, Selection, Standing};
use super::clock::Moment;
use super::current::Current;
use super::lossy_cache::LossyCache;
use super::queue::{Queue, Waited};
use super::random::Random;
use super::route::Route;
use super::slot::Slot;
use super::table::Table;
use super::wait_key::WaitKey;
use super::{ClientKey, PoolConfig, RouteError, SelectHints};
use crate::backend_id::BackendId;
use crate::config::{Alias, BackendUrl, Kind};
use crate::contention::Contention;

/// Half a MiB of memory, for the ids that were issued last.
const ISSUED_CELLS_LOG2: u32 = 16;

/// All backends.
#[derive(Debug)]
pub(crate) struct Pool {
    current: Current,
    aliases: Vec<Alias>,
    queue: Arc<Queue>,
    affinity: Affinity,
    /// Which backend issued an id.
    issued: LossyCache,
    /// Held while a new table is made, so that no change is lost.
    changing: Mutex<()>,
    /// Held while a backend is ejected that must not be the last one of a model, so that two
    /// backends are not ejected at the same time for the sake of each other.
    ejecting: Mutex<()>,
}

/// Evidence against a backend: a response that its client may have provoked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Evidence {
    pub(crate) fault: Fault,
    pub(crate) client: ClientKey,
    /// Hash of the request's body.
    pub(crate) prompt: u64,
}

/// The fault of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It had this status.
    Status(StatusCode),
    /// The backend ended it early.
    Cut,
}

impl Pool {
    pub(crate) fn new(config: PoolConfig, backends: impl IntoIterator<Item = Backend>) -> Self {
        let queue = Arc::new(Queue::new(config.queue, config.queue_timeout));
        let pool = Self {
            current: Current::new(Table::new(Vec::new(), &[], &queue)),
            aliases: config.aliases,
            queue,
            affinity: Affinity::new(),
            issued: LossyCache::new(ISSUED_CELLS_LOG2),
            changing: Mutex::new(()),
            ejecting: Mutex::new(()),
        };
        pool.change(|list| {
            for backend in backends {
                append(list, backend);
            }
        });
        pool
    }

    pub(crate) fn table(&self) -> Arc<Table> {
        self.current.get()
    }

    /// The alias of this name.
    pub(crate) fn alias(&self, name: &str) -> Option<&Alias> {
        self.aliases.iter().find(|alias| alias.name == name)
    }

    /// Tells clients that stall whether requests wait. `limit` is how long they may stall then.
    pub(crate) fn contention(&self, limit: Duration) -> Contention {
        self.queue.contention(limit)
    }

    /// How many requests wait for a place.
    pub(crate) fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// Whether there is a backend at this address.
    pub(crate) fn knows(&self, url: &BackendUrl) -> bool {
        is_among(&self.table().backends, url)
    }

    /// Adds a backend that was found. `None`: there is one at its address already.
    pub(crate) fn add(&self, backend: Backend) -> Option<Arc<Backend>> {
        let mut added = None;
        self.change(|list| {
            if !is_among(list, &backend.url) {
                added = append(list, backend);
            }
        });
        added
    }

    /// Takes note of how a backend is. Says how it was.
    pub(crate) fn note(&self, backend: &Backend, state: State) -> State {
        if backend.state() == state {
            return state; // So it is nearly always.
        }
        let mut before = None;
        self.change(|_| before = Some(backend.replace_state(state.clone())));
        before.unwrap_or(state)
    }

    /// Takes note that a backend cannot be reached, and says so if that is new.
    pub(crate) fn note_down(&self, backend: &Backend, why: &str) {
        let down = State::Down(why.to_owned());
        if self.note(backend, down.clone()) != down {
            tracing::warn!("backend {} at {} is down: {why}", backend.name, backend.url);
        }
    }

    /// Counts a response that a client may have provoked. It ejects the backend if the evidence is
    /// sufficient, and if every model that the backend serves has another one.
    pub(crate) fn suspect(&self, backend: &Backend, evidence: Evidence) {
        let name = &backend.name;
        let is_cut = evidence.fault == Fault::Cut;
        let suspected =
            backend
                .learned
                .suspicion
                .note(evidence.client.address, evidence.prompt, is_cut);
        if let Fault::Status(status) = evidence.fault
            && suspected.is_first
            && status.is_server_error()
        {
            tracing::warn!("backend {name} responded {}", status.as_u16());
        }
        if !suspected.is_enough {
            return self.acquit(backend);
        }
        let now = Moment::now();
        let one_at_a_time = lock(&self.ejecting);
        if self.is_last(backend, now) {
            drop(one_at_a_time);
            return self.acquit(backend);
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
                "backend {name} ejected for {pause} s after responses without a success in between, \
                 the last one {last}"
            );
            self.queue.ejected();
        }
    }

    /// A response is no evidence against the backend, nor for it.
    pub(crate) fn acquit(&self, backend: &Backend) {
        if backend.stats.inconclusive(Moment::now()) {
            self.queue.recovered();
        }
    }

    /// The backend wants no requests for so long. That is granted unless it is the last one of a
    /// model. False if it is not.
    pub(crate) fn rest(&self, backend: &Backend, long: Duration) -> bool {
        let now = Moment::now();
        let one_at_a_time = lock(&self.ejecting);
        if self.is_last(backend, now) {
            return false;
        }
        let resting = backend.stats.rests(long, now);
        drop(one_at_a_time);
        if let Some(until) = resting {
            let (name, pause) = (&backend.name, until.seconds_after(now));
            tracing::warn!("backend {name} responded 429: it gets no requests for {pause} s");
            self.queue.ejected();
        }
        true
    }

    fn is_last(&self, backend: &Backend, now: Moment) -> bool {
        self.current.with(|table| table.is_last(backend.id, now))
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Backend>>)) {
        let one_at_a_time = lock(&self.changing);
        let mut backends = self.table().backends.clone();
        change(&mut backends);
        self.current
            .set(Table::new(backends, &self.aliases, &self.queue));
        drop(one_at_a_time);
        self.queue.reroute(|route| self.find(route));
    }

    /// Finds who may serve a model. A request that names none may go to anyone.
    #[cfg(test)]
    pub(crate) fn route(&self, model: Option<&str>) -> Result<Arc<Route>, RouteError> {
        self.route_of(None, model)
    }

    /// Finds who may serve a model, of this kind alone if one is given. A request that names none
    /// may go to anyone.
    pub(crate) fn route_of(
        &self,
        kind: Option<Kind>,
        model: Option<&str>,
    ) -> Result<Arc<Route>, RouteError> {
        self.current.with(|table| match table.route(kind, model) {
            Some(route) => Ok(Arc::clone(route)),
            None if table.is_complete() => Err(RouteError::Unknown),
            None => Err(RouteError::NotYet),
        })
    }

    /// Who serves the same by now.
    fn find(&self, route: &Route) -> Option<Arc<Route>> {
        let (kind, model) = (route.kind, route.name.as_deref());
        self.current.with(|table| table.route(kind, model).cloned())
    }

    /// Chooses one of those that were not tried yet, and takes a place there.
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

    /// [`Self::choose`] with everything that it depends on.
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
            self.take_nearest(&mut selection, hints.blocks)
        } else {
            None
        };
        let choice = near.map_or_else(|| selection.choose(random), Choice::Slot);
        if let Choice::Slot(slot) = &choice {
            self.affinity.remember(hints.blocks, slot.backend());
        }
        choice
    }

    /// A place at one that is down as far as is known, when nobody else is left. It may be back, and
    /// if it is not it says so at once: better than a refusal that is certain.
    pub(crate) fn last_resort(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
    ) -> Option<Slot> {
        let only = self.issuer(route, hints);
        let places =
            (0..route.candidates.len()).filter(|place| only.is_none_or(|one| one == *place));
        places
            .filter(|place| {
                let backend = route.backend(*place);
                backend.health.refuses_connections() && !tried.contains(&backend.id)
            })
            .find_map(|place| Slot::take(route, place))
    }

    /// Takes a place at the backend that knows the most of a prompt, unless it has too much to do.
    /// Then nobody else is to be given too much either.
    fn take_nearest(&self, selection: &mut Selection<'_>, blocks: &[u64]) -> Option<Slot> {
        self.affinity.recall(blocks).find_map(|epoch| {
            let place = selection.route.place(epoch.id())?;
            if BackendEpoch::new(selection.route.backend(place)) != epoch {
                return None;
            }
            let is_borne = match selection.standing(place) {
                Standing::Free(load) => selection
                    .average
                    .get_or_insert_with(|| selection.route.average(selection.now))
                    .bears(load.outstanding, load.weight),
                standing => standing == Standing::Due,
            };
            is_borne.then(|| selection.take(place)).flatten()
        })
    }

    /// Whether somebody who was not tried yet might serve it.
    pub(crate) fn has_another(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
    ) -> bool {
        let route = &self.as_it_is_now(route);
        let selection = Selection {
            route,
            only: self.issuer(route, hints),
            tried,
            endpoint: hints.endpoint,
            now: Moment::now(),
            average: None,
        };
        let mut places = 0..route.candidates.len();
        places.any(|place| {
            selection.only.is_none_or(|only| only == place)
                && selection.standing(place) != Standing::Out
        })
    }

    /// Who may serve the same model by now.
    pub(crate) fn as_it_is_now(&self, route: &Arc<Route>) -> Arc<Route> {
        self.find(route).unwrap_or_else(|| Arc::clone(route))
    }

    /// Waits for a place in a fair queue.
    pub(crate) async fn wait(
        &self,
        route: &Arc<Route>,
        hints: &SelectHints<'_>,
        tried: &[BackendId],
    ) -> Result<Slot, Waited> {
        let only = self.issuer(route, hints);
        let only = only.map(|place| route.backend(place).id);
        let waiting = self.queue.join(hints.client, || {
            WaitKey::new(self.as_it_is_now(route), only, tried, hints.endpoint)
        })?;
        let slot = waiting.outcome().await?;
        self.affinity.remember(hints.blocks, slot.backend());
        Ok(slot)
    }

    /// A backend issued this id.
    pub(crate) fn issued(&self, id: u64, backend: &Backend) {
        self.issued.put(id, u32::from(backend.id.0));
    }

    /// Where in the route the backend is that issued the id which the request names.
    fn issuer(&self, route: &Route, hints: &SelectHints<'_>) -> Option<usize> {
        let id = self.issued.get(hints.issued?)?;
        route.place(BackendId(u16::try_from(id).ok()?))
    }
}

/// Gives a backend its number. `None`: there are as many as can be.
fn append(list: &mut Vec<Arc<Backend>>, mut backend: Backend) -> Option<Arc<Backend>> {
    backend.id = BackendId(u16::try_from(list.len()).ok()?);
    let backend = Arc::new(backend);
    list.push(Arc::clone(&backend));
    Some(backend)
}

fn lock(mutex: &Mutex<()>) -> MutexGuard<'_, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_among(backends: &[Arc<Backend>], url: &BackendUrl) -> bool {
    backends
        .iter()
        .any(|one| one.url.authority() == url.authority())
}
