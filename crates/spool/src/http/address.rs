//! URL of the receiver.

use std::net::{IpAddr, Ipv6Addr};

use ureq::http::Uri;

use super::HttpError;

/// A validated URL.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) uri: Uri,
    /// URL for messages, without the query, which may contain a key.
    pub(super) shown: String,
    pub(super) is_loopback: bool,
}

impl Address {
    /// Parses a URL. Errors do not repeat any part of the text, which may contain a password.
    pub(super) fn parse(text: &str, allow_plain_http: bool) -> Result<Self, HttpError> {
        let text = text.trim();
        let has_scheme = |scheme: &str| {
            let start = text.get(..scheme.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        if !has_scheme("https://") && !has_scheme("http://") {
            return Err(invalid("it does not start with https://"));
        }
        if text.contains('#') {
            return Err(invalid("it has a fragment (#)"));
        }
        let uri: Uri = text.parse().map_err(|_| invalid("it is not a valid URL"))?;
        let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(invalid(
                "it has a user or a password in it; a token is given apart from the URL",
            ));
        }
        let host = authority.host();
        if host.is_empty() {
            return Err(invalid("it has no host"));
        }
        // Check the port, because `Uri` accepts an empty port (`host:`) and one above 65535
        // (`host:99999`). Such a URL must be rejected now, and not fail at the first delivery.
        if authority.as_str().len() > host.len() && authority.port_u16().unwrap_or(0) == 0 {
            return Err(invalid("its port is not a number from 1 to 65535"));
        }
        let is_loopback = is_loopback(host);
        if has_scheme("http://") && !is_loopback && !allow_plain_http {
            let error = invalid(
                "without https the network can read the records and the token; http is allowed \
                 only to this machine",
            );
            return Err(HttpError {
                is_plain_http: true,
                ..error
            });
        }
        let scheme = if has_scheme("https://") {
            "https"
        } else {
            "http"
        };
        let shown = format!("{scheme}://{authority}{}", uri.path());
        Ok(Self {
            uri,
            shown,
            is_loopback,
        })
    }
}

fn invalid(reason: &str) -> HttpError {
    HttpError::new(format!("the URL cannot be used: {reason}"))
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    match bare.parse::<IpAddr>() {
        Ok(IpAddr::V4(address)) => address.is_loopback(),
        Ok(IpAddr::V6(address)) => address == Ipv6Addr::LOCALHOST,
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_shown_without_its_query() {
        let shown = |text| Address::parse(text, false).unwrap().shown;
        assert_eq!(
            shown("https://api.example/v1?key=s3cret"),
            "https://api.example/v1"
        );
        assert_eq!(
            shown(" HTTPS://api.example:8443 "),
            "https://api.example:8443/"
        );
    }

    #[test]
    fn plain_http_reaches_only_this_machine_unless_allowed() {
        for url in [
            "http://localhost/",
            "http://LOCALHOST:8080/usage",
            "http://127.0.0.1:1/",
            "http://127.9.9.9/",
            "http://[::1]:8080/",
        ] {
            assert!(Address::parse(url, false).unwrap().is_loopback, "{url}");
        }
        for url in [
            "http://api.example/",
            "http://10.0.0.1/",
            "http://localhost.example/",
            "http://127.0.0.1.example/",
            "http://[::2]/",
            "http://0.0.0.0/",
        ] {
            let error = Address::parse(url, false).unwrap_err().to_string();
            assert!(error.contains("without https"), "{error}");
            assert!(!Address::parse(url, true).unwrap().is_loopback, "{url}");
            assert!(Address::parse(&url.replace("http:", "https:"), false).is_ok());
        }
    }

    #[test]
    fn invalid_url_is_rejected_and_not_repeated_in_the_error() {
        for url in [
            "",
            "s3cret",
            "ftp://s3cret/",
            "https:/s3cret",
            "https://",
            "https:///s3cret",
            "https://user:s3cret@api.example/",
            "https://s3cret@api.example/",
            "https://api.example/#s3cret",
            "https://api.example:s3cret/",
            "https://s3cret:0/",
            "https://s3cret:65536/",
            "https://s3cret:/",
            "https://s3 cret/",
            "https://[::1/s3cret",
        ] {
            let error = Address::parse(url, true).unwrap_err();
            assert!(
                !format!("{error} {error:?}").contains("s3"),
                "{url}: {error}"
            );
        }
    }
}
