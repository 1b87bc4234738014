//! Output tokens that a request may generate if it does not limit them: learned for each model.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use foldhash::fast::RandomState;

/// Number of tokens that are reserved for a response of a model whose responses are not learned
/// yet.
const UNLEARNED: u64 = 4096;
/// Number of complete responses from which the 95th percentile of a model is used. Fewer would not
/// be representative.
const MIN_SAMPLES: u32 = 20;
/// Number of responses after which older responses count half, so that the figure follows changes.
const MAX_SAMPLES: u32 = 2000;
/// Maximum number of models whose output is learned. Only names that a backend serves are learned.
const MAX_MODELS: usize = 4096;
/// Number of buckets of the histogram of response lengths: four for each power of two, up to 2^16.
const BUCKETS: usize = 64;

/// Learned numbers of output tokens, by model.
#[derive(Debug, Default)]
pub(super) struct OutputLengths(RwLock<HashMap<Box<str>, Arc<OutputLength>, RandomState>>);

/// Learned number of output tokens of one model.
#[derive(Debug)]
struct OutputLength {
    /// Number of tokens to reserve for a response: the 95th percentile of the complete responses,
    /// or [`UNLEARNED`].
    expected: AtomicU64,
    histogram: Mutex<Histogram>,
}

#[derive(Debug)]
struct Histogram {
    counts: [u32; BUCKETS],
    total: u32,
}

impl OutputLengths {
    /// Returns the number of output tokens to reserve for a request that does not limit them.
    pub(super) fn expected(&self, model: Option<&str>) -> u64 {
        let models = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let learned = model.and_then(|model| models.get(model));
        learned.map_or(UNLEARNED, |one| one.expected.load(Ordering::Relaxed))
    }

    /// Adds the number of output tokens of a complete response to the histogram of its model.
    pub(super) fn learn(&self, model: &str, tokens: u64) {
        let models = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let found = models.get(model).map(Arc::clone);
        drop(models);
        let found = found.or_else(|| {
            let mut models = self.0.write().unwrap_or_else(PoisonError::into_inner);
            if models.len() >= MAX_MODELS && !models.contains_key(model) {
                return None;
            }
            Some(Arc::clone(models.entry(model.into()).or_default()))
        });
        if let Some(found) = found {
            found.add(tokens);
        }
    }
}

impl Default for OutputLength {
    fn default() -> Self {
        Self {
            expected: AtomicU64::new(UNLEARNED),
            histogram: Mutex::new(Histogram {
                counts: [0; BUCKETS],
                total: 0,
            }),
        }
    }
}

impl OutputLength {
    fn add(&self, tokens: u64) {
        let mut histogram = self
            .histogram
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        histogram.add(tokens);
        if let Some(expected) = histogram.percentile_95() {
            self.expected.store(expected, Ordering::Relaxed);
        }
    }
}

impl Histogram {
    fn add(&mut self, tokens: u64) {
        self.counts[bucket_of(tokens)] += 1;
        self.total += 1;
        if self.total >= MAX_SAMPLES {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().sum();
        }
    }

    /// Returns the upper end of the bucket with the 95th percentile; `None` if there are too few
    /// samples.
    fn percentile_95(&self) -> Option<u64> {
        if self.total < MIN_SAMPLES {
            return None;
        }
        let above = self.total / 20;
        let mut left = 0;
        for (bucket, count) in self.counts.iter().enumerate().rev() {
            left += count;
            if left > above {
                return Some(end_of(bucket));
            }
        }
        None
    }
}

/// Returns the bucket of a number of tokens: there are four buckets for each power of two.
fn bucket_of(tokens: u64) -> usize {
    let tokens = tokens.max(1);
    let log = tokens.ilog2();
    let quarter = if log >= 2 {
        (tokens >> (log - 2)) & 3
    } else {
        (tokens << (2 - log)) & 3
    };
    let bucket = u64::from(log) * 4 + quarter;
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// Returns the largest number of tokens that belongs to a bucket.
fn end_of(bucket: usize) -> u64 {
    let (log, quarter) = (bucket / 4, bucket as u64 % 4);
    if log >= 2 {
        ((5 + quarter) << (log - 2)) - 1
    } else {
        (5 + quarter) >> (2 - log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_has_its_numbers() {
        for tokens in 1..65_536 {
            let bucket = bucket_of(tokens);
            assert!(end_of(bucket) >= tokens, "{tokens} in {bucket}");
            assert!(end_of(bucket) <= tokens + tokens / 4 + 1, "{tokens}");
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        assert_eq!(bucket_of(0), 0);
    }

    #[test]
    fn percentile_is_learned_from_responses() {
        let lengths = OutputLengths::default();
        for _ in 0..MIN_SAMPLES - 1 {
            lengths.learn("m", 100);
        }
        assert_eq!(lengths.expected(Some("m")), UNLEARNED);
        for number in 0..1000 {
            lengths.learn("m", if number % 10 == 0 { 900 } else { 100 });
        }
        let expected = lengths.expected(Some("m"));
        assert!((900..=1125).contains(&expected), "{expected}");
        for _ in 0..3 * MAX_SAMPLES {
            lengths.learn("m", 10);
        }
        assert!(lengths.expected(Some("m")) < 16);
        assert_eq!(lengths.expected(Some("other")), UNLEARNED);
        assert_eq!(lengths.expected(None), UNLEARNED);
    }

    #[test]
    fn number_of_models_is_bounded() {
        let lengths = OutputLengths::default();
        for number in 0..MAX_MODELS + 10 {
            lengths.learn(&number.to_string(), 1);
        }
        assert_eq!(lengths.0.read().unwrap().len(), MAX_MODELS);
    }
}
