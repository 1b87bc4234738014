//! Stop requests on systems without signals (Windows).

use std::time::Duration;

use crate::error::Error;
use crate::sys;
use crate::tenure::Tenure;

/// Notification of an owner that `stop` wants it to exit.
///
/// On Windows this is an event that [`Stop`](crate::Stop) sets. On other systems `stop` sends
/// SIGTERM, which the program handles like any other SIGTERM; a `StopRequest` never reports
/// anything there.
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
pub struct StopRequest(sys::signal::StopEvent);

impl Tenure {
    /// Creates the stop event of this owner and names it in the lock record, so that `stop` can
    /// find it.
    pub fn stop_request(&mut self) -> Result<StopRequest, Error> {
        let event = sys::signal::StopEvent::create(self.token()).map_err(|error| {
            let act =
                "create the event with which `stop` asks the owner to exit, for the lock file";
            Error::io(act, self.path(), error)
        })?;
        if let Some(name) = event.name() {
            self.announce_stop_event(name.to_owned())?;
        }
        Ok(StopRequest(event))
    }
}

impl StopRequest {
    /// Waits for a stop request, for at most `limit`. Returns false if none arrived.
    pub fn wait(&self, limit: Duration) -> bool {
        self.0.wait(limit)
    }
}
