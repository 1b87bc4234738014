//! Limit on the connections to backends that requests of one client address use at the same time.
//!
//! An HTTP/2 client sends many requests on one connection. So without this limit, a single client
//! within the limit on client connections could use up all connections to backends.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::client_network::ClientNetwork;
use crate::config::{self, Networks};
use crate::descriptors::Division;
use crate::episode::{Episode, Event};

/// Number of shards of the table that counts the backend connections in use by each client address.
/// Each shard has its own lock, so workers seldom wait for one another.
const SHARDS: usize = 64;

#[derive(Debug)]
pub(crate) struct AddressLimit {
    max: usize,
    /// Trusted reverse proxies. Their own addresses have no limit, because such an address may
    /// stand for many clients.
    proxies: ArcSwap<Networks>,
    shards: Vec<Mutex<HashMap<ClientNetwork, usize>>>,
    beyond_max: Episode,
}

/// Permission of one request to use a connection to a backend, which is released when this value is
/// dropped.
#[derive(Debug)]
pub(crate) struct AddressShare {
    limit: Arc<AddressLimit>,
    /// Network of the client, whose number of connections in use includes this share. `None` if the
    /// client's address has no limit.
    network: Option<ClientNetwork>,
}

impl AddressLimit {
    pub(crate) fn new(division: &Division, proxies: Networks) -> Self {
        Self {
            max: division.backend_connections_per_address(),
            proxies: ArcSwap::from_pointee(proxies),
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            beyond_max: Episode::default(),
        }
    }

    /// Applies `server.trusted_proxies` of a reloaded configuration, whose addresses have no limit.
    pub(crate) fn set_proxies(&self, proxies: Networks) {
        self.proxies.store(Arc::new(proxies));
    }

    /// Acquires a share for a request of this address; `None` if the address is at its limit. Loopback
    /// addresses, and trusted proxies that do not forward their clients' addresses, have no limit.
    pub(crate) fn acquire(self: &Arc<Self>, address: IpAddr) -> Option<AddressShare> {
        let mut share = AddressShare {
            limit: Arc::clone(self),
            network: None,
        };
        if config::is_loopback(address) || self.proxies.load().contains(address) {
            return Some(share);
        }
        let network = ClientNetwork::containing(address);
        {
            let mut shard = self.shard(network);
            let used = shard.entry(network).or_default();
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

    fn shard(&self, network: ClientNetwork) -> MutexGuard<'_, HashMap<ClientNetwork, usize>> {
        // Select the shard by the last bits of the address, because they differ most between
        // clients.
        let index = usize::try_from(network.number() % SHARDS as u64).unwrap_or_default();
        let shard = self.shards[index].lock();
        shard.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the maximum number of connections to backends that the requests of one client
    /// address may use at the same time.
    pub(crate) fn max(&self) -> usize {
        self.max
    }

    /// Returns the number of requests that were rejected because their client address was at its
    /// limit.
    pub(crate) fn rejected(&self) -> u64 {
        self.beyond_max.total()
    }

    /// Logs the end of a period in which requests of single addresses were rejected. It is called
    /// periodically, because no event marks the end.
    pub(crate) fn check_end(&self) {
        self.log(self.beyond_max.check_end(Instant::now()), None);
    }

    fn log(&self, event: Option<Event>, network: Option<ClientNetwork>) {
        let max = self.max;
        let from = network.map_or_else(String::new, |network| format!(" from {network}"));
        match event {
            None => {}
            Some(Event::Began) => tracing::warn!(
                "rejecting requests{from}: the address uses {max} connections to backends, the limit \
                 of one address (server.max_connections_per_address)"
            ),
            Some(Event::Continues { count, since }) => tracing::warn!(
                "still rejecting requests, now{from}: the limit of one address is {max} connections \
                 to backends (server.max_connections_per_address); rejected {count} in {} s",
                since.as_secs()
            ),
            Some(Event::Ended { count, lasted }) => tracing::warn!(
                "no longer rejecting requests of single addresses \
                 (server.max_connections_per_address); rejected {count} in {} s",
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
        let mut shard = self.limit.shard(network);
        if let Some(used) = shard.get_mut(&network) {
            *used = used.saturating_sub(1);
            if *used == 0 {
                shard.remove(&network);
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
    fn address_at_its_limit_is_rejected_until_a_request_ends() {
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
        let is_empty = |shard: &Mutex<HashMap<_, _>>| shard.lock().unwrap().is_empty();
        assert!(limit.shards.iter().all(is_empty));
    }

    #[test]
    fn loopback_and_trusted_proxies_have_no_limit() {
        let limit = limit(1);
        for address in ["127.0.0.1", "::1", "10.9.1.1"] {
            let shares: Vec<_> = (0..5).map(|_| acquire(&limit, address)).collect();
            assert!(shares.iter().all(Option::is_some), "{address}");
        }
    }
}
