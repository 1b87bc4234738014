//! Keeping web pages off a server that is meant for programs on this machine. A page can make its
//! visitor's browser send requests to loopback addresses, and with a name that it points there
//! (DNS rebinding) even read the answers.

use std::net::IpAddr;

use http::{HeaderMap, StatusCode, header, request};

use super::Refusal;
use crate::app::Shared;

/// Lets a request pass unless a foreign page sent it. A server that is public anyway, or that says
/// so (`server.allow_public`), may be called by any name.
pub(super) fn admit(shared: &Shared, head: &request::Parts) -> Result<(), Refusal> {
    if !shared.is_private {
        return Ok(());
    }
    let host = head
        .uri
        .host()
        .or_else(|| text(&head.headers, header::HOST));
    if host.is_some_and(|host| !is_local(host)) {
        return Err(refused(
            "This server is private, and was called by a name that is not this machine's. Call it \
             by its IP address or localhost, or set server.allow_public.",
        ));
    }
    let site = head.headers.get("sec-fetch-site");
    let origin = text(&head.headers, header::ORIGIN);
    // A page in a sandbox does not say where it is from.
    let is_hidden = origin.is_none_or(|origin| origin == "null") && !head.method.is_safe();
    if is_hidden && site.is_some_and(|site| site == "cross-site") {
        return Err(refused(
            "This server is private, and a web page that does not say where it is from sent this \
             request. Set server.allow_public if it may.",
        ));
    }
    let page = origin.and_then(|origin| {
        let rest = origin.strip_prefix("https://");
        rest.or_else(|| origin.strip_prefix("http://"))
    });
    if page.is_some_and(|host| !is_local(host)) {
        return Err(refused(
            "This server is private, and a web page of another site sent this request. Set \
             server.allow_public if it may.",
        ));
    }
    Ok(())
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Names that no page can point elsewhere, as are those without a dot; containers call their
/// machine `host.docker.internal`.
const PRIVATE_NAMES: [&str; 3] = [".localhost", ".local", ".internal"];

/// Whether this names an address, or a machine of one's own: `localhost`, `127.0.0.1:8000`, `[::1]`.
fn is_local(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let address = rest.split(']').next().unwrap_or(rest);
        return address.parse::<IpAddr>().is_ok();
    }
    let bare = host.split(':').next().unwrap_or(host);
    let bare = bare.trim_end_matches('.').to_ascii_lowercase();
    !bare.contains('.')
        || PRIVATE_NAMES.iter().any(|end| bare.ends_with(end))
        || bare.parse::<IpAddr>().is_ok()
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
            assert!(is_local(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.nip.io",
            "[evil]",
        ] {
            assert!(!is_local(host), "{host}");
        }
    }
}
