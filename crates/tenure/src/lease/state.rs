//! The deadline of a lease, shared by its owner, its renewal thread and every check for a loss.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::clock;

/// Value of the field `deadline` after the lease is lost. A lost lease never becomes valid again.
const LOST: u64 = 0;

/// State of a lease that its owner shares between threads: until when it is valid, and whether a
/// stop was requested.
///
/// ```no_run
/// use std::time::Duration;
/// use tenure::{Key, Store};
///
/// let store = Store::connect("redis://127.0.0.1:6379")?;
/// let tenure = store.claim(&Key::name("import")?).ttl(Duration::from_secs(10)).try_acquire()?;
/// let state = tenure.lease_state().expect("the store has leases");
/// while !state.is_lost() {
///     // write the next part, with tenure.token()
/// #   break;
/// }
/// # Ok::<(), tenure::Error>(())
/// ```
#[derive(Clone)]
pub struct LeaseState(Arc<Shared>);

struct Shared {
    /// Nanoseconds of the boot clock at which the lease counts as lost, or [`LOST`].
    deadline: AtomicU64,
    stop_requested: AtomicBool,
    /// Mutex without data, for the condition variable. `deadline` and `stop_requested` are changed
    /// only while it is locked, so that a thread that is about to wait does not miss a change.
    changes: Mutex<()>,
    changed: Condvar,
}

impl LeaseState {
    /// State of a lease that was requested at `sent` on the boot clock.
    pub(super) fn new(sent: Duration, ttl: Duration) -> Self {
        Self(Arc::new(Shared {
            deadline: AtomicU64::new(nanos(deadline(sent, ttl))),
            stop_requested: AtomicBool::new(false),
            changes: Mutex::new(()),
            changed: Condvar::new(),
        }))
    }

    /// True if the lease can have passed to another owner: it was not renewed in time, the store
    /// refused to renew it, or it was released. Once true, it stays true.
    ///
    /// The check costs one reading of a clock that also counts while the machine is suspended.
    pub fn is_lost(&self) -> bool {
        self.deadline().is_none()
    }

    /// Returns the time from which the lease counts as lost, on the clock of
    /// [`boot_time`](crate::boot_time). `None` if it is lost already.
    pub fn deadline(&self) -> Option<Duration> {
        loop {
            let deadline = self.0.deadline.load(Ordering::Acquire);
            if deadline == LOST {
                return None;
            }
            if nanos(clock::boot_time()) < deadline {
                return Some(Duration::from_nanos(deadline));
            }
            // The loss is stored for all threads before it is reported, so that a renewal that is
            // processed later cannot make the lease valid again. If the exchange fails, another
            // thread has just renewed the lease or marked it as lost.
            let lost = self.0.deadline.compare_exchange(
                deadline,
                LOST,
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            if lost.is_ok() {
                self.notify();
                return None;
            }
        }
    }

    /// True if `stop` has asked this owner to release the key.
    pub fn is_stop_requested(&self) -> bool {
        self.0.stop_requested.load(Ordering::Acquire)
    }

    /// Waits until the deadline differs from `known`, the lease is lost, or a stop is requested.
    /// Returns after `limit` at the latest.
    pub fn wait_for_change(&self, known: Option<Duration>, limit: Duration) {
        let end = Instant::now().checked_add(limit);
        let mut changes = self.lock();
        loop {
            let now = self.deadline_or_expiry();
            if now != known || self.is_stop_requested() {
                return;
            }
            let left = end.map_or(Duration::MAX, |end| {
                end.saturating_duration_since(Instant::now())
            });
            let valid = now.map_or(Duration::MAX, |deadline| {
                deadline.saturating_sub(clock::boot_time())
            });
            if left.is_zero() {
                return;
            }
            // A condition variable does not count the time in which the machine is suspended. The
            // wait is therefore divided into short parts, so that a loss during suspension is
            // noticed soon after the machine resumes.
            let slice = left.min(valid).min(Duration::from_millis(500));
            changes = self
                .0
                .changed
                .wait_timeout(changes, slice)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Returns the deadline, or `None` if the lease is lost or has expired. Unlike
    /// [`deadline`](Self::deadline) it does not mark an expired lease as lost, because that would
    /// lock the mutex `changes`, which the caller has locked.
    fn deadline_or_expiry(&self) -> Option<Duration> {
        let deadline = self.0.deadline.load(Ordering::Acquire);
        (deadline != LOST && nanos(clock::boot_time()) < deadline)
            .then(|| Duration::from_nanos(deadline))
    }

    /// Extends the lease after a renewal that was requested at `sent`. Returns false if the lease
    /// was lost meanwhile; it then stays lost.
    pub(super) fn extend(&self, sent: Duration, ttl: Duration) -> bool {
        let Some(before) = self.deadline() else {
            return false;
        };
        let new = nanos(deadline(sent, ttl)).max(nanos(before));
        let extended = self.0.deadline.compare_exchange(
            nanos(before),
            new,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        self.notify();
        extended.is_ok() && !self.is_lost()
    }

    pub(super) fn mark_lost(&self) {
        self.0.deadline.store(LOST, Ordering::Release);
        self.notify();
    }

    pub(super) fn request_stop(&self) {
        self.0.stop_requested.store(true, Ordering::Release);
        self.notify();
    }

    fn notify(&self) {
        drop(self.lock());
        self.0.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.0
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for LeaseState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseState")
            .field("deadline", &self.0.deadline)
            .field("stop_requested", &self.0.stop_requested)
            .finish()
    }
}

/// Returns the time from which the owner of a lease that was requested at `sent` considers it lost.
/// The store starts to count the TTL later, when the request arrives, so the owner always stops
/// first.
fn deadline(sent: Duration, ttl: Duration) -> Duration {
    sent + ttl.saturating_sub(margin(ttl))
}

/// Returns the part of the TTL by which the owner considers the lease lost earlier than the store.
/// It covers clocks that run at different speeds, and the time to stop work in progress.
fn margin(ttl: Duration) -> Duration {
    (ttl / 10).clamp(Duration::from_millis(100), Duration::from_secs(2))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    #[test]
    fn deadline_counts_from_the_request_and_keeps_a_margin() {
        let sent = Duration::from_secs(100);
        assert_eq!(deadline(sent, TTL), Duration::from_secs(109));
        let short = Duration::from_secs(1);
        assert_eq!(deadline(sent, short), Duration::from_millis(100_900));
        let long = Duration::from_secs(600);
        assert_eq!(deadline(sent, long), Duration::from_secs(698));
    }

    #[test]
    fn lease_is_lost_once_its_deadline_has_passed_and_stays_lost() {
        let now = clock::boot_time();
        let state = LeaseState::new(now.saturating_sub(TTL), TTL);
        assert!(state.is_lost());
        assert!(!state.extend(clock::boot_time(), TTL), "a late renewal");
        assert!(state.is_lost());
        assert_eq!(state.deadline(), None);
    }

    #[test]
    fn renewal_in_time_moves_the_deadline() {
        let start = clock::boot_time();
        let state = LeaseState::new(start, TTL);
        let before = state.deadline().unwrap();
        assert!(state.extend(start + Duration::from_secs(1), TTL));
        assert_eq!(state.deadline().unwrap(), before + Duration::from_secs(1));
        // A response to an older request arrives late and must not move the deadline back.
        assert!(state.extend(start, TTL));
        assert_eq!(state.deadline().unwrap(), before + Duration::from_secs(1));
    }

    #[test]
    fn renewal_whose_response_is_older_than_a_ttl_does_not_revive_the_lease() {
        let now = clock::boot_time();
        let state = LeaseState::new(now, Duration::from_secs(1));
        let old = now.saturating_sub(Duration::from_secs(20));
        assert!(state.extend(old, Duration::from_secs(1)));
        state.mark_lost();
        assert!(!state.extend(now, TTL));
    }

    #[test]
    fn waiting_thread_is_woken_by_a_stop_request_and_by_a_loss() {
        let state = LeaseState::new(clock::boot_time(), TTL);
        let known = state.deadline();
        let other = state.clone();
        let waiting = std::thread::spawn(move || {
            other.wait_for_change(known, Duration::from_secs(60));
            (other.is_stop_requested(), other.is_lost())
        });
        state.request_stop();
        assert_eq!(waiting.join().unwrap(), (true, false));

        let state = LeaseState::new(clock::boot_time(), TTL);
        let known = state.deadline();
        let other = state.clone();
        let waiting = std::thread::spawn(move || {
            other.wait_for_change(known, Duration::from_secs(60));
            other.is_lost()
        });
        state.mark_lost();
        assert!(waiting.join().unwrap());
    }
}
