//! Groups of IP addresses that count as one client in limits per address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Network that counts as one client: an IPv4 address, or the /64 network of an IPv6 address. A
/// client with one IPv6 address usually has its whole /64 network, and could otherwise evade limits
/// per address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientNetwork {
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

impl ClientNetwork {
    /// Returns the network of a client's address. An IPv4-mapped IPv6 address counts as the IPv4
    /// address.
    pub(crate) fn containing(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address),
            IpAddr::V6(address) => {
                let host = u128::from(u64::MAX);
                Self::V6(Ipv6Addr::from_bits(address.to_bits() & !host))
            }
        }
    }

    /// Returns a number that is unique to the network, for hash tables. The numbers of IPv4
    /// addresses are those of reserved IPv6 networks, from which no client connects.
    pub(crate) fn number(self) -> u64 {
        match self {
            Self::V4(address) => u64::from(address.to_bits()),
            Self::V6(first) => u64::try_from(first.to_bits() >> 64).unwrap_or_default(),
        }
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::V4(address) => address.fmt(f),
            Self::V6(first) => write!(f, "{first}/64"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(address: &str) -> ClientNetwork {
        ClientNetwork::containing(address.parse().unwrap())
    }

    #[test]
    fn ipv4_mapped_ipv6_address_counts_as_the_ipv4_address() {
        assert_eq!(network("192.0.2.1"), network("::ffff:192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("::ffff:192.0.2.1").to_string(), "192.0.2.1");
    }

    #[test]
    fn ipv6_address_counts_as_its_64_network() {
        let first = network("2001:db8:0:1::1");
        assert_eq!(first, network("2001:db8:0:1:ffff::2"));
        assert_ne!(first, network("2001:db8:0:2::1"));
        assert_eq!(first.to_string(), "2001:db8:0:1::/64");
        assert_eq!(first.number(), 0x2001_0db8_0000_0001);
        assert_ne!(network("::1").number(), network("127.0.0.1").number());
    }
}
