//! Limit on connections to backends. Together with the limit on client connections it reserves file
//! descriptors for the server itself, such as those of staging.

use std::io;
use std::ops::{Deref, DerefMut};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{AddressLimit, IdlePool};
use crate::backend_id::BackendId;
use crate::descriptors::Division;
use crate::episode::{Episode, Event};
use crate::short_writes;

/// Counter and limit of the connections to all backends, in use or idle.
#[derive(Debug)]
pub(crate) struct BackendConnections {
    max: usize,
    open: AtomicUsize,
    /// Idle pools of the workers. At the limit, one of their connections is closed for a new one.
    idle: Mutex<Vec<Weak<IdlePool>>>,
    /// Permits for additional connections of probes, so that requests that use all connections
    /// cannot keep a backend from being probed.
    for_probes: Arc<Semaphore>,
    beyond_max: Episode,
}

/// Permission to open one connection to a backend. Dropping the permit lets another connection be
/// opened.
#[derive(Debug)]
pub(crate) struct Permit {
    /// Counter of connections to backends that dropping this permit lowers. `None` for a probe's
    /// connection beyond the limit, which is not counted.
    counted: Option<Arc<BackendConnections>>,
    _for_probe: Option<OwnedSemaphorePermit>,
}

impl BackendConnections {
    pub(crate) fn new(division: &Division) -> Self {
        Self {
            max: division.backend_connections,
            open: AtomicUsize::new(0),
            idle: Mutex::default(),
            for_probes: Arc::new(Semaphore::new(division.probes)),
            beyond_max: Episode::default(),
        }
    }

    /// Adds a worker's pool of idle connections, which are closed when the limit is reached.
    pub(crate) fn add_idle(&self, idle: &Arc<IdlePool>) {
        let mut all = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(Arc::downgrade(idle));
    }

    /// Acquires a permit to open a connection for a request. At the limit, an idle connection is
    /// closed first.
    pub(super) fn acquire(self: &Arc<Self>) -> Result<Permit, String> {
        self.try_acquire().ok_or_else(|| {
            self.log(self.beyond_max.occurred(Instant::now()));
            format!("all {} connections to backends are in use", self.max)
        })
    }

    /// Acquires a permit to open a connection for a probe. May wait for other probes, but not for
    /// requests.
    pub(super) async fn acquire_for_probe(self: &Arc<Self>) -> Result<Permit, String> {
        if let Some(permit) = self.try_acquire() {
            return Ok(permit);
        }
        let permit = Arc::clone(&self.for_probes).acquire_owned().await;
        let permit = permit.map_err(|error| error.to_string())?;
        Ok(Permit {
            counted: None,
            _for_probe: Some(permit),
        })
    }

    fn try_acquire(self: &Arc<Self>) -> Option<Permit> {
        let below = |open: usize| (open < self.max).then_some(open + 1);
        loop {
            let counted = (self.open).fetch_update(Ordering::Relaxed, Ordering::Relaxed, below);
            if counted.is_ok() {
                return Some(Permit {
                    counted: Some(Arc::clone(self)),
                    _for_probe: None,
                });
            }
            if !self.close_idle_connection() {
                return None;
            }
        }
    }

    fn close_idle_connection(&self) -> bool {
        self.idle_pools().iter().any(|idle| idle.close_one())
    }

    /// Closes the idle connections to a backend that a reload has removed.
    pub(crate) fn close_idle(&self, backend: BackendId) {
        for idle in self.idle_pools() {
            idle.close(backend);
        }
    }

    fn idle_pools(&self) -> Vec<Arc<IdlePool>> {
        let all = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Logs the end of a period in which requests were rejected because all connections to backends
    /// were in use. It is called periodically, because no event marks the end.
    pub(crate) fn check_end(&self) {
        self.log(self.beyond_max.check_end(Instant::now()));
    }

    fn log(&self, event: Option<Event>) {
        let max = self.max;
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "rejecting requests: all {max} connections to backends are in use; raise the limit \
                 of open files (ulimit -n, LimitNOFILE=) or lower server.max_connections"
            ),
            Some(Event::Continues { count, since }) => tracing::warn!(
                "still rejecting requests: all {max} connections to backends are in use; rejected \
                 {count} in {} s",
                since.as_secs()
            ),
            Some(Event::Ended { count, lasted }) => tracing::warn!(
                "no longer rejecting requests: connections to backends are free again; rejected \
                 {count} in {} s",
                lasted.as_secs()
            ),
        }
    }

    /// Returns the number of open connections, the maximum, and the number of requests that were rejected for
    /// want of a connection.
    pub(crate) fn counts(&self, address_limit: &AddressLimit) -> (usize, usize, u64) {
        let rejected = self.beyond_max.total() + address_limit.rejected();
        (self.open.load(Ordering::Relaxed), self.max, rejected)
    }

    /// Returns the object `backend_connections` of `/status` (docs/status-json.md).
    pub(crate) fn json(&self, address_limit: &AddressLimit) -> Value {
        json!({
            "open": self.open.load(Ordering::Relaxed),
            "max": self.max,
            "max_per_address": address_limit.max(),
            "rejected": self.beyond_max.total(),
            "rejected_per_address": address_limit.rejected(),
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(connections) = &self.counted {
            connections.open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A connection to a backend that counts towards the limit on backend connections until it is
/// closed.
#[derive(Debug)]
pub(crate) struct CountedStream {
    // Declared in front of the permit, because fields are dropped in this order: the connection
    // must be closed before its permit is released.
    stream: TcpStream,
    _permit: Permit,
}

impl CountedStream {
    pub(super) fn new(stream: TcpStream, permit: Permit) -> Self {
        Self {
            stream,
            _permit: permit,
        }
    }
}

impl Deref for CountedStream {
    type Target = TcpStream;

    fn deref(&self) -> &TcpStream {
        &self.stream
    }
}

impl DerefMut for CountedStream {
    fn deref_mut(&mut self) -> &mut TcpStream {
        &mut self.stream
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        short_writes::poll_write(Pin::new(&mut self.stream), cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
