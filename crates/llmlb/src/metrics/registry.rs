//! Metrics of all workers: the values of labels that they share, and the sum of their tables.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::catalog;
use super::exposition::Exposition;
use super::histogram::{self, Histogram};
use super::labels::{LabelId, LabelSet};
use super::worker::{
    AttemptCounts, Counts, RequestKey, RouteKey, RouteTimes, TokenCounts, TokenKey, WorkerMetrics,
};

/// Maximum numbers of values of labels, beside `other` and `none`.
const MAX_MODELS: u16 = 200;
const MAX_BACKENDS: u16 = 500;
const MAX_KEYS: u16 = 200;
/// Maximum numbers of combinations of labels, for requests, tokens and times.
const MAX_REQUEST_ROWS: usize = 5000;
const MAX_TOKEN_ROWS: usize = 2000;
const MAX_TIME_ROWS: usize = 500;

/// Metrics of a server, apart from its state.
#[derive(Debug)]
pub(crate) struct Metrics {
    /// Time at which the server started.
    pub(crate) started: SystemTime,
    pub(super) models: LabelSet,
    pub(super) backends: LabelSet,
    pub(super) keys: LabelSet,
    rows: Mutex<Rows>,
    workers: Mutex<Vec<Arc<WorkerMetrics>>>,
}

/// Combinations of labels that some worker counts.
#[derive(Debug, Default)]
struct Rows {
    requests: HashSet<RequestKey>,
    tokens: HashSet<TokenKey>,
    times: HashSet<RouteKey>,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            started: SystemTime::now(),
            models: LabelSet::new(MAX_MODELS),
            backends: LabelSet::new(MAX_BACKENDS),
            keys: LabelSet::new(MAX_KEYS),
            rows: Mutex::default(),
            workers: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Returns the table of a further worker.
    pub(crate) fn add_worker(self: &Arc<Self>) -> Arc<WorkerMetrics> {
        let worker = Arc::new(WorkerMetrics::new(Arc::clone(self)));
        lock(&self.workers).push(Arc::clone(&worker));
        worker
    }

    /// Returns the combination under which a request is counted: its own, or `other` beyond the bound.
    pub(super) fn request_row(&self, key: RequestKey) -> RequestKey {
        let other = RequestKey {
            model: LabelId::OTHER,
            backend: LabelId::OTHER,
            ..key
        };
        admit(&mut lock(&self.rows).requests, MAX_REQUEST_ROWS, key, other)
    }

    /// Returns the combination under which tokens are counted.
    pub(super) fn token_row(&self, key: TokenKey) -> TokenKey {
        let other = TokenKey {
            route: RouteKey::OTHER,
            key: LabelId::OTHER,
        };
        admit(&mut lock(&self.rows).tokens, MAX_TOKEN_ROWS, key, other)
    }

    /// Returns the combination under which times are counted.
    pub(super) fn time_row(&self, key: RouteKey) -> RouteKey {
        admit(
            &mut lock(&self.rows).times,
            MAX_TIME_ROWS,
            key,
            RouteKey::OTHER,
        )
    }

    /// Writes the metrics of requests.
    pub(crate) fn write(&self, page: &mut Exposition) {
        let workers = lock(&self.workers).clone();
        let mut sum = Sum::default();
        for worker in workers {
            sum.add(&worker.counts());
        }
        // The names are read after the tables, so that every number in a table has a name.
        sum.write(self, page);
    }
}

/// Returns the key if it is known or there is room for it, else `other`, for which there is always room.
fn admit<K: Eq + std::hash::Hash + Copy>(
    known: &mut HashSet<K>,
    max: usize,
    key: K,
    other: K,
) -> K {
    if known.contains(&key) {
        return key;
    }
    if known.len() >= max {
        return other;
    }
    known.insert(key);
    key
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sum of the tables of all workers, in the order of the page.
#[derive(Debug, Default)]
struct Sum {
    requests: BTreeMap<RequestKey, u64>,
    refused: BTreeMap<&'static str, u64>,
    tokens: BTreeMap<TokenKey, TokenCounts>,
    times: BTreeMap<RouteKey, RouteTimes>,
    queued: BTreeMap<LabelId, Histogram>,
    attempts: BTreeMap<LabelId, AttemptCounts>,
    choices: BTreeMap<&'static str, u64>,
    retries: u64,
}

impl Sum {
    fn add(&mut self, counts: &Counts) {
        for (key, count) in &counts.requests {
            *self.requests.entry(*key).or_default() += count;
        }
        for (code, count) in &counts.refused {
            *self.refused.entry(code).or_default() += count;
        }
        for (key, count) in &counts.tokens {
            self.tokens.entry(*key).or_default().merge(count);
        }
        for (key, times) in &counts.times {
            self.times.entry(*key).or_default().merge(times);
        }
        for (model, times) in &counts.queued {
            self.queued.entry(*model).or_default().merge(times);
        }
        for (backend, count) in &counts.attempts {
            self.attempts.entry(*backend).or_default().merge(count);
        }
        for (why, count) in &counts.choices {
            *self.choices.entry(why).or_default() += count;
        }
        self.retries += counts.retries;
    }

    fn write(&self, metrics: &Metrics, page: &mut Exposition) {
        let (models, backends) = (metrics.models.names(), metrics.backends.names());
        let keys = metrics.keys.names();
        let route = |key: &RouteKey| [models.get(key.model), backends.get(key.backend)];
        let mut samples = page.metric(&catalog::REQUESTS);
        for (key, count) in &self.requests {
            let [model, backend] = [models.get(key.model), backends.get(key.backend)];
            let (outcome, class) = (key.outcome.name(), key.status_class());
            samples.put(&[model, backend, key.api.name(), outcome, class], *count);
        }
        let mut samples = page.metric(&catalog::REFUSED);
        for (code, count) in &self.refused {
            samples.put(&[code], *count);
        }
        let mut samples = page.metric(&catalog::TOKENS);
        for (key, counts) in &self.tokens {
            let [model, backend] = route(&key.route);
            for (kind, source, count) in counts.iter() {
                samples.put(&[model, backend, keys.get(key.key), kind, source], count);
            }
        }
        let mut samples = page.metric(&catalog::DURATION);
        for (key, times) in &self.times {
            samples.put_histogram(&route(key), &histogram::DURATION, &times.duration);
        }
        let mut samples = page.metric(&catalog::FIRST_TOKEN);
        for (key, times) in &self.times {
            samples.put_histogram(&route(key), &histogram::FIRST_TOKEN, &times.first_token);
        }
        let mut samples = page.metric(&catalog::OUTPUT_TOKEN);
        for (key, times) in &self.times {
            samples.put_histogram(&route(key), &histogram::OUTPUT_TOKEN, &times.output_token);
        }
        let mut samples = page.metric(&catalog::QUEUE_TIME);
        for (model, times) in &self.queued {
            samples.put_histogram(&[models.get(*model)], &histogram::QUEUE, times);
        }
        let mut samples = page.metric(&catalog::ATTEMPTS);
        for (backend, counts) in &self.attempts {
            for (result, count) in counts.iter() {
                samples.put(&[backends.get(*backend), result], count);
            }
        }
        page.metric(&catalog::RETRIES).put(&[], self.retries);
        let mut samples = page.metric(&catalog::CHOICES);
        for (why, count) in &self.choices {
            samples.put(&[why], *count);
        }
    }
}
