//! Names and addresses under which clients may address a private server.

use std::net::IpAddr;

/// Names and addresses of a private server that are allowed in `Host` and `Origin`, in addition to
/// `localhost` and the address of the connection. A request with another host name may come from a
/// foreign web page and is rejected.
#[derive(Debug, Default)]
pub(crate) struct KnownHosts {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
}

impl KnownHosts {
    /// Returns the allowed hosts of a private server: those of `server.hosts` (`configured`) and
    /// the name of this machine (`machine`).
    pub(crate) fn new(configured: &[String], machine: Option<String>) -> Self {
        let mut known = Self::default();
        for host in configured.iter().cloned().chain(machine) {
            match host.parse() {
                Ok(address) => known.addresses.push(address),
                Err(_) => known.names.push(host.trim_end_matches('.').to_owned()),
            }
        }
        known
    }

    /// True if a request may have this `Host`. Every IP address is allowed, because a foreign web
    /// page needs a name for DNS rebinding.
    pub(crate) fn may_be_host(&self, host: &str) -> bool {
        match Host::parse(host) {
            Host::Address(_) => true,
            // Allow an empty `Host`, which some clients send. It is no name that DNS rebinding
            // could use.
            Host::Name(name) => name.is_empty() || self.has_name(name),
        }
    }

    /// True if web pages of this host may send requests to the server. `local` is the address that
    /// the client connected to.
    pub(crate) fn may_be_origin(&self, host: &str, local: IpAddr) -> bool {
        match Host::parse(host) {
            Host::Address(address) => {
                address.is_loopback()
                    || address == local.to_canonical()
                    || self.addresses.contains(&address)
            }
            Host::Name(name) => self.has_name(name),
        }
    }

    /// True if the configuration names this host, or the host is this machine's name. False for `localhost`: every
    /// port of this machine may have a page.
    pub(crate) fn is_named(&self, host: &str) -> bool {
        match Host::parse(host) {
            Host::Address(address) => self.addresses.contains(&address),
            Host::Name(name) => {
                let mut names = self.names.iter();
                names.any(|known| known.eq_ignore_ascii_case(name))
            }
        }
    }

    /// True for `localhost` and the configured names, which DNS rebinding cannot use. Other names
    /// without a dot, and names under `.local`, can be claimed by any device on the local network,
    /// so they are not allowed.
    fn has_name(&self, name: &str) -> bool {
        let last = name.rsplit('.').next().unwrap_or(name);
        last.eq_ignore_ascii_case("localhost")
            || self
                .names
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// Host of `Host` or `Origin` without its port, such as `localhost`, `127.0.0.1:8000` or `[::1]`.
enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl<'a> Host<'a> {
    fn parse(host: &'a str) -> Self {
        let in_brackets = host.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let without_port = || &host[..memchr::memchr(b':', host.as_bytes()).unwrap_or(host.len())];
        let bare = in_brackets.map_or_else(without_port, |(address, _)| address);
        let bare = bare.strip_suffix('.').unwrap_or(bare);
        match bare.parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => Self::Name(bare),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> KnownHosts {
        let configured = ["llm.example.com", "10.9.8.7", "fd00::7"].map(str::to_owned);
        KnownHosts::new(&configured, Some("My-Machine".to_owned()))
    }

    #[test]
    fn host_may_be_an_address_or_a_known_name() {
        for host in [
            "",
            "localhost",
            "LOCALHOST:32768",
            "api.localhost",
            "localhost.",
            "127.0.0.1:32768",
            "192.168.0.9",
            "[::1]:80",
            "[fe80::1]",
            "my-machine:32768",
            "llm.example.com:443",
        ] {
            assert!(known().may_be_host(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:80",
            "router",
            "printer.local",
            "host.docker.internal",
            "x.llm.example.com",
            "127.0.0.1.nip.io",
            "[evil]",
            "[evil",
            "..",
        ] {
            assert!(!known().may_be_host(host), "{host}");
        }
    }

    #[test]
    fn pages_are_trusted_on_loopback_and_on_addresses_of_the_server() {
        let local = "192.168.0.5".parse().unwrap();
        for host in [
            "localhost:3000",
            "127.0.0.1:3000",
            "127.8.8.8",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "192.168.0.5:3000",
            "10.9.8.7",
            "[fd00::7]:80",
            "llm.example.com",
            "my-machine",
        ] {
            assert!(known().may_be_origin(host, local), "{host}");
        }
        for host in [
            "",
            "192.168.0.9",
            "10.1.2.3",
            "0.0.0.0:80",
            "[fd00::1]:80",
            "203.0.113.7",
            "[::ffff:8.8.8.8]",
            "router",
            "evil.example",
        ] {
            assert!(!known().may_be_origin(host, local), "{host}");
        }
    }
}
