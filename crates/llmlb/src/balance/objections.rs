//! The models for which a backend is not asked for the usage of a stream, because it rejects the
//! question or answers it where it cannot be kept from the client.
//!
//! A backend may be many programs behind one address, and any of them may be replaced. So this is
//! known of one model at a time, and forgotten after a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::clock::Moment;

/// How long it is remembered.
const REMEMBERED: Duration = Duration::from_secs(60 * 60);
/// How many models are. Clients choose names where a backend takes any.
const MOST: usize = 256;

#[derive(Debug, Default)]
pub(super) struct Objections {
    /// There are some. Most backends have none, and nobody waits to learn that.
    any: AtomicBool,
    models: Mutex<Vec<Objection>>,
}

#[derive(Debug)]
struct Objection {
    model: String,
    until: Moment,
}

impl Objections {
    /// Whether there is one for this model.
    pub(super) fn has(&self, model: &str, now: impl Fn() -> Moment) -> bool {
        self.any.load(Ordering::Relaxed)
            && (self.lock().iter()).any(|one| one.model == model && now() < one.until)
    }

    /// Takes note of one. Whether it is news: one that was forgotten is none.
    pub(super) fn note(&self, model: &str, now: Moment) -> bool {
        let until = now.plus(REMEMBERED);
        let mut models = self.lock();
        if let Some(known) = models.iter_mut().find(|one| one.model == model) {
            known.until = until;
            self.any.store(true, Ordering::Relaxed);
            return false;
        }
        if models.len() >= MOST {
            models.remove(0);
        }
        let model = model.to_owned();
        models.push(Objection { model, until });
        self.any.store(true, Ordering::Relaxed);
        true
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        let mut models = self.lock();
        models.clear();
        self.any.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Objection>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_objection_is_of_one_model_and_is_forgotten() {
        let (objections, now) = (Objections::default(), Moment(7));
        let has = |model, at| objections.has(model, || at);
        assert!(!has("m", now));
        assert!(objections.note("m", now));
        assert!(has("m", now) && !has("n", now));
        let later = now.plus(REMEMBERED);
        assert!(has("m", Moment(later.0 - 1)));
        assert!(!has("m", later));
        // It is the same again.
        assert!(!objections.note("m", later));
        assert!(has("m", later));
        objections.clear();
        assert!(!has("m", later));
        assert!(objections.note("m", later));
    }

    #[test]
    fn not_all_names_are_remembered() {
        let (objections, now) = (Objections::default(), Moment(7));
        for number in 0..2 * MOST {
            assert!(objections.note(&number.to_string(), now));
        }
        assert_eq!(objections.lock().len(), MOST);
        assert!(!objections.has("0", || now) && objections.has("511", || now));
    }
}
