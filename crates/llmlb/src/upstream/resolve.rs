//! DNS lookups of backends. A lookup uses a thread and file descriptors even after its caller was
//! cancelled. So there is one lookup per name at a time, whose result all callers share, and a
//! limit on all lookups.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::sync::{Mutex as AsyncMutex, Semaphore};
use tokio::task::spawn_blocking;

use crate::descriptors::Division;

#[derive(Debug)]
pub(super) struct Resolver {
    /// Last result for each name, locked during a lookup. The map is bounded by the configured backends.
    names: Mutex<HashMap<String, Arc<AsyncMutex<Option<LookupResult>>>>>,
    lookups: Arc<Semaphore>,
}

#[derive(Debug)]
struct LookupResult {
    at: Instant,
    addresses: Result<Vec<SocketAddr>, LookupError>,
}

/// Error of a lookup that several callers share: `io::Error` cannot be cloned, so each caller gets
/// one made from it.
#[derive(Debug)]
struct LookupError {
    os_error: Option<i32>,
    kind: io::ErrorKind,
    why: String,
}

impl LookupError {
    fn new(error: &io::Error) -> Self {
        Self {
            os_error: error.raw_os_error(),
            kind: error.kind(),
            why: error.to_string(),
        }
    }

    fn to_error(&self) -> io::Error {
        match self.os_error {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(self.kind, self.why.clone()),
        }
    }
}

impl Resolver {
    pub(super) fn new(division: &Division) -> Self {
        Self {
            names: Mutex::default(),
            lookups: Arc::new(Semaphore::new(division.lookups)),
        }
    }

    /// Returns the addresses of a host name, with this port. Callers that wait for the same lookup
    /// share its result. A result from before the call is not used, because the addresses may have
    /// changed.
    pub(super) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let called = Instant::now();
        let name = self.name(host);
        let mut found = Arc::clone(&name).lock_owned().await;
        if found.as_ref().is_none_or(|found| found.at < called) {
            let lookup = Arc::clone(&self.lookups).acquire_owned().await;
            let lookup = lookup.map_err(io::Error::other)?;
            let host = host.to_owned();
            // The lookup continues in its thread even if this future is dropped. So the lock of the
            // name and the permit of the lookup move into the thread, and are held until the lookup
            // ends.
            found = spawn_blocking(move || {
                let addresses = (host.as_str(), 0).to_socket_addrs();
                *found = Some(LookupResult {
                    at: Instant::now(),
                    addresses: addresses
                        .map(Iterator::collect)
                        .map_err(|error| LookupError::new(&error)),
                });
                drop(lookup);
                found
            })
            .await?;
        }
        match found.as_ref().map(|found| &found.addresses) {
            Some(Ok(addresses)) => {
                let mut addresses = addresses.clone();
                for address in &mut addresses {
                    address.set_port(port);
                }
                Ok(addresses)
            }
            Some(Err(failure)) => Err(failure.to_error()),
            None => Err(io::Error::other(
                "the DNS lookup of the host name ended without a result",
            )),
        }
    }

    fn name(&self, host: &str) -> Arc<AsyncMutex<Option<LookupResult>>> {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        match names.get(host) {
            Some(name) => Arc::clone(name),
            None => Arc::clone(names.entry(host.to_owned()).or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver() -> Resolver {
        Resolver::new(&Division {
            connections: 1,
            per_address: 1,
            backend_connections: 1,
            probes: 1,
            lookups: 1,
        })
    }

    #[tokio::test]
    async fn callers_share_a_running_lookup_and_never_an_older_result() {
        let resolver = resolver();
        let first = resolver.lookup("localhost", 80).await.unwrap();
        assert!(first.iter().all(|one| one.ip().is_loopback()));
        assert!(first.iter().all(|one| one.port() == 80));
        let name = resolver.name("localhost");
        let before = name.lock().await.as_ref().unwrap().at;
        // Two callers that wait while a third one holds the lock must share the next lookup.
        let held = name.lock().await;
        let two = async {
            tokio::join!(
                resolver.lookup("localhost", 1),
                resolver.lookup("localhost", 2)
            )
        };
        let release = async {
            tokio::task::yield_now().await;
            drop(held);
        };
        let ((one, two), ()) = tokio::join!(two, release);
        assert_eq!(one.unwrap()[0].port(), 1);
        assert_eq!(two.unwrap()[0].port(), 2);
        assert!(name.lock().await.as_ref().unwrap().at > before);
    }

    #[tokio::test]
    async fn lookup_of_an_unknown_name_fails() {
        let resolver = resolver();
        assert!(resolver.lookup("no-such-host.invalid", 80).await.is_err());
        assert!(resolver.lookup("localhost", 80).await.is_ok());
    }
}
