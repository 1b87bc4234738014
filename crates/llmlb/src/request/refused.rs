//! Counts of requests that were rejected because their API keys do not permit them. They have no
//! usage records, since clients can send any number of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Counts of rejected requests by error code, for `/status`.
#[derive(Debug, Default)]
pub(crate) struct RefusedRequests(Mutex<BTreeMap<&'static str, u64>>);

impl RefusedRequests {
    pub(super) fn count(&self, code: &'static str) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(code).or_default() += 1;
    }

    pub(crate) fn report(&self) -> BTreeMap<&'static str, u64> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.clone()
    }
}
