//! Moving averages: the counters of the last minute, sampled once per second.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use super::sources::Sources;
use crate::backend_id::BackendId;
use crate::balance::TrafficTotals;

/// Time over which rates are averaged.
const RATE_OVER: Duration = Duration::from_secs(10);
/// Time over which the time to the first byte is averaged.
const LATENCY_OVER: Duration = Duration::from_secs(60);
/// Maximum number of samples: one per second of the longer time, and the one in front of it.
const MAX_SAMPLES: usize = 61;

/// Samples of the last minute.
#[derive(Debug, Default)]
pub(super) struct Averages {
    server: VecDeque<(Instant, u64)>,
    backends: HashMap<BackendId, VecDeque<(Instant, TrafficTotals)>>,
}

/// Rates of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BackendRates {
    pub(super) prompt_per_s: f64,
    pub(super) completion_per_s: f64,
    /// Average time until a response began in the last minute, in milliseconds; `None` without responses.
    pub(super) first_byte_ms: Option<f64>,
}

impl Averages {
    /// Adds a sample of all counters. Tokens of requests in flight count too: a stream may take minutes.
    pub(super) fn sample(&mut self, sources: &Sources, now: Instant) {
        push(&mut self.server, now, sources.requests.total());
        let list = sources.meter.in_flight();
        let live = list
            .map(|list| list.tokens_by_backend())
            .unwrap_or_default();
        let table = sources.pool.table();
        let is_known = |id: &BackendId| table.backends.iter().any(|one| one.id == *id);
        if self.backends.len() > table.backends.len() {
            self.backends.retain(|id, _| is_known(id));
        }
        for backend in &table.backends {
            let mut totals = backend.traffic.totals();
            if let Some((prompt, completion)) = live.get(&backend.id) {
                totals.prompt += prompt;
                totals.completion += completion;
            }
            push(self.backends.entry(backend.id).or_default(), now, totals);
        }
    }

    /// Requests per second.
    pub(super) fn requests_per_s(&self) -> f64 {
        rate(&self.server, |total| *total)
    }

    pub(super) fn of(&self, backend: BackendId) -> BackendRates {
        let Some(samples) = self.backends.get(&backend) else {
            return BackendRates::default();
        };
        BackendRates {
            prompt_per_s: rate(samples, |totals| totals.prompt),
            completion_per_s: rate(samples, |totals| totals.completion),
            first_byte_ms: first_byte_ms(samples),
        }
    }
}

fn push<T>(samples: &mut VecDeque<(Instant, T)>, now: Instant, value: T) {
    if samples.len() == MAX_SAMPLES {
        samples.pop_front();
    }
    samples.push_back((now, value));
}

/// Returns the newest sample, and the one in front of this span of time, or else the oldest.
fn ends<T>(samples: &VecDeque<(Instant, T)>, span: Duration) -> Option<[&(Instant, T); 2]> {
    let last = samples.back()?;
    let is_older = |sample: &&(Instant, T)| last.0.duration_since(sample.0) >= span;
    let first = samples.iter().rev().find(is_older);
    Some([first.or(samples.front())?, last])
}

/// Returns the growth of a counter per second. A sum with requests in flight can become smaller, when an
/// estimate is replaced by a figure of the backend.
fn rate<T>(samples: &VecDeque<(Instant, T)>, value: impl Fn(&T) -> u64) -> f64 {
    let Some([(start, first), (end, last)]) = ends(samples, RATE_OVER) else {
        return 0.0;
    };
    let seconds = end.duration_since(*start).as_secs_f64();
    if seconds == 0.0 {
        return 0.0;
    }
    float(value(last).saturating_sub(value(first))) / seconds
}

fn first_byte_ms(samples: &VecDeque<(Instant, TrafficTotals)>) -> Option<f64> {
    let [(_, first), (_, last)] = ends(samples, LATENCY_OVER)?;
    let count = last.first_bytes.saturating_sub(first.first_bytes);
    let us = last.first_byte_us.saturating_sub(first.first_byte_us);
    (count > 0).then(|| float(us) / float(count) / 1000.0)
}

#[expect(clippy::cast_precision_loss, reason = "averages are rounded anyway")]
fn float(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[u64]) -> VecDeque<(Instant, u64)> {
        let start = Instant::now();
        let mut samples = VecDeque::new();
        for (second, value) in (0..).zip(values) {
            push(&mut samples, start + Duration::from_secs(second), *value);
        }
        samples
    }

    #[test]
    fn rate_is_that_of_the_last_ten_seconds() {
        let rate_of = |values: &[u64]| rate(&samples(values), |total| *total).to_string();
        assert_eq!(rate_of(&[]), "0");
        assert_eq!(rate_of(&[7]), "0");
        assert_eq!(rate_of(&[0, 4]), "4");
        let growth_at = |at: u64| -> Vec<u64> {
            let value = |second| if second < at { 0 } else { 30 };
            (0..100).map(value).collect()
        };
        assert_eq!(rate_of(&growth_at(95)), "3");
        assert_eq!(rate_of(&growth_at(80)), "0");
        assert_eq!(rate_of(&[9, 2]), "0", "a sum that became smaller");
    }

    #[test]
    fn first_byte_is_averaged_over_the_responses_of_the_last_minute() {
        let totals = |first_bytes, first_byte_us| TrafficTotals {
            first_bytes,
            first_byte_us,
            ..TrafficTotals::default()
        };
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut samples = VecDeque::new();
        push(&mut samples, at(0), totals(1, 9_000_000));
        assert_eq!(first_byte_ms(&samples), None);
        push(&mut samples, at(1), totals(3, 9_300_000));
        assert_eq!(first_byte_ms(&samples), Some(150.0));
        for second in 2..200 {
            push(&mut samples, at(second), totals(3, 9_300_000));
        }
        assert_eq!(first_byte_ms(&samples), None);
    }
}
