//! Rejects requests of web pages to a server that is meant for programs on this machine. A page can
//! make its visitor's browser send requests to loopback addresses. With DNS rebinding it can even
//! read the responses.

use std::net::IpAddr;

use http::{HeaderValue, StatusCode, header, request};

use super::Refusal;
use crate::text::{plain, shortened};

/// Names and addresses of a private server that are allowed in `Host` and `Origin`, in addition to
/// `localhost` and the address of the connection. A request with another host name may come from a
/// foreign web page and is rejected.
#[derive(Debug, Default)]
pub(crate) struct KnownHosts {
    names: Vec<String>,
    addresses: Vec<IpAddr>,
}

impl KnownHosts {
    /// Returns the hosts of `server.hosts` (`configured`) and the name of this machine (`machine`).
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

    /// True if a request may have this `Host`. Any address is allowed, because DNS rebinding needs a
    /// name.
    fn may_be_host(&self, host: &str) -> bool {
        match Host::parse(host) {
            Host::Address(_) => true,
            // Some clients send an empty `Host`. It is no name that DNS rebinding could use.
            Host::Name(name) => name.is_empty() || self.has_name(name),
        }
    }

    /// True if pages of this host may send requests. `local` is the address that the client
    /// connected to.
    fn may_be_origin(&self, host: &str, local: IpAddr) -> bool {
        match Host::parse(host) {
            Host::Address(address) => {
                address.is_loopback()
                    || address == local.to_canonical()
                    || self.addresses.contains(&address)
            }
            Host::Name(name) => self.has_name(name),
        }
    }

    /// True for `localhost` and the configured names, which DNS rebinding cannot use. Other names
    /// without a dot, and names under `.local`, can be claimed by any device on the local network.
    fn has_name(&self, name: &str) -> bool {
        let last = name.rsplit('.').next().unwrap_or(name);
        last.eq_ignore_ascii_case("localhost")
            || self
                .names
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// A host without its port: `localhost`, `127.0.0.1:8000`, `[::1]`.
enum Host<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl<'a> Host<'a> {
    fn parse(host: &'a str) -> Self {
        let bare = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split(':').next().unwrap_or(host),
        };
        let bare = bare.strip_suffix('.').unwrap_or(bare);
        match bare.parse::<IpAddr>() {
            Ok(address) => Self::Address(address.to_canonical()),
            Err(_) => Self::Name(bare),
        }
    }
}

/// Rejects a request to a private server if a web page of another site sent it. `local` is the
/// address that the client connected to.
pub(crate) fn refuse_foreign_pages(
    known: &KnownHosts,
    head: &request::Parts,
    local: IpAddr,
    is_upgrade: bool,
) -> Result<(), Refusal> {
    let host = head
        .uri
        .host()
        .or_else(|| text(head.headers.get(header::HOST)?));
    if let Some(host) = host.filter(|host| !known.may_be_host(host)) {
        return Err(refused(
            "forbidden_host",
            format!(
                "This server is private, and `{}` is not a name of this machine. Call it by its IP \
                 address or localhost, or add the name to server.hosts.",
                shown(host)
            ),
        ));
    }
    let mut origins = head.headers.get_all(header::ORIGIN).iter();
    let is_foreign = |origin: &HeaderValue| match page(origin) {
        Some(host) => !known.may_be_origin(host, local),
        // The origin is not a web page, so a program sent the request. But browsers let any page read a
        // WebSocket without permission of the server, so an upgrade requires a known origin.
        None => is_upgrade,
    };
    if let Some(origin) = origins.find(|origin| is_foreign(origin)) {
        return Err(refused(
            "forbidden_origin",
            format!(
                "This server is private, and a web page of another site ({}) sent this request. Add \
                 the site's host to server.hosts to allow its requests.",
                shown(&String::from_utf8_lossy(origin.as_bytes()))
            ),
        ));
    }
    // A sandboxed web page sends no `Origin`, or `null`. The browser marks its requests as cross-site.
    let origin = head.headers.get(header::ORIGIN).and_then(text);
    let is_hidden = origin.is_none_or(|origin| origin == "null");
    let site = head.headers.get("sec-fetch-site");
    if is_hidden && !head.method.is_safe() && site.is_some_and(|site| site == "cross-site") {
        return Err(refused(
            "forbidden_origin",
            "This server is private, and a web page of unknown origin sent this request. Set \
             server.allow_public to allow requests of any page.",
        ));
    }
    Ok(())
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// Returns the host of an origin; `None` if the origin is not a web page.
fn page(origin: &HeaderValue) -> Option<&str> {
    let (scheme, host) = text(origin)?.split_once("://")?;
    let is_web = ["http", "https"]
        .iter()
        .any(|web| scheme.eq_ignore_ascii_case(web));
    is_web.then_some(host)
}

fn refused(code: &'static str, message: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, code, message)
}

/// Formats a name that the client chose: shortened, with unsafe characters replaced.
fn shown(name: &str) -> String {
    plain(&shortened(name, 100)).into_owned()
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
