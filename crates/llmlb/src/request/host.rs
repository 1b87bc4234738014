//! The name by which a client calls this server: one, and a valid one (RFC 9112, section 3.2).

use http::uri::Authority;
use http::{StatusCode, Version, header, request};

use super::Refusal;

/// Two readers who take two different names from a request do not agree on where it goes.
pub(super) fn check(head: &request::Parts) -> Result<(), Refusal> {
    let mut hosts = head.headers.get_all(header::HOST).iter();
    let why = match (hosts.next(), hosts.next()) {
        (Some(host), None) if is_valid(host.as_bytes()) => return Ok(()),
        (Some(_), None) => "is not valid",
        (Some(_), Some(_)) => "is there twice",
        (None, _) if head.version == Version::HTTP_11 => "is missing",
        (None, _) => return Ok(()),
    };
    Err(Refusal::new(
        StatusCode::BAD_REQUEST,
        "bad_host",
        format!("The request's field `Host` {why}."),
    ))
}

/// Some clients leave it empty.
fn is_valid(host: &[u8]) -> bool {
    host.is_empty() || (!host.contains(&b'@') && Authority::try_from(host).is_ok())
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
    fn there_is_one_host_and_it_is_valid() {
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
}
