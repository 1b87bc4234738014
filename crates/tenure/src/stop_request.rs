//! Being asked to stop where there are no signals.

use std::time::Duration;

use crate::error::Error;
use crate::guard::Tenure;
use crate::sys;

/// Tells an owner that somebody wants it to end.
///
/// On Windows this is an event that [`Stop`](crate::Stop) sets. Elsewhere `stop` sends SIGTERM,
/// which a program handles as it handles any other; there, this never reports anything.
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
    /// Prepares to be asked to stop. The record then names the event, so that `stop` can set it.
    pub fn stop_request(&mut self) -> Result<StopRequest, Error> {
        let event = sys::signal::StopEvent::create(self.token())
            .map_err(|error| Error::io("create the stop event of", self.path(), error))?;
        if let Some(name) = event.name() {
            self.announce_stop_event(name.to_owned())?;
        }
        Ok(StopRequest(event))
    }
}

impl StopRequest {
    /// Waits until somebody asks this owner to stop, for at most `limit`. `false`: nobody did.
    pub fn wait(&self, limit: Duration) -> bool {
        self.0.wait(limit)
    }
}
