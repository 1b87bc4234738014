//! The limit on connections to backends that requests of one address use at the same time.
//!
//! A client of HTTP/2 has many requests on one connection, so that the limit on its connections does
//! not keep it from taking all connections to backends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::client_network::ClientNetwork;
use crate::config::{self, Networks};
use crate::descriptors::Division;
use crate::episode::{Episode, Event};

/// Number of parts of the table, each with a lock of its own: workers seldom wait for one another.
const PARTS: usize = 64;

/// The connections to backends that each address uses.
#[derive(Debug)]
pub(crate) struct AddressLimit {
    max: usize,
    /// Reverse proxies, which speak for many clients.
    proxies: Networks,
    parts: Vec<Mutex<HashMap<ClientNetwork, usize>>>,
    beyond_max: Episode,
}

/// The right of one request to use a connection to a backend, given back when this is dropped.
#[derive(Debug)]
pub(crate) struct AddressShare {
    limit: Arc<AddressLimit>,
    /// `None` if the address has no limit.
    network: Option<ClientNetwork>,
}

impl AddressLimit {
    pub(crate) fn new(division: &Division, proxies: Networks) -> Self {
        Self {
            max: division.backend_connections_per_address(),
            proxies,
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
            beyond_max: Episode::default(),
        }
    }

    /// The right of a request of this address; `None` if the address uses as many connections as it
    /// may. Programs on this machine, and proxies that do not name their clients, have no limit.
    pub(crate) fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<AddressShare> {
        let mut share = AddressShare {
            limit: Arc::clone(self),
            network: None,
        };
        if config::is_loopback(address) || self.proxies.contains(address) {
            return Some(share);
        }
        let network = ClientNetwork::containing(address);
        {
            let mut part = self.part(network);
            let used = part.entry(network).or_default();
            if *used < self.max {
                *used += 1;
                share.network = Some(network);
            }
        }
        if share.network.is_none() {
            let event = self.beyond_max.occurred(Instant::now());
            self.log(event, Some(network));
            return None;
        }
        Some(share)
    }

    fn part(&self, network: ClientNetwork) -> MutexGuard<'_, HashMap<ClientNetwork, usize>> {
        // The last bits differ most between addresses of one network.
        let index = usize::try_from(network.number() % PARTS as u64).unwrap_or_default();
        let part = self.parts[index].lock();
        part.unwrap_or_else(PoisonError::into_inner)
    }

    /// Maximum number of connections that one address may use.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Number of requests that were rejected.
    pub(crate) fn rejected(&self) -> u64 {
        self.beyond_max.total()
    }

    /// Logs that requests are no longer rejected. To be called from time to time.
    pub(crate) fn check_end(&self) {
        self.log(self.beyond_max.check_end(Instant::now()), None);
    }

    fn log(&self, event: Option<Event>, network: Option<ClientNetwork>) {
        let max = self.max;
        let from = network.map_or_else(String::new, |network| format!(" from {network}"));
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "rejecting requests{from}: it uses {max} connections to backends, the limit of one \
                 address (server.max_connections_per_address)"
            ),
            Some(Event::Continues { count, since }) => tracing::warn!(
                "still rejecting requests, now{from}, beyond {max} connections to backends of one \
                 address (server.max_connections_per_address): {count} in {} s",
                since.as_secs()
            ),
            Some(Event::Ended { count, lasted }) => tracing::warn!(
                "no longer rejecting requests of single addresses: rejected {count} within {} s \
                 (server.max_connections_per_address)",
                lasted.as_secs()
            ),
        }
    }
}

impl Drop for AddressShare {
    fn drop(&mut self) {
        let Some(network) = self.network else {
            return;
        };
        let mut part = self.limit.part(network);
        if let Some(used) = part.get_mut(&network) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                part.remove(&network);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(max: usize) -> Arc<AddressLimit> {
        let division = Division {
            connections: 1,
            per_address: max,
            backend_connections: 1,
            probes: 1,
            lookups: 1,
        };
        let proxy = config::Network::parse("10.9.0.0/16").unwrap();
        Arc::new(AddressLimit::new(&division, Networks::new(vec![proxy])))
    }

    fn acquire(limit: &Arc<AddressLimit>, address: &str) -> Option<AddressShare> {
        limit.acquire(address.parse().unwrap())
    }

    #[test]
    fn each_address_has_a_limit_of_its_own_until_a_request_ends() {
        let limit = limit(2);
        let first = acquire(&limit, "192.0.2.1").unwrap();
        let _second = acquire(&limit, "::ffff:192.0.2.1").unwrap();
        assert!(acquire(&limit, "192.0.2.1").is_none());
        let _other = acquire(&limit, "192.0.2.2").unwrap();
        drop(first);
        assert!(acquire(&limit, "192.0.2.1").is_some());
        assert_eq!(limit.rejected(), 1);
    }

    #[test]
    fn ipv6_network_counts_as_one_address() {
        let limit = limit(1);
        let share = acquire(&limit, "2001:db8::1").unwrap();
        assert!(acquire(&limit, "2001:db8::ffff:0:0:2").is_none());
        assert!(acquire(&limit, "2001:db8:0:1::1").is_some());
        drop(share);
        let is_empty = |part: &Mutex<HashMap<_, _>>| part.lock().unwrap().is_empty();
        assert!(limit.parts.iter().all(is_empty));
    }

    #[test]
    fn this_machine_and_proxies_have_no_limit() {
        let limit = limit(1);
        for address in ["127.0.0.1", "::1", "10.9.1.1"] {
            let shares: Vec<_> = (0..5).map(|_| acquire(&limit, address)).collect();
            assert!(shares.iter().all(Option::is_some), "{address}");
        }
    }
}
