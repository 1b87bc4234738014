//! The thread that renews a lease until it is released or lost.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::backend::{Backend, Grant, LeaseId, Renewed};
use super::state::LeaseState;
use crate::sys::clock;

/// Number of renewals in one TTL.
const RENEWALS_PER_TTL: u32 = 3;
/// Pause after the first failed renewal. The pause doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Handle of a renewal thread. Dropping it ends the thread after its present request.
#[derive(Debug)]
pub(super) struct Renewal {
    /// Dropping the sender wakes the thread.
    stop: Mutex<Option<Sender<()>>>,
}

impl Renewal {
    pub(super) fn start(
        backend: Arc<dyn Backend>,
        id: Arc<LeaseId>,
        grant: Grant,
        state: LeaseState,
        url: Arc<str>,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let pauses = move |pause| stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout);
        thread::Builder::new()
            .name("tenure-renew".to_owned())
            .spawn(move || {
                let worker = Worker {
                    backend: &*backend,
                    id: &id,
                    grant: &grant,
                    state: &state,
                    url: &url,
                };
                worker.run(pauses);
            })?;
        Ok(Self {
            stop: Mutex::new(Some(stop)),
        })
    }

    /// Ends the thread. A request in progress is harmless, because the store compares the owner.
    pub(super) fn stop(&self) {
        self.stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }
}

struct Worker<'a> {
    backend: &'a dyn Backend,
    id: &'a LeaseId,
    grant: &'a Grant,
    state: &'a LeaseState,
    url: &'a str,
}

impl Worker<'_> {
    /// Renews the lease until `pause` returns false or the lease is lost.
    fn run(&self, pause: impl Fn(Duration) -> bool) {
        let interval = self.id.ttl / RENEWALS_PER_TTL;
        let mut wait = interval;
        let mut retry = FIRST_RETRY;
        let mut failing = false;
        while pause(wait) {
            let Some(deadline) = self.state.deadline() else {
                self.report_loss("it was not renewed in time");
                return;
            };
            let sent = clock::boot_time();
            // A response after the deadline is of no use.
            let limit = deadline
                .saturating_sub(sent)
                .min(self.id.request_timeout())
                .max(Duration::from_millis(1));
            match self.backend.renew(self.id, self.grant, limit) {
                Ok(Renewed::Extended { stop_requested }) => {
                    if stop_requested {
                        self.state.request_stop();
                    }
                    if !self.state.extend(sent, self.id.ttl) {
                        // A release marks the lease as lost too. It needs no report.
                        if pause(Duration::ZERO) {
                            self.end_late_lease();
                        }
                        return;
                    }
                    if failing {
                        tracing::info!(store = self.url, key = self.id.key, "lease renewed again");
                        failing = false;
                    }
                    // Counted from the request, so that slow responses do not delay the next one.
                    wait = (sent + interval).saturating_sub(clock::boot_time());
                    retry = FIRST_RETRY;
                }
                Ok(Renewed::NotOwner) => {
                    self.state.mark_lost();
                    if pause(Duration::ZERO) {
                        self.report_loss("the store no longer has it, or another owner has it");
                    }
                    return;
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(
                            store = self.url,
                            key = self.id.key,
                            error = error.why,
                            "the lease could not be renewed; trying again until it expires"
                        );
                        failing = true;
                    }
                    wait = retry;
                    retry = (retry * 2).min(interval);
                }
            }
        }
    }

    /// The store extended a lease that this process already considers lost. Ends it in the store, so
    /// that other processes need not wait for its expiry.
    fn end_late_lease(&self) {
        self.report_loss("the response to its renewal arrived too late");
        if let Err(error) = self.backend.release(self.id, self.id.request_timeout()) {
            tracing::debug!(
                store = self.url,
                key = self.id.key,
                error = error.why,
                "a lost lease was not released; it expires by itself"
            );
        }
    }

    fn report_loss(&self, why: &str) {
        tracing::warn!(
            store = self.url,
            key = self.id.key,
            token = self.grant.token,
            why,
            "the lease is lost"
        );
    }
}
