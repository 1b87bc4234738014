//! Health of a backend, as requests and probes show it.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use http::StatusCode;
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(crate) struct BackendHealth {
    /// True if the backend accepts connections but does not respond. Requests that wait for its
    /// response are then retried on another backend.
    is_hung: AtomicBool,
    /// True if the backend is down because it refused a connection. A request still tries such a
    /// backend if no other backend is left: the backend may be up again, and if it is not, the
    /// attempt fails at once.
    refuses_connections: AtomicBool,
    /// HTTP status with which the backend rejected our key in the last probe, or 0. While all
    /// backends of a model reject it, clients get an error about the key.
    rejected_key: AtomicU16,
    last_error: Mutex<Option<LastError>>,
    /// Number of responses to requests and probes. If the number has not changed since an attempt
    /// started, a failure of that attempt may mean that the backend is down.
    responses: AtomicU64,
    /// True if the backend has sent bytes since the last call of [`BackendHealth::take_active`]. A
    /// probe that timed out then means that the backend is busy, not down.
    was_active: AtomicBool,
    /// Signal that wakes the backend's probe loop, which then probes soon instead of after its
    /// interval.
    pub(crate) recheck: Notify,
}

/// Last failed request of a backend, shown by `llmlb status`.
#[derive(Clone, Debug)]
pub(crate) struct LastError {
    /// HTTP status of the failed response, if there was one.
    pub(crate) status: Option<StatusCode>,
    pub(crate) error: String,
    pub(crate) at: SystemTime,
}

impl BackendHealth {
    pub(crate) fn responses(&self) -> u64 {
        self.responses.load(Ordering::Relaxed)
    }

    /// Counts a response of the backend to a request or probe, and marks the backend as active.
    pub(crate) fn note_response(&self) {
        self.responses.fetch_add(1, Ordering::Relaxed);
        self.mark_active();
    }

    /// Remembers that the backend has sent bytes. A probe that times out afterwards then means that
    /// the backend is busy, not down.
    pub(crate) fn mark_active(&self) {
        // Write the flag only if it changes: this function is called for every chunk, and a write
        // would invalidate the cache line of other threads.
        if !self.was_active.load(Ordering::Relaxed) {
            self.was_active.store(true, Ordering::Relaxed);
        }
    }

    /// Returns true if the backend has sent bytes since the last call, and resets the flag.
    pub(crate) fn take_active(&self) -> bool {
        self.was_active.swap(false, Ordering::Relaxed)
    }

    pub(crate) fn is_hung(&self) -> bool {
        self.is_hung.load(Ordering::Relaxed)
    }

    pub(crate) fn set_hung(&self, hung: bool) {
        self.is_hung.store(hung, Ordering::Relaxed);
    }

    pub(super) fn refuses_connections(&self) -> bool {
        self.refuses_connections.load(Ordering::Relaxed)
    }

    pub(super) fn set_refuses_connections(&self, refuses: bool) {
        self.refuses_connections.store(refuses, Ordering::Relaxed);
    }

    /// Returns the status with which the backend rejected our key in the last probe, if the backend
    /// is down for this reason; `None` otherwise.
    pub(crate) fn rejected_key(&self) -> Option<StatusCode> {
        StatusCode::from_u16(self.rejected_key.load(Ordering::Relaxed)).ok()
    }

    /// Notes whether the last probe of the backend was rejected because of our key.
    pub(crate) fn set_rejected_key(&self, status: Option<StatusCode>) {
        let status = status.map_or(0, |status| status.as_u16());
        self.rejected_key.store(status, Ordering::Relaxed);
    }

    /// Notes a failed request, which `llmlb status` shows as the backend's last error.
    pub(crate) fn note_error(&self, status: Option<StatusCode>, error: &str) {
        let last = LastError {
            status,
            error: error.to_owned(),
            at: SystemTime::now(),
        };
        let mut last_error = self
            .last_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *last_error = Some(last);
    }

    pub(crate) fn last_error(&self) -> Option<LastError> {
        let last = self.last_error.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }
}
