//! Counts of one worker. A request costs one uncontended lock and a few lookups by number; only a page that is
//! requested at that moment holds the lock too, for as long as the table is copied.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use foldhash::fast::RandomState;

use super::histogram::{self, Histogram};
use super::labels::{LabelId, LabelSet};
use super::registry::Metrics;
use crate::backend_id::BackendId;
use crate::endpoint::Api;
use crate::meter::record::Outcome;
use crate::meter::usage::{TokenUsage, UsageSource};

/// Maximum number of names that a worker remembers with their numbers. Beyond it the names are forgotten, and
/// their numbers are found in the shared sets again.
const MAX_REMEMBERED: usize = 2048;

type Map<K, V> = HashMap<K, V, RandomState>;

/// A request that has ended, as the metrics count it.
#[derive(Debug)]
pub(crate) struct FinishedRequest<'a> {
    pub(crate) model: ModelLabel<'a>,
    /// Backend whose response the client got, or to which the request was sent last.
    pub(crate) backend: Option<(BackendId, &'a str)>,
    pub(crate) key: Option<&'a str>,
    pub(crate) api: Api,
    pub(crate) outcome: Outcome,
    /// Status of the response; 0 if there is none.
    pub(crate) status: u16,
    /// Error code, if llmlb refused the request or could not serve it.
    pub(crate) code: Option<&'static str>,
    /// Usage in the record; `None` without a record.
    pub(crate) usage: Option<TokenUsage>,
    pub(crate) duration: Duration,
    /// Time to the first byte of a stream; `None` for other responses.
    pub(crate) first_byte: Option<Duration>,
    /// Time in the queue; `None` if the request needed no slot.
    pub(crate) queued: Option<Duration>,
}

/// Model of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModelLabel<'a> {
    /// A model that a backend lists, or an alias.
    Known(&'a str),
    /// A name that only the client knows.
    Unknown,
    /// The request names no model.
    None,
}

/// Combination of labels of a counted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RequestKey {
    pub(super) model: LabelId,
    pub(super) backend: LabelId,
    pub(super) api: Api,
    pub(super) outcome: Outcome,
    /// First digit of the status.
    pub(super) class: u8,
}

impl RequestKey {
    pub(super) fn status_class(self) -> &'static str {
        match self.class {
            1 => "1xx",
            2 => "2xx",
            3 => "3xx",
            4 => "4xx",
            5 => "5xx",
            _ => "none",
        }
    }
}

/// Hashes one number instead of five fields.
impl Hash for RequestKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let route = self.model.number() | self.backend.number() << 16;
        let rest = u32::from_be_bytes([0, self.class, self.outcome as u8, self.api as u8]);
        state.write_u64(route | u64::from(rest) << 32);
    }
}

/// Model and backend of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct RouteKey {
    pub(super) model: LabelId,
    pub(super) backend: LabelId,
}

impl Hash for RouteKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.model.number() | self.backend.number() << 16);
    }
}

impl RouteKey {
    pub(super) const OTHER: Self = Self {
        model: LabelId::OTHER,
        backend: LabelId::OTHER,
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TokenKey {
    pub(super) route: RouteKey,
    pub(super) key: LabelId,
}

impl Hash for TokenKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let route = self.route.model.number() | self.route.backend.number() << 16;
        state.write_u64(route | self.key.number() << 32);
    }
}

/// Numbers of tokens by type, reported and estimated.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenCounts {
    reported: [u64; 4],
    estimated: [u64; 4],
}

impl TokenCounts {
    const TYPES: [&str; 4] = ["prompt", "completion", "cached", "reasoning"];

    fn add(&mut self, usage: &TokenUsage) {
        let counts = match usage.source {
            UsageSource::Reported => &mut self.reported,
            UsageSource::Estimated => &mut self.estimated,
            UsageSource::None => return,
        };
        let more = [
            usage.prompt,
            usage.completion,
            usage.cached,
            usage.reasoning,
        ];
        sum(counts, &more);
    }

    pub(super) fn merge(&mut self, other: &Self) {
        sum(&mut self.reported, &other.reported);
        sum(&mut self.estimated, &other.estimated);
    }

    /// Returns type, source and number. Types that a source has not counted are left out, apart from the prompt
    /// and the completion of a source with tokens.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
        let of = |source: UsageSource, counts: [u64; 4]| {
            let is_used = counts.iter().any(|count| *count > 0);
            let numbered = Self::TYPES.into_iter().zip(counts).enumerate();
            let shown =
                numbered.filter(move |(index, (_, count))| *count > 0 || is_used && *index < 2);
            shown.map(move |(_, (kind, count))| (kind, source.name(), count))
        };
        of(UsageSource::Reported, self.reported).chain(of(UsageSource::Estimated, self.estimated))
    }
}

fn sum<const N: usize>(counts: &mut [u64; N], more: &[u64; N]) {
    for (count, more) in counts.iter_mut().zip(more) {
        *count = count.saturating_add(*more);
    }
}

/// Times of the requests of one model at one backend.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RouteTimes {
    pub(super) duration: Histogram,
    pub(super) first_token: Histogram,
    pub(super) output_token: Histogram,
}

impl RouteTimes {
    pub(super) fn merge(&mut self, other: &Self) {
        self.duration.merge(&other.duration);
        self.first_token.merge(&other.first_token);
        self.output_token.merge(&other.output_token);
    }
}

/// Numbers of attempts at one backend by their result.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttemptCounts([u64; 3]);

impl AttemptCounts {
    const RESULTS: [&str; 3] = ["response", "failed", "abandoned"];

    pub(super) fn merge(&mut self, other: &Self) {
        sum(&mut self.0, &other.0);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Self::RESULTS.into_iter().zip(self.0)
    }
}

/// Everything that a worker has counted.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) requests: Map<RequestKey, u64>,
    pub(super) refused: Map<&'static str, u64>,
    pub(super) tokens: Map<TokenKey, TokenCounts>,
    pub(super) times: Map<RouteKey, RouteTimes>,
    pub(super) queued: Map<LabelId, Histogram>,
    pub(super) attempts: Map<LabelId, AttemptCounts>,
    pub(super) choices: Map<&'static str, u64>,
    pub(super) retries: u64,
}

/// Counts of one worker, and the numbers of the names that it uses.
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    metrics: Arc<Metrics>,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    counts: Counts,
    models: Map<Box<str>, LabelId>,
    keys: Map<Box<str>, LabelId>,
    backends: Map<BackendId, LabelId>,
}

impl WorkerMetrics {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self {
            metrics,
            table: Mutex::default(),
        }
    }

    /// Counts a request that has ended, and its attempts that failed.
    pub(crate) fn record<'a>(
        &self,
        request: &FinishedRequest<'_>,
        failed: impl Iterator<Item = (BackendId, &'a str)>,
    ) {
        let metrics = &*self.metrics;
        let table = &mut *self.lock();
        let model = match request.model {
            ModelLabel::Known(name) => remembered(&mut table.models, name, &metrics.models),
            ModelLabel::Unknown => LabelId::OTHER,
            ModelLabel::None => LabelId::NONE,
        };
        let backend = request.backend.map_or(LabelId::NONE, |(id, name)| {
            backend_label(&mut table.backends, id, name, &metrics.backends)
        });
        let route = RouteKey { model, backend };
        table.count_request(metrics, route, request);
        if let Some(usage) = request
            .usage
            .filter(|usage| usage.source != UsageSource::None)
        {
            let key = request.key.map_or(LabelId::NONE, |name| {
                remembered(&mut table.keys, name, &metrics.keys)
            });
            let row = TokenKey { route, key };
            let counts = slot(&mut table.counts.tokens, row, |row| metrics.token_row(row));
            counts.add(&usage);
        }
        if request.outcome != Outcome::Refused {
            table.observe(metrics, route, request);
        }
        if let Some(queued) = request.queued {
            let times = table.counts.queued.entry(model).or_default();
            times.observe(&histogram::QUEUE, queued);
        }
        let mut attempts = 0;
        for (id, name) in failed {
            let backend = backend_label(&mut table.backends, id, name, &metrics.backends);
            table.counts.attempts.entry(backend).or_default().0[1] += 1;
            attempts += 1;
        }
        if request.backend.is_some() {
            let result = if request.status > 0 { 0 } else { 2 };
            table.counts.attempts.entry(backend).or_default().0[result] += 1;
            attempts += 1;
        }
        table.counts.retries += u64::saturating_sub(attempts, 1);
    }

    /// Counts the choice of a backend for a request. Reasons are a few constants.
    pub(crate) fn count_choice(&self, why: &'static str) {
        *self.lock().counts.choices.entry(why).or_default() += 1;
    }

    /// Returns a copy of the counts.
    pub(super) fn counts(&self) -> Counts {
        self.lock().counts.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn count_request(&mut self, metrics: &Metrics, route: RouteKey, request: &FinishedRequest<'_>) {
        let row = RequestKey {
            model: route.model,
            backend: route.backend,
            api: request.api,
            outcome: request.outcome,
            class: u8::try_from(request.status / 100).unwrap_or(0),
        };
        *slot(&mut self.counts.requests, row, |row| {
            metrics.request_row(row)
        }) += 1;
        if let Some(code) = request.code {
            *self.counts.refused.entry(code).or_default() += 1;
        }
    }

    fn observe(&mut self, metrics: &Metrics, route: RouteKey, request: &FinishedRequest<'_>) {
        let times = slot(&mut self.counts.times, route, |row| metrics.time_row(row));
        times
            .duration
            .observe(&histogram::DURATION, request.duration);
        let Some(first_byte) = request.first_byte else {
            return;
        };
        times
            .first_token
            .observe(&histogram::FIRST_TOKEN, first_byte);
        let completion = request.usage.map_or(0, |usage| usage.completion);
        if request.outcome == Outcome::Complete && completion > 1 {
            let rest = request.duration.saturating_sub(first_byte);
            let after_first = u32::try_from(completion - 1).unwrap_or(u32::MAX);
            times
                .output_token
                .observe(&histogram::OUTPUT_TOKEN, rest / after_first);
        }
    }
}

/// Returns the counts of a combination of labels. `admit` returns the combination under which a new one is
/// counted.
fn slot<K: Copy + Eq + Hash, V: Default>(
    map: &mut Map<K, V>,
    key: K,
    admit: impl FnOnce(K) -> K,
) -> &mut V {
    let key = if map.contains_key(&key) {
        key
    } else {
        admit(key)
    };
    map.entry(key).or_default()
}

/// Returns the number of a name, which the worker remembers.
fn remembered(known: &mut Map<Box<str>, LabelId>, name: &str, set: &LabelSet) -> LabelId {
    if let Some(id) = known.get(name) {
        return *id;
    }
    let id = set.id(name);
    if id != LabelId::OTHER {
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(name.into(), id);
    }
    id
}

fn backend_label(
    known: &mut Map<BackendId, LabelId>,
    id: BackendId,
    name: &str,
    set: &LabelSet,
) -> LabelId {
    if let Some(label) = known.get(&id) {
        return *label;
    }
    if known.len() >= MAX_REMEMBERED {
        known.clear();
    }
    let label = set.id(name);
    known.insert(id, label);
    label
}
