//! Determines the client address of a request, for limits and fairness, and if the client is a
//! program on this machine.
//!
//! A reverse proxy is the peer of every connection that it opens. If the configuration trusts the
//! proxy, the client's address is the one that the proxy reports in `X-Forwarded-For` or
//! `Forwarded` (RFC 7239). Clients can send these fields themselves. A proxy appends its entry on
//! the right, so the entries are read from the right, up to the first address that is not a trusted
//! proxy's.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::config::Networks;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// Header fields that only proxies add, besides those that begin with [`X_FORWARDED`]. A request
/// with one of them never counts as local.
const PROXY_FIELDS: [HeaderName; 3] = [
    header::FORWARDED,
    header::VIA,
    HeaderName::from_static("x-real-ip"),
];
const X_FORWARDED: &str = "x-forwarded-";

/// Returns the client address of a request: the peer's, or the one that a trusted proxy reports.
/// `proxies` is `None` if the peer is not a trusted proxy. Limits and fairness use this address.
pub(crate) fn client_address(
    peer: SocketAddr,
    headers: &HeaderMap,
    proxies: Option<&Networks>,
) -> IpAddr {
    let peer = peer.ip().to_canonical();
    match proxies {
        Some(proxies) => reported(headers, peer, proxies),
        None => peer,
    }
}

/// True if a program on this machine sent the request without a proxy. `peer` and `local` are the
/// two ends of its connection.
pub(crate) fn is_local(peer: SocketAddr, local: SocketAddr, headers: &HeaderMap) -> bool {
    is_this_machine(peer, local) && !is_proxied(headers)
}

/// True if the peer is on this machine: it connects over the loopback, or from an address of this
/// machine.
fn is_this_machine(peer: SocketAddr, local: SocketAddr) -> bool {
    let peer = peer.ip().to_canonical();
    peer.is_loopback() || peer == local.ip().to_canonical()
}

/// True if a proxy handled the request. A proxy on this machine connects over the loopback on
/// behalf of clients elsewhere, so its requests must not count as local.
fn is_proxied(headers: &HeaderMap) -> bool {
    headers
        .keys()
        .any(|name| PROXY_FIELDS.contains(name) || name.as_str().starts_with(X_FORWARDED))
}

/// Returns the client address that the proxy `peer` reports. If `X-Forwarded-For` and `Forwarded`
/// both exist and differ, the proxy set one of them and forwarded the client's own other one. Then
/// neither is trusted, and the proxy counts as the client.
pub(super) fn reported(headers: &HeaderMap, peer: IpAddr, proxies: &Networks) -> IpAddr {
    let read = |name: &HeaderName, address: fn(&str) -> Option<IpAddr>| {
        let values = headers.get_all(name);
        let mut values = values.iter().rev().peekable();
        values.peek()?;
        let elements = values.flat_map(elements);
        Some(nearest(elements.map(|text| address(text?)), peer, proxies))
    };
    let in_list = read(&X_FORWARDED_FOR, address);
    let in_forwarded = read(&header::FORWARDED, address_in_forwarded);
    match (in_list, in_forwarded) {
        (Some(one), Some(other)) if one != other => peer,
        (Some(one), _) | (None, Some(one)) => one,
        (None, None) => peer,
    }
}

/// Returns the first of these addresses, read from the right, that is not a trusted proxy's. A
/// proxy whose entry has no valid address counts as the client itself.
fn nearest(
    addresses: impl Iterator<Item = Option<IpAddr>>,
    peer: IpAddr,
    proxies: &Networks,
) -> IpAddr {
    let mut nearest = peer;
    for address in addresses {
        let Some(address) = address else { break };
        nearest = address;
        if !proxies.contains(address) {
            break;
        }
    }
    nearest
}

/// Returns the elements of a list in a header field, from the right. A comma separates elements
/// even within quotes: a client that opens a quote must not swallow the entry that the proxy
/// appends.
fn elements(value: &HeaderValue) -> impl Iterator<Item = Option<&str>> {
    let elements = value.as_bytes().rsplit(|byte| *byte == b',');
    elements.map(|element| std::str::from_utf8(element).ok().map(str::trim))
}

/// Parses an address in the forms that proxies use: `192.0.2.1`, `192.0.2.1:4711`, `2001:db8::1`,
/// `[2001:db8::1]`, `[2001:db8::1]:4711`.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim_matches('"');
    let bare = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'));
    let address = bare.unwrap_or(text).parse::<IpAddr>();
    let address = address.or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip()));
    address.ok().map(|address| address.to_canonical())
}

/// Parses the client address in an element of `Forwarded`, such as
/// `for="[2001:db8::1]:4711";proto=https`.
fn address_in_forwarded(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, node) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    address(node.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Network;

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    fn seen(fields: &[(&'static str, &'static str)]) -> String {
        let proxies = ["127.0.0.1", "10.0.0.0/8"].map(|text| Network::parse(text).unwrap());
        let proxies = Networks::new(proxies.to_vec());
        let peer = "127.0.0.1".parse().unwrap();
        reported(&headers(fields), peer, &proxies).to_string()
    }

    #[test]
    fn client_is_the_rightmost_address_that_is_not_trusted() {
        let list = "x-forwarded-for";
        for (value, expected) in [
            ("1.2.3.4", "1.2.3.4"),
            ("9.9.9.9, 1.2.3.4", "1.2.3.4"),
            ("9.9.9.9,1.2.3.4 , 10.0.0.7,10.0.0.8", "1.2.3.4"),
            ("1.2.3.4:5678", "1.2.3.4"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]:80", "2001:db8::1"),
            ("::ffff:1.2.3.4", "1.2.3.4"),
            // If all addresses belong to trusted proxies, the leftmost address is the client.
            ("10.0.0.7, 10.0.0.8", "10.0.0.7"),
            // A trusted proxy that does not report a valid address counts as the client.
            ("1.2.3.4, unknown", "127.0.0.1"),
            ("1.2.3.4, unknown, 10.0.0.8", "10.0.0.8"),
            ("", "127.0.0.1"),
            ("1.2.3.4,", "127.0.0.1"),
            ("1.2.3.4, \"", "127.0.0.1"),
        ] {
            assert_eq!(seen(&[(list, value)]), expected, "{value}");
        }
        assert_eq!(seen(&[(list, "1.1.1.1"), (list, "2.2.2.2")]), "2.2.2.2");
        assert_eq!(seen(&[(list, "1.1.1.1"), (list, "10.2.2.2")]), "1.1.1.1");
        assert_eq!(seen(&[]), "127.0.0.1");
    }

    #[test]
    fn forwarded_is_read_like_x_forwarded_for() {
        let field = "forwarded";
        for (value, expected) in [
            ("for=1.2.3.4", "1.2.3.4"),
            ("proto=https; FOR = 1.2.3.4 ;by=10.0.0.1", "1.2.3.4"),
            (
                "for=9.9.9.9, for=1.2.3.4;proto=http, for=10.0.0.1",
                "1.2.3.4",
            ),
            ("for=\"[2001:db8::1]:4711\"", "2001:db8::1"),
            ("for=1.2.3.4, for=_hidden", "127.0.0.1"),
            ("for=1.2.3.4, proto=http", "127.0.0.1"),
            // A quotation mark that the client leaves open must not hide the element that the proxy
            // appended.
            ("for=9.9.9.9;x=\", for=1.2.3.4", "1.2.3.4"),
        ] {
            assert_eq!(seen(&[(field, value)]), expected, "{value}");
        }
    }

    #[test]
    fn fields_that_differ_are_not_trusted() {
        let both = |one, other| seen(&[("x-forwarded-for", one), ("forwarded", other)]);
        assert_eq!(both("1.2.3.4", "for=1.2.3.4"), "1.2.3.4");
        assert_eq!(both("1.2.3.4", "for=9.9.9.9"), "127.0.0.1");
        assert_eq!(both("9.9.9.9", "for=1.2.3.4"), "127.0.0.1");
    }

    #[test]
    fn peer_on_this_machine_is_recognised() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        for (peer, local, is_here) in [
            ("127.0.0.1:5000", "127.0.0.1:80", true),
            ("127.0.0.9:5000", "10.0.0.5:80", true),
            ("10.0.0.5:5000", "10.0.0.5:80", true),
            ("[::ffff:10.0.0.5]:5000", "[::ffff:10.0.0.5]:80", true),
            ("[::1]:5000", "[::1]:80", true),
            ("10.0.0.6:5000", "10.0.0.5:80", false),
            ("[fe80::2]:5000", "[fe80::1]:80", false),
        ] {
            let here = is_this_machine(address(peer), address(local));
            assert_eq!(here, is_here, "{peer}");
        }
    }

    #[test]
    fn request_of_a_proxy_is_recognised_by_its_header_fields() {
        for field in [
            "forwarded",
            "via",
            "x-real-ip",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-anything",
        ] {
            assert!(
                is_proxied(&headers(&[("accept", "*/*"), (field, "")])),
                "{field}"
            );
        }
        for field in ["x-forwarded", "x-forward", "user-agent", "x-request-id"] {
            assert!(!is_proxied(&headers(&[(field, "1")])), "{field}");
        }
    }
}
