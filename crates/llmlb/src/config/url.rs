//! Parser for the URL of a backend.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::uri::{Authority, PathAndQuery};

/// URL of a backend: `http://host:port/prefix` or `https://..`, without `/v1`, which is part of the
/// path in each client's request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendUrl {
    is_https: bool,
    authority: Authority,
    prefix: String,
}

impl BackendUrl {
    /// Parses the URL of a backend. The error never repeats the URL, which may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let is_https = scheme.eq_ignore_ascii_case("https");
        if !is_https && !scheme.eq_ignore_ascii_case("http") {
            return Err("the URL does not start with http:// or https://");
        }
        for (mark, why) in [
            (
                ',',
                "the URL contains a comma: write each backend separately",
            ),
            ('@', "a user or password in the URL is not supported"),
            ('?', "the URL has a query (?)"),
            ('#', "the URL has a fragment (#)"),
        ] {
            if rest.contains(mark) {
                return Err(why);
            }
        }
        let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let default_port = if is_https { 443 } else { 80 };
        let authority = authority(host, default_port)?;
        let prefix = prefix(path)?;
        Ok(Self {
            is_https,
            authority,
            prefix,
        })
    }

    pub(crate) fn is_https(&self) -> bool {
        self.is_https
    }

    /// Returns host and port of the backend; the port is always present.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// True if the URL's host is this machine, as with `127.0.0.1`. On another machine the same URL
    /// means another backend.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.authority.host();
        let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
        address.map_or(host == "localhost", super::is_loopback)
    }

    /// Returns the path of the URL in front of `/v1`: empty, or a path without a trailing slash.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl fmt::Display for BackendUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_https { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

fn authority(text: &str, default_port: u16) -> Result<Authority, &'static str> {
    let (host, port) = match text.rsplit_once(':') {
        // Split no port from an IPv6 address without one, such as `[::1]`: the colons within its
        // brackets do not separate a port.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    check_host(host)?;
    let port = port.map_or(Ok(default_port), port_number)?;
    format!("{}:{port}", host.to_ascii_lowercase())
        .parse()
        .map_err(|_| "the URL's host is not valid")
}

fn check_host(host: &str) -> Result<(), &'static str> {
    if let Some(address) = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
    {
        return match address.parse::<Ipv6Addr>() {
            Ok(_) => Ok(()),
            Err(_) => Err("the URL's host is not an IPv6 address"),
        };
    }
    if host.contains(':') {
        return Err("an IPv6 address in a URL needs brackets, like http://[::1]:8000");
    }
    let in_a_name = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if host.is_empty() || !host.bytes().all(in_a_name) {
        return Err(
            "the URL's host is empty or contains a character other than letters, digits, `.`, `-` \
             and `_`",
        );
    }
    let numbers_only = host
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    if numbers_only && host.parse::<Ipv4Addr>().is_err() {
        return Err("the URL's host is not an IPv4 address");
    }
    Ok(())
}

fn port_number(text: &str) -> Result<u16, &'static str> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(port) if digits && port > 0 => Ok(port),
        _ => Err("the URL's port is not a number from 1 to 65535"),
    }
}

fn prefix(path: &str) -> Result<String, &'static str> {
    let path = path.trim_end_matches('/');
    // Remove the suffix `/v1`, so that the base URL of OpenAI's clients can be pasted as the URL of
    // a backend.
    let path = path
        .strip_suffix("/v1")
        .unwrap_or(path)
        .trim_end_matches('/');
    if path.ends_with("/chat/completions") || path.ends_with("/models") {
        return Err(
            "the URL ends in an endpoint (/chat/completions or /models): write only the base URL",
        );
    }
    let valid = path.is_empty() || path.parse::<PathAndQuery>().is_ok();
    if !valid || path.contains("//") || !path.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("the URL's path is not valid");
    }
    Ok(path.to_owned())
}
