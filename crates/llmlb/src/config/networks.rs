//! Sets of IP addresses and networks, for `server.trusted_proxies`.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// A set of IP addresses, given as addresses and networks in CIDR notation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Networks(Vec<Network>);

/// An IP address, or a network in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// First address of the network.
    address: IpAddr,
    /// Length of the prefix in bits: the number of leading bits that all addresses of the network
    /// have in common.
    prefix: u32,
}

impl Networks {
    pub(crate) fn new(networks: Vec<Network>) -> Self {
        Self(networks)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the address is in one of the networks. An IPv4 address written as IPv6 is compared
    /// as IPv4.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

impl fmt::Display for Networks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Network { address, prefix }) in self.0.iter().enumerate() {
            let separator = if at == 0 { "" } else { ", " };
            f.write_str(separator)?;
            if *prefix == bits(*address) {
                write!(f, "{address}")?;
            } else {
                write!(f, "{address}/{prefix}")?;
            }
        }
        Ok(())
    }
}

impl Network {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let not_one = || {
            format!(
                "{} is not an IP address or network",
                super::problems::quoted(text)
            )
        };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| not_one())?;
        let most = bits(address);
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let prefix = match prefix {
            Some(prefix) if is_number(prefix) => prefix.parse().map_err(|_| not_one())?,
            Some(_) => return Err(not_one()),
            None => most,
        };
        if prefix > most {
            return Err(not_one());
        }
        let network = Self { address, prefix }.canonical();
        let first = network.first();
        if first != network.address {
            let meant = Networks(vec![Self {
                address: first,
                ..network
            }]);
            return Err(format!("{text} has host bits set (did you mean {meant}?)"));
        }
        Ok(network)
    }

    /// Converts an IPv4 network written as IPv6 to IPv4, so that both notations compare equal.
    fn canonical(self) -> Self {
        match (self.address.to_canonical(), self.prefix.checked_sub(96)) {
            (address @ IpAddr::V4(_), Some(prefix)) if self.address.is_ipv6() => {
                Self { address, prefix }
            }
            _ => self,
        }
    }

    fn first(self) -> IpAddr {
        let rest = bits(self.address) - self.prefix;
        match self.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(rest).unwrap_or(0);
                IpAddr::V4((address.to_bits() & mask).into())
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(rest).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
            }
        }
    }

    fn contains(self, address: IpAddr) -> bool {
        let prefix = self.prefix;
        self.address.is_ipv4() == address.is_ipv4()
            && Self { address, prefix }.first() == self.address
    }
}

fn bits(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(items: &[&str]) -> Result<Networks, String> {
        let networks = items.iter().map(|item| Network::parse(item));
        networks.collect::<Result<_, _>>().map(Networks::new)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn networks_contain_exactly_their_addresses() {
        let all = networks(&["10.0.0.0/8", "192.168.1.7", "fd00::/8", "::1"]).unwrap();
        for inside in ["10.0.0.0", "10.255.1.2", "192.168.1.7", "fd12::1", "::1"] {
            assert!(all.contains(address(inside)), "{inside}");
        }
        assert!(all.contains(address("::ffff:10.1.1.1")));
        for outside in [
            "11.0.0.0",
            "9.255.255.255",
            "192.168.1.8",
            "fe80::1",
            "::2",
            "::a00:1",
        ] {
            assert!(!all.contains(address(outside)), "{outside}");
        }
        assert!(!Networks::default().contains(address("127.0.0.1")));
    }

    #[test]
    fn prefixes_of_any_length_are_parsed() {
        let v4 = networks(&["0.0.0.0/0"]).unwrap();
        assert!(v4.contains(address("255.1.2.3")) && !v4.contains(address("::1")));
        let v6 = networks(&["::/0"]).unwrap();
        assert!(v6.contains(address("fe80::1")) && !v6.contains(address("1.2.3.4")));
        let mapped = networks(&["::ffff:10.0.0.0/104", "::ffff:1.2.3.4"]).unwrap();
        assert_eq!(mapped.to_string(), "10.0.0.0/8, 1.2.3.4");
        let odd = networks(&["10.128.0.0/9"]).unwrap();
        assert!(odd.contains(address("10.200.0.1")) && !odd.contains(address("10.1.0.1")));
    }

    #[test]
    fn invalid_network_is_rejected() {
        for text in [
            "",
            "x",
            "10.0.0.0/33",
            "::/129",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10/8",
            "/8",
            "10.0.0.0/8/8",
            "localhost",
            "*",
        ] {
            assert!(networks(&[text]).is_err(), "{text}");
        }
        let why = networks(&["10.0.0.5/8"]).unwrap_err();
        assert!(why.contains("did you mean 10.0.0.0/8?"), "{why}");
    }
}
