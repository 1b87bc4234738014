//! Stop requests on systems without signals (Windows), and to owners of leases on any machine.

use std::time::{Duration, Instant};

use crate::error::Error;
use crate::lease::{LeaseState, STOP_EVENT};
use crate::sys;
use crate::tenure::Tenure;

/// Notification of an owner that `stop` wants it to exit.
///
/// In a lease store, `stop` stores a request next to the lease, which its owner reads when it renews
/// the lease. An owner that does not call [`Tenure::stop_request`] accepts no such requests.
///
/// In a store of lock files this is an event that [`Stop`](crate::Stop) sets on Windows. On other
/// systems `stop` sends SIGTERM, which the program handles like any other SIGTERM; a `StopRequest`
/// never reports anything there.
///
/// ```
/// use std::time::Duration;
/// use tenure::{Key, Store};
///
/// let dir = tempfile::tempdir()?;
/// let mut tenure = Store::in_dir(dir.path()).claim(&Key::port(8080)).try_acquire()?;
/// let request = tenure.stop_request()?;
/// assert!(!request.wait(Duration::from_millis(1)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StopRequest(Source);

#[derive(Debug)]
enum Source {
    Event(sys::signal::StopEvent),
    Lease(LeaseState),
}

impl Tenure {
    /// Creates the stop event of this owner and names it in the lock record, so that `stop` can
    /// find it.
    pub fn stop_request(&mut self) -> Result<StopRequest, Error> {
        if let Some(state) = self.lease_state() {
            self.announce_stop_event(STOP_EVENT.to_owned())?;
            return Ok(StopRequest(Source::Lease(state)));
        }
        let event = sys::signal::StopEvent::create(self.token()).map_err(|error| {
            let act =
                "create the event with which `stop` asks the owner to exit, for the lock file";
            Error::io(act, self.path(), error)
        })?;
        if let Some(name) = event.name() {
            self.announce_stop_event(name.to_owned())?;
        }
        Ok(StopRequest(Source::Event(event)))
    }
}

impl StopRequest {
    /// Waits for a stop request, for at most `limit`. Returns false if none arrived, and at once if
    /// the lease is lost.
    pub fn wait(&self, limit: Duration) -> bool {
        match &self.0 {
            Source::Event(event) => event.wait(limit),
            Source::Lease(state) => {
                let end = Instant::now().checked_add(limit);
                while !state.is_stop_requested() {
                    let left = end.map_or(Duration::MAX, |end| {
                        end.saturating_duration_since(Instant::now())
                    });
                    if left.is_zero() || state.is_lost() {
                        return false;
                    }
                    state.wait_for_change(state.deadline(), left);
                }
                true
            }
        }
    }
}
