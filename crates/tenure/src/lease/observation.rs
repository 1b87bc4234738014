//! Expiry of leases in a store that does not expire them by itself.
//!
//! Every renewal changes the version of a lease. A process that has seen the same version for one
//! whole TTL of the owner knows that the lease has expired. It compares times of its own boot clock
//! only, so that the clocks of two machines are never compared.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Maximum number of keys whose leases are observed at a time. It bounds the memory of a process
/// that inspects many keys.
const MAX_OBSERVED: usize = 1024;

/// The leases of other owners that this process has seen.
#[derive(Debug, Default)]
pub(super) struct Observations(Mutex<HashMap<String, Seen>>);

#[derive(Debug)]
struct Seen {
    owner: String,
    version: String,
    /// Time at which this process saw the current version of the lease for the first time. The
    /// lease expires one TTL later unless its version changes.
    first: Duration,
    /// Time at which this process saw the current version of the lease for the last time. If the
    /// version changes, the owner has renewed the lease after this time.
    last: Duration,
    /// Time after which the owner has certainly renewed or acquired the lease: the time at which
    /// this process saw the previous version for the last time.
    renewed_after: Option<Duration>,
}

/// State of a lease as far as this process can know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The owner has renewed the lease within its TTL.
    Valid {
        /// Time at which the lease expires unless the owner changes its version.
        expires_in: Duration,
    },
    /// The owner may have stopped renewing the lease before this process saw it first.
    Unknown { expires_in: Duration },
    /// The version has not changed for one TTL.
    Expired,
}

impl Observations {
    /// Records the version of a lease that a response has shown. `now` must be the time after the
    /// response arrived: the owner may have renewed the lease while the response was on its way.
    pub(super) fn observe(
        &self,
        key: &str,
        owner: &str,
        version: &str,
        ttl: Duration,
        now: Duration,
    ) -> Verdict {
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, renewed_after) = match observed.get(key) {
            Some(seen) if seen.owner == owner && seen.version == version => {
                (seen.first, seen.renewed_after)
            }
            Some(seen) => (now, Some(seen.last)),
            None => (now, None),
        };
        if observed.len() >= MAX_OBSERVED && !observed.contains_key(key) {
            let oldest = observed.iter().min_by_key(|(_, seen)| seen.last);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                observed.remove(&oldest);
            }
        }
        observed.insert(
            key.to_owned(),
            Seen {
                owner: owner.to_owned(),
                version: version.to_owned(),
                first,
                last: now,
                renewed_after,
            },
        );
        let expires_in = ttl.saturating_sub(now.saturating_sub(first));
        if expires_in.is_zero() {
            Verdict::Expired
        } else if renewed_after.is_some_and(|after| now.saturating_sub(after) <= ttl) {
            Verdict::Valid { expires_in }
        } else {
            Verdict::Unknown { expires_in }
        }
    }

    /// Forgets what was observed about a key that no other process owns any more.
    pub(super) fn forget(&self, key: &str) {
        let mut observed = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        observed.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn unchanged_version_expires_after_one_ttl() {
        let leases = Observations::default();
        let observe = |at| leases.observe("k", "a", "1", TTL, seconds(at));
        let unknown = |left| Verdict::Unknown {
            expires_in: seconds(left),
        };
        assert_eq!(observe(100), unknown(10));
        assert_eq!(observe(109), unknown(1));
        assert_eq!(observe(110), Verdict::Expired);
    }

    #[test]
    fn changed_version_proves_a_renewal_after_the_previous_look() {
        let leases = Observations::default();
        let observe = |version, at| leases.observe("k", "a", version, TTL, seconds(at));
        let valid = |left| Verdict::Valid {
            expires_in: seconds(left),
        };
        observe("1", 100);
        assert_eq!(observe("2", 104), valid(10));
        // The changed version proves a renewal after the time 100, so the lease with a TTL of 10 is
        // valid until 110 at least.
        assert_eq!(observe("2", 110), valid(4));
        assert_eq!(
            observe("2", 111),
            Verdict::Unknown {
                expires_in: seconds(3)
            }
        );
        assert_eq!(observe("2", 114), Verdict::Expired);
    }

    #[test]
    fn renewal_after_a_long_pause_proves_nothing() {
        let leases = Observations::default();
        leases.observe("k", "a", "1", TTL, seconds(100));
        let verdict = leases.observe("k", "b", "2", TTL, seconds(200));
        assert_eq!(verdict, Verdict::Unknown { expires_in: TTL });
    }

    #[test]
    fn number_of_observed_keys_is_bounded() {
        let leases = Observations::default();
        for key in 0..5000_u64 {
            leases.observe(&key.to_string(), "a", "1", TTL, seconds(key));
        }
        assert_eq!(leases.0.lock().unwrap().len(), MAX_OBSERVED);
        // The keys that were observed last are kept: the lease of key 4999 counts as expired, which
        // only an observed key can.
        let verdict = leases.observe("4999", "a", "1", TTL, seconds(6000));
        assert_eq!(verdict, Verdict::Expired);
    }
}
