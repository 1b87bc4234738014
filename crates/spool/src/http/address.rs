//! Where batches are posted to.

use std::net::{IpAddr, Ipv6Addr};

use ureq::http::Uri;

use super::HttpError;

/// A URL that was checked.
#[derive(Clone, Debug)]
pub(super) struct Address {
    pub(super) uri: Uri,
    /// Without the query, which may hold a key.
    pub(super) shown: String,
    pub(super) is_loopback: bool,
}

impl Address {
    /// The error never repeats any of the text: there may be a password in it.
    pub(super) fn parse(text: &str, allow_plain_http: bool) -> Result<Self, HttpError> {
        let text = text.trim();
        let is = |scheme: &str| {
            let start = text.get(..scheme.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
        };
        if !is("https://") && !is("http://") {
            return Err(refused("it does not start with https://"));
        }
        if text.contains('#') {
            return Err(refused("it has a fragment (#)"));
        }
        let uri: Uri = text.parse().map_err(|_| refused("it is not valid"))?;
        let authority = uri.authority().ok_or_else(|| refused("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(refused(
                "it has a user or a password in it; a token is given apart from the URL",
            ));
        }
        let host = authority.host();
        if host.is_empty() {
            return Err(refused("it has no host"));
        }
        // `host:` and `host:99999` parse, and mean nothing.
        if authority.as_str().len() > host.len() && authority.port_u16().unwrap_or(0) == 0 {
            return Err(refused("its port is not a number from 1 to 65535"));
        }
        let is_loopback = is_loopback(host);
        if is("http://") && !is_loopback && !allow_plain_http {
            return Err(refused(
                "without https anyone on the way can read the records and the token; only this \
                 machine may be reached over http",
            ));
        }
        let scheme = if is("https://") { "https" } else { "http" };
        let shown = format!("{scheme}://{authority}{}", uri.path());
        Ok(Self {
            uri,
            shown,
            is_loopback,
        })
    }
}

fn refused(why: &str) -> HttpError {
    HttpError::new(format!("the URL cannot be used: {why}"))
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
    fn a_url_is_shown_without_its_query() {
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
    fn plain_http_reaches_this_machine_only_unless_it_is_allowed() {
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
            let told = Address::parse(url, false).unwrap_err().to_string();
            assert!(told.contains("without https"), "{told}");
            assert!(!Address::parse(url, true).unwrap().is_loopback, "{url}");
            assert!(Address::parse(&url.replace("http:", "https:"), false).is_ok());
        }
    }

    #[test]
    fn what_is_no_url_is_refused_and_not_repeated() {
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
