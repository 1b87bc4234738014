//! Checks that a request names exactly one valid host (RFC 9112, section 3.2; RFC 9113, section
//! 8.3.1).

use http::uri::{Authority, Scheme};
use http::{StatusCode, Version, header, request};

use super::Refusal;

/// Rejects a request without one unambiguous host: a proxy in front of llmlb and the backend could
/// take it for requests to different servers.
pub(crate) fn check(head: &request::Parts) -> Result<(), Refusal> {
    let authority = head.uri.authority();
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let why = match (hosts.next(), hosts.next(), authority) {
        _ if authority.is_some_and(|one| one.as_str().contains('@')) => "names a user",
        (Some(host), None, None) if is_valid(host.as_bytes()) => return Ok(()),
        (Some(host), None, Some(one)) if is_same(host.as_bytes(), one, head) => return Ok(()),
        (Some(host), None, Some(_)) if is_valid(host.as_bytes()) => {
            "differs from the host in the request line or in `:authority`"
        }
        (Some(_), None, _) => "is not valid",
        (Some(_), Some(_), _) => "is there twice",
        (None, ..) if head.version == Version::HTTP_11 => "is missing",
        (None, ..) => return Ok(()),
    };
    Err(Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_host",
        format!("The request's field `Host` {why}."),
    ))
}

/// True for a valid value of `Host`. An empty value is valid, because some clients send it.
fn is_valid(host: &[u8]) -> bool {
    host.is_empty() || (!host.contains(&b'@') && Authority::try_from(host).is_ok())
}

/// True if the field `Host` and the host in the request line or `:authority` are the same. Either
/// may omit the scheme's default port.
fn is_same(host: &[u8], authority: &Authority, head: &request::Parts) -> bool {
    let default_port = match head.uri.scheme() {
        Some(scheme) if *scheme == Scheme::HTTPS => &b":443"[..],
        _ => b":80",
    };
    let authority = authority.as_str().as_bytes();
    let without_port = |host| <[u8]>::strip_suffix(host, default_port).unwrap_or(host);
    without_port(authority).eq_ignore_ascii_case(without_port(host))
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn checked(version: Version, hosts: &[&str]) -> bool {
        let mut request = Request::builder().version(version);
        for host in hosts {
            request = request.header(header::HOST, *host);
        }
        check(&request.body(()).unwrap().into_parts().0).is_ok()
    }

    #[test]
    fn request_has_one_valid_host() {
        for host in ["localhost", "127.0.0.1:32768", "[::1]:80", "a.example", ""] {
            assert!(checked(Version::HTTP_11, &[host]), "{host}");
        }
        for host in ["a b", "a/b", "user@host"] {
            assert!(!checked(Version::HTTP_11, &[host]), "{host}");
        }
        assert!(!checked(Version::HTTP_11, &["a", "a"]));
        assert!(!checked(Version::HTTP_11, &[]));
        assert!(checked(Version::HTTP_10, &[]));
        assert!(checked(Version::HTTP_2, &[]));
    }

    #[test]
    fn authority_and_host_must_be_equal() {
        let checked = |uri: &str, host: Option<&str>| {
            let mut request = Request::builder().version(Version::HTTP_2).uri(uri);
            if let Some(host) = host {
                request = request.header(header::HOST, host);
            }
            check(&request.body(()).unwrap().into_parts().0).is_ok()
        };
        for (uri, host) in [
            ("http://a/x", None),
            ("http://a/x", Some("a")),
            ("http://a/x", Some("A:80")),
            ("http://a:80/x", Some("a")),
            ("https://a:443/x", Some("a")),
            ("http://[::1]:8/x", Some("[::1]:8")),
        ] {
            assert!(checked(uri, host), "{uri} {host:?}");
        }
        for (uri, host) in [
            ("http://a/x", Some("b")),
            ("http://a/x", Some("a:81")),
            ("http://a:443/x", Some("a")),
            ("https://a/x", Some("a:80")),
            ("http://a/x", Some("")),
            ("http://u@a/x", Some("a")),
            ("http://u@a/x", None),
        ] {
            assert!(!checked(uri, host), "{uri} {host:?}");
        }
    }
}
