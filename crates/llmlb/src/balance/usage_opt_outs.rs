//! Models of a backend for which `stream_options.include_usage` is not added, because the backend
//! rejects it or reports usage where it cannot be hidden from the client.
//!
//! Each such model has an entry, an opt-out. Several programs may serve one address, and each can
//! be replaced. So an opt-out applies to one model and expires.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::Moment;

/// Time after which `include_usage` is added again for a model (its opt-out expires), since the
/// program that serves the model may have been replaced.
const EXPIRES_AFTER: Duration = Duration::from_secs(60 * 60);
/// Maximum number of models with an opt-out. Some backends accept any model name, so clients could
/// otherwise fill the memory with invented names.
const MAX_MODELS: usize = 256;

/// Models of one backend for which `include_usage` is not added to requests. Each entry is an
/// opt-out, which expires.
#[derive(Debug, Default)]
pub(super) struct UsageOptOuts {
    /// Fast path: false while the list is empty, so the common case takes no lock.
    any: AtomicBool,
    models: Mutex<Vec<OptOut>>,
}

#[derive(Debug)]
struct OptOut {
    model: String,
    until: Moment,
}

impl UsageOptOuts {
    /// True if `include_usage` must not be added to requests for this model, because it has an
    /// opt-out that has not expired.
    pub(super) fn has(&self, model: &str, now: impl Fn() -> Moment) -> bool {
        self.any.load(Ordering::Relaxed)
            && (self.lock().iter()).any(|one| one.model == model && now() < one.until)
    }

    /// Adds or renews the opt-out of a model, so that `include_usage` is not added for it. True if
    /// the model had no opt-out, expired or not: only then does the caller log a warning.
    pub(super) fn note(&self, model: &str, now: Moment) -> bool {
        let until = now.plus(EXPIRES_AFTER);
        let mut models = self.lock();
        if let Some(known) = models.iter_mut().find(|one| one.model == model) {
            known.until = until;
            self.any.store(true, Ordering::Relaxed);
            return false;
        }
        if models.len() >= MAX_MODELS {
            models.remove(0);
        }
        let model = model.to_owned();
        models.push(OptOut { model, until });
        self.any.store(true, Ordering::Relaxed);
        true
    }

    /// Removes all opt-outs, because another program may run at the backend's address by now.
    pub(super) fn clear(&self) {
        let mut models = self.lock();
        models.clear();
        self.any.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OptOut>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opt_out_applies_to_one_model_and_expires() {
        let (usage_opt_outs, now) = (UsageOptOuts::default(), Moment(7));
        let has = |model, at| usage_opt_outs.has(model, || at);
        assert!(!has("m", now));
        assert!(usage_opt_outs.note("m", now));
        assert!(has("m", now) && !has("n", now));
        let later = now.plus(EXPIRES_AFTER);
        assert!(has("m", Moment(later.0 - 1)));
        assert!(!has("m", later));
        // Renewing an expired opt-out returns false: otherwise the same warning would be logged
        // every hour.
        assert!(!usage_opt_outs.note("m", later));
        assert!(has("m", later));
        usage_opt_outs.clear();
        assert!(!has("m", later));
        assert!(usage_opt_outs.note("m", later));
    }

    #[test]
    fn number_of_opt_outs_is_limited() {
        let (usage_opt_outs, now) = (UsageOptOuts::default(), Moment(7));
        for number in 0..2 * MAX_MODELS {
            assert!(usage_opt_outs.note(&number.to_string(), now));
        }
        assert_eq!(usage_opt_outs.lock().len(), MAX_MODELS);
        assert!(!usage_opt_outs.has("0", || now) && usage_opt_outs.has("511", || now));
    }
}
