//! Keeping web pages off a server that is meant for programs on this machine. A page can make its
//! visitor's browser send requests to loopback addresses, and with a name that it points there
//! (DNS rebinding) even read the answers.

use std::net::IpAddr;

use http::{HeaderValue, StatusCode, header, request};

use super::Refusal;
use crate::app::Shared;

/// Lets a request pass unless a foreign page sent it. A server that is public anyway, or that says
/// so (`server.allow_public`), may be called by any name.
pub(super) fn admit(
    shared: &Shared,
    head: &request::Parts,
    is_upgrade: bool,
) -> Result<(), Refusal> {
    if !shared.is_private {
        return Ok(());
    }
    let host = head
        .uri
        .host()
        .or_else(|| text(head.headers.get(header::HOST)?));
    // An address cannot be pointed elsewhere.
    if host.is_some_and(|host| !is_local(host, |_| true)) {
        return Err(refused(
            "This server is private, and was called by a name that is not this machine's. Call it \
             by its IP address or localhost, or set server.allow_public.",
        ));
    }
    let mut origins = head.headers.get_all(header::ORIGIN).iter();
    let is_foreign = |origin| match page(origin) {
        Some(host) => !is_local(host, is_near),
        // Programs may call themselves anything. But whoever opens a WebSocket reads what comes:
        // no browser asks us first whether a page may.
        None => is_upgrade,
    };
    if origins.any(is_foreign) {
        return Err(refused(
            "This server is private, and a web page of another site sent this request. Set \
             server.allow_public if it may.",
        ));
    }
    // A page in a sandbox does not say where it is from.
    let origin = head.headers.get(header::ORIGIN).and_then(text);
    let is_hidden = origin.is_none_or(|origin| origin == "null");
    let site = head.headers.get("sec-fetch-site");
    if is_hidden && !head.method.is_safe() && site.is_some_and(|site| site == "cross-site") {
        return Err(refused(
            "This server is private, and a web page that does not say where it is from sent this \
             request. Set server.allow_public if it may.",
        ));
    }
    Ok(())
}

fn text(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok()
}

/// The host of the web page that this origin is.
fn page(origin: &HeaderValue) -> Option<&str> {
    let origin = text(origin)?;
    let rest = origin.strip_prefix("https://");
    rest.or_else(|| origin.strip_prefix("http://"))
}

/// Names that no page can point elsewhere, as are those without a dot; containers call their
/// machine `host.docker.internal`.
const PRIVATE_NAMES: [&str; 3] = [".localhost", ".local", ".internal"];

/// Whether this names a machine of one's own, or an address that will do: `localhost`,
/// `127.0.0.1:8000`, `[::1]`.
fn is_local(host: &str, will_do: impl Fn(IpAddr) -> bool) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest.split(']').next().unwrap_or(rest);
        return address.parse().is_ok_and(will_do);
    }
    let bare = host.split(':').next().unwrap_or(host);
    let bare = bare.trim_end_matches('.').to_ascii_lowercase();
    if let Ok(address) = bare.parse() {
        return will_do(address);
    }
    !bare.contains('.') || PRIVATE_NAMES.iter().any(|end| bare.ends_with(end))
}

/// Whether an address is this machine's or of a network of one's own.
fn is_near(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback()
        || address.is_unspecified()
        || match address {
            IpAddr::V4(address) => address.is_private() || address.is_link_local(),
            IpAddr::V6(address) => address.is_unique_local() || address.is_unicast_link_local(),
        }
}

fn refused(message: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, "forbidden", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_this_machines_own_name_are_local() {
        for host in [
            "localhost",
            "LOCALHOST:32768",
            "my-machine:32768",
            "api.localhost",
            "host.docker.internal:32768",
            "127.0.0.1:32768",
            "192.168.0.9",
            "[::1]:80",
            "[fe80::1]",
            "",
        ] {
            assert!(is_local(host, |_| true), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.nip.io",
            "[evil]",
        ] {
            assert!(!is_local(host, |_| true), "{host}");
        }
    }

    #[test]
    fn a_page_with_an_address_is_near_only_if_that_is_no_public_one() {
        for host in [
            "127.0.0.1:3000",
            "0.0.0.0:80",
            "10.1.2.3",
            "192.168.0.9",
            "[::1]",
            "[fd00::1]:80",
        ] {
            assert!(is_local(host, is_near), "{host}");
        }
        for host in [
            "203.0.113.7",
            "8.8.8.8:80",
            "[2001:db8::7]",
            "[::ffff:8.8.8.8]",
        ] {
            assert!(!is_local(host, is_near), "{host}");
        }
    }
}
