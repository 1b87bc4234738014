//! Limits on client connections: in total, and for each address.
//!
//! A connection beyond a limit is accepted, gets an error response and is closed at once. In the
//! kernel's accept queue it would wait without an explanation.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use serde_json::{Value, json};
use socket2::SockRef;
use tokio::net::TcpStream;

use super::raw_response;
use crate::client_network::ClientNetwork;
use crate::config::{self, Networks};
use crate::descriptors::{Division, EXTRA_LOCAL};
use crate::episode::{Episode, Event};

/// Number of bytes that are read before a rejected connection is closed. If a socket is closed with unread
/// data, the kernel resets the connection and the client might not receive the response.
const READ_BEFORE_CLOSE: usize = 4 << 10;

/// TLS record with the fatal alert `internal_error`, which servers send for lack of resources (RFC 8446). A
/// client reports it as such, while it would report a response without TLS as an invalid one.
const TLS_ALERT: [u8; 7] = [21, 3, 3, 0, 2, 2, 80];

#[derive(Debug)]
pub(crate) struct ClientConnections {
    max: usize,
    max_per_address: usize,
    /// Trusted reverse proxies, which are exempt from the limit per address: their connections
    /// carry requests of many clients.
    proxies: ArcSwap<Networks>,
    open: AtomicUsize,
    /// Number of open connections of each client network. Exempt addresses are not in it.
    networks: Mutex<HashMap<ClientNetwork, usize>>,
    beyond_max: Episode,
    beyond_max_per_address: Episode,
    accept_failures: Episode,
    /// Error responses to rejected connections, indexed by [`Rejected`] and built in advance, so
    /// that a rejection costs little.
    responses: [String; 2],
}

/// Guard of an admitted connection, which counts towards the limits until the guard is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    connections: Arc<ClientConnections>,
    network: Option<ClientNetwork>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    Total = 0,
    PerAddress = 1,
}

impl ClientConnections {
    pub(crate) fn new(division: &Division, proxies: Networks) -> Self {
        let (max, max_per_address) = (division.connections, division.per_address);
        let total = format!("The server has {max} connections open (server.max_connections).");
        let per_address = format!(
            "This address has {max_per_address} connections open \
             (server.max_connections_per_address)."
        );
        Self {
            max,
            max_per_address,
            proxies: ArcSwap::from_pointee(proxies),
            open: AtomicUsize::new(0),
            networks: Mutex::default(),
            beyond_max: Episode::default(),
            beyond_max_per_address: Episode::default(),
            accept_failures: Episode::default(),
            responses: [
                response("503 Service Unavailable", "server_error", &total),
                response("429 Too Many Requests", "rate_limit_error", &per_address),
            ],
        }
    }

    /// Applies `server.trusted_proxies` of a reloaded configuration, whose addresses have no limit.
    pub(crate) fn set_proxies(&self, proxies: Networks) {
        self.proxies.store(Arc::new(proxies));
    }

    /// Admits a connection of this peer unless it exceeds a limit. Never waits, because all accepts
    /// of the worker would wait.
    pub(crate) fn admit(self: &Arc<Self>, peer: IpAddr) -> Result<Admitted, Rejected> {
        let extra = if config::is_loopback(peer) {
            EXTRA_LOCAL
        } else {
            0
        };
        let below = |open: usize| (open < self.max + extra).then_some(open + 1);
        (self.open)
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, below)
            .map_err(|_| Rejected::Total)?;
        // The connection is counted from here on. An early return drops `admitted`, which removes
        // it from the count.
        let mut admitted = Admitted {
            connections: Arc::clone(self),
            network: None,
        };
        if self.is_exempt(peer) {
            return Ok(admitted);
        }
        let network = ClientNetwork::containing(peer);
        {
            let mut networks = self.networks();
            let open = networks.entry(network).or_default();
            if *open < self.max_per_address {
                *open += 1;
                admitted.network = Some(network);
            }
        }
        match admitted.network {
            Some(_) => Ok(admitted),
            None => Err(Rejected::PerAddress),
        }
    }

    /// True for loopback addresses and trusted reverse proxies, which have no limit per address.
    fn is_exempt(&self, peer: IpAddr) -> bool {
        config::is_loopback(peer) || self.proxies.load().contains(peer)
    }

    /// Sends an error response on a rejected connection, or a TLS alert if the port serves https: a handshake
    /// would cost more than the rejection saves. Never waits: bytes that the socket does not accept at once
    /// are not sent.
    pub(crate) fn reject(
        &self,
        stream: &TcpStream,
        peer: IpAddr,
        rejected: Rejected,
        is_https: bool,
    ) {
        let now = Instant::now();
        match rejected {
            Rejected::Total => self.log_total(self.beyond_max.occurred(now)),
            Rejected::PerAddress => {
                let event = self.beyond_max_per_address.occurred(now);
                self.log_per_address(event, Some(ClientNetwork::containing(peer)));
            }
        }
        let socket = SockRef::from(stream);
        let mut unread = [std::mem::MaybeUninit::uninit(); READ_BEFORE_CLOSE];
        let _ = socket.recv(&mut unread);
        let response = if is_https {
            &TLS_ALERT[..]
        } else {
            self.responses[rejected as usize].as_bytes()
        };
        let _ = socket.send(response);
    }

    /// Logs that the kernel could not accept a connection. The limits reserve enough descriptors
    /// for clients, so the cause is a shortage of the whole system.
    pub(crate) fn accept_failed(&self, error: &io::Error) {
        log_accept_failure(self.accept_failures.occurred(Instant::now()), Some(error));
    }

    /// Logs the end of rejections and of failed accepts. The worker calls it periodically, because
    /// no event marks such an end.
    pub(crate) fn check_end(&self) {
        let now = Instant::now();
        log_accept_failure(self.accept_failures.check_end(now), None);
        self.log_total(self.beyond_max.check_end(now));
        self.log_per_address(self.beyond_max_per_address.check_end(now), None);
    }

    fn log_total(&self, event: Option<Event>) {
        let max = self.max;
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "rejecting connections: {max} are open, the limit (server.max_connections)"
            ),
            Some(Event::Continues { count, since }) => tracing::warn!(
                "still rejecting connections: the limit is {max} (server.max_connections); rejected \
                 {count} in {} s",
                since.as_secs()
            ),
            Some(Event::Ended { count, lasted }) => tracing::warn!(
                "no longer rejecting connections (server.max_connections); rejected {count} in {} s",
                lasted.as_secs()
            ),
        }
    }

    fn log_per_address(&self, event: Option<Event>, network: Option<ClientNetwork>) {
        let max = self.max_per_address;
        let from = network.map_or_else(String::new, |network| format!(" from {network}"));
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "rejecting connections{from}: the address has {max} open, the limit of one address \
                 (server.max_connections_per_address)"
            ),
            Some(Event::Continues { count, since }) => tracing::warn!(
                "still rejecting connections, now{from}: the limit of one address is {max} \
                 (server.max_connections_per_address); rejected {count} in {} s",
                since.as_secs()
            ),
            Some(Event::Ended { count, lasted }) => tracing::warn!(
                "no longer rejecting connections of single addresses \
                 (server.max_connections_per_address); rejected {count} in {} s",
                lasted.as_secs()
            ),
        }
    }

    /// Returns the object `connections` of `/status` (docs/status-json.md).
    pub(crate) fn json(&self) -> Value {
        json!({
            "open": self.open.load(Ordering::Relaxed),
            "max": self.max,
            "max_per_address": self.max_per_address,
            "rejected": self.beyond_max.total(),
            "rejected_per_address": self.beyond_max_per_address.total(),
        })
    }

    /// Returns the number of open connections, the maximum, and the number of connections that were rejected at
    /// any limit.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        let rejected = self.beyond_max.total() + self.beyond_max_per_address.total();
        (self.open.load(Ordering::Relaxed), self.max, rejected)
    }

    fn networks(&self) -> MutexGuard<'_, HashMap<ClientNetwork, usize>> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.connections.open.fetch_sub(1, Ordering::Relaxed);
        if let Some(network) = self.network {
            let mut networks = self.connections.networks();
            if let Some(open) = networks.get_mut(&network) {
                *open = open.saturating_sub(1);
                if *open == 0 {
                    networks.remove(&network);
                }
            }
        }
    }
}

fn log_accept_failure(event: Option<Event>, error: Option<&io::Error>) {
    let why = error.map_or_else(String::new, ToString::to_string);
    match event {
        None => {}
        Some(Event::Began) => tracing::warn!("cannot accept connections: {why}"),
        Some(Event::Continues { count, since }) => tracing::warn!(
            "still cannot accept connections: {why}; {count} failures in {} s",
            since.as_secs()
        ),
        Some(Event::Ended { count, lasted }) => tracing::warn!(
            "accepting connections again after {count} failures in {} s",
            lasted.as_secs()
        ),
    }
}

/// Returns the HTTP response with which a connection beyond a connection limit is rejected.
fn response(status: &str, kind: &str, message: &str) -> String {
    let code = "too_many_connections";
    raw_response::error(status, kind, code, message, "retry-after: 1\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(max: usize, max_per_address: usize) -> Arc<ClientConnections> {
        let division = Division {
            connections: max,
            per_address: max_per_address,
            backend_connections: 1,
            probes: 1,
            lookups: 1,
        };
        let proxy = config::Network::parse("10.9.0.0/16").unwrap();
        Arc::new(ClientConnections::new(
            &division,
            Networks::new(vec![proxy]),
        ))
    }

    #[test]
    fn limit_per_address_does_not_apply_to_trusted_proxies() {
        let connections = connections(9, 1);
        let proxied: Vec<_> = (0..3).map(|_| admit(&connections, "10.9.1.1")).collect();
        assert!(proxied.iter().all(Result::is_ok));
        let _first = admit(&connections, "10.8.1.1").unwrap();
        let second = admit(&connections, "10.8.1.1");
        assert_eq!(second.unwrap_err(), Rejected::PerAddress);
    }

    fn admit(connections: &Arc<ClientConnections>, peer: &str) -> Result<Admitted, Rejected> {
        connections.admit(peer.parse().unwrap())
    }

    #[test]
    fn connections_beyond_the_limit_are_rejected_until_one_ends() {
        let connections = connections(2, 9);
        let first = admit(&connections, "10.0.0.1").unwrap();
        let _second = admit(&connections, "10.0.0.2").unwrap();
        assert_eq!(
            admit(&connections, "10.0.0.3").unwrap_err(),
            Rejected::Total
        );
        drop(first);
        assert!(admit(&connections, "10.0.0.3").is_ok());
        assert_eq!(connections.open.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn ipv6_client_counts_by_its_64_bit_prefix() {
        let connections = connections(100, 2);
        let held: Vec<_> = ["2001:db8::1", "2001:db8::2:0:0:1"]
            .map(|peer| admit(&connections, peer).unwrap())
            .into();
        let third = admit(&connections, "2001:db8::ffff:0:0:3").unwrap_err();
        assert_eq!(third, Rejected::PerAddress);
        // A rejected connection must not be counted as open.
        assert_eq!(connections.open.load(Ordering::Relaxed), 2);
        let _other = admit(&connections, "2001:db8:0:1::1").unwrap();
        drop(held);
        assert!(admit(&connections, "2001:db8::3").is_ok());
        assert_eq!(connections.networks().len(), 1);
    }

    #[test]
    fn ipv4_mapped_ipv6_address_counts_as_the_ipv4_client() {
        let connections = connections(100, 1);
        let _first = admit(&connections, "10.0.0.1").unwrap();
        let mapped = admit(&connections, "::ffff:10.0.0.1").unwrap_err();
        assert_eq!(mapped, Rejected::PerAddress);
        assert!(admit(&connections, "::ffff:10.0.0.2").is_ok());
    }

    #[test]
    fn loopback_has_no_limit_per_address_and_a_few_connections_more() {
        let connections = connections(5, 1);
        let local = ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"];
        let held: Vec<_> = (0..5 + EXTRA_LOCAL)
            .map(|number| admit(&connections, local[number % local.len()]).unwrap())
            .collect();
        assert_eq!(
            admit(&connections, "127.0.0.1").unwrap_err(),
            Rejected::Total
        );
        assert_eq!(
            admit(&connections, "10.0.0.1").unwrap_err(),
            Rejected::Total
        );
        drop(held);
        assert_eq!(connections.open.load(Ordering::Relaxed), 0);
        assert!(connections.networks().is_empty());
    }
}
