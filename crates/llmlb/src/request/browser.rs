//! Rejects requests of web pages to a private server, which is meant for programs on this machine.
//! A page can make its visitor's browser send requests to loopback addresses. With DNS rebinding it
//! can even read the responses.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, StatusCode, header, request};

use super::Refusal;
use crate::known_hosts::KnownHosts;
use crate::text::{plain, shortened};

/// Field in which browsers say if the page that sends a request is of the same site.
static FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Rejects a request to a private server if a web page of another site sent it, or if `Host` is not
/// a name of this machine. `local` is the address that the client connected to.
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
        // An origin that is no web page belongs to a program, which is allowed. But browsers let
        // any page read a WebSocket without permission of the server, so an upgrade requires a
        // known origin.
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
    // A sandboxed web page sends no `Origin`, or `null`. Its requests are recognized by
    // `Sec-Fetch-Site`, with which the browser marks them as cross-site.
    let origin = head.headers.get(header::ORIGIN).and_then(text);
    let is_hidden = origin.is_none_or(|origin| origin == "null");
    let site = head.headers.get(&FETCH_SITE);
    if is_hidden && !head.method.is_safe() && site.is_some_and(|site| site == "cross-site") {
        return Err(refused(
            "forbidden_origin",
            "This server is private, and a web page of unknown origin sent this request. Set \
             server.allow_public to allow requests of any page.",
        ));
    }
    Ok(())
}

/// Rejects a request that was not sent by a page of this server itself: the dashboard, and no other page on this
/// machine or elsewhere. Browsers send `Origin` with every request that changes something.
pub(crate) fn require_own_page(known: &KnownHosts, head: &request::Parts) -> Result<(), Refusal> {
    let host = head.uri.authority().map(Authority::as_str);
    let host = host.or_else(|| text(head.headers.get(header::HOST)?));
    let mut origins = head.headers.get_all(header::ORIGIN).iter();
    let origin = origins.next().filter(|_| origins.next().is_none());
    let is_own = |origin: &str| {
        // Behind a reverse proxy, `Host` may be the name of the proxy's backend.
        host.is_some_and(|host| host.eq_ignore_ascii_case(origin)) || known.is_named(origin)
    };
    let site = head.headers.get(&FETCH_SITE);
    if origin.and_then(page).is_some_and(is_own) && site.is_none_or(|site| site == "same-origin") {
        return Ok(());
    }
    Err(refused(
        "forbidden_origin",
        "Actions are accepted only from the dashboard of this server itself. If a reverse proxy changes the \
         host name, add the name to server.hosts.",
    ))
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

/// Formats a name that the client chose for an error message: shortened, with unsafe characters
/// replaced.
fn shown(name: &str) -> String {
    plain(&shortened(name, 100)).into_owned()
}
