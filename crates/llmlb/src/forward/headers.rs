//! Which headers pass, and which belong to one connection or one party alone.

use http::header::{self, HeaderMap, HeaderName};

/// RFC 9110, section 7.6.1, and what history added to it.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("keep-alive"),
];

/// What a client says to us and not to a backend: its credentials are ours to check (Anthropic's,
/// Azure's and Google's clients use headers of their own), and we answered its expectation.
const OURS_ALONE: [HeaderName; 7] = [
    header::AUTHORIZATION,
    header::COOKIE,
    header::EXPECT,
    header::HOST,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("api-key"),
    HeaderName::from_static("x-goog-api-key"),
];

/// Leaves what a backend may see.
pub(super) fn to_backend(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    for name in &OURS_ALONE {
        headers.remove(name);
    }
}

/// Leaves what a client may see.
pub(super) fn to_client(headers: &mut HeaderMap) {
    remove_hop_by_hop(headers);
    headers.remove(header::SET_COOKIE);
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    // A length beside chunks is how messages are smuggled: the chunks win.
    if headers.contains_key(header::TRANSFER_ENCODING) {
        headers.remove(header::CONTENT_LENGTH);
    }
    if headers.contains_key(header::CONNECTION) {
        // `Connection` names further headers that end here.
        let named: Vec<HeaderName> = headers
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| name.trim().parse().ok())
            // They frame the message; no one may make them vanish.
            .filter(|name| *name != header::CONTENT_LENGTH && *name != header::CONTENT_TYPE)
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        map
    }

    fn names(map: &HeaderMap) -> Vec<&str> {
        map.iter().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn what_belongs_to_one_connection_ends_there() {
        let mut map = headers(&[
            ("connection", "close, X-Private"),
            ("connection", "x-second"),
            ("x-private", "1"),
            ("x-second", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("upgrade", "h2c"),
            ("accept", "a"),
            ("accept", "b"),
        ]);
        let mut response = map.clone();
        to_backend(&mut map);
        assert_eq!(names(&map), ["accept", "accept"]);
        to_client(&mut response);
        assert_eq!(names(&response), ["accept", "accept"]);
    }

    #[test]
    fn credentials_stay_with_the_party_they_were_given_to() {
        let mut map = headers(&[
            ("authorization", "Bearer client"),
            ("x-api-key", "client"),
            ("api-key", "client"),
            ("cookie", "session=1"),
            ("host", "llmlb"),
            ("expect", "100-continue"),
            ("openai-organization", "o"),
        ]);
        to_backend(&mut map);
        assert_eq!(names(&map), ["openai-organization"]);
        let mut map = headers(&[("set-cookie", "a=1"), ("x-ratelimit-limit", "3")]);
        to_client(&mut map);
        assert_eq!(names(&map), ["x-ratelimit-limit"]);
    }

    #[test]
    fn chunks_win_over_a_length_and_a_length_cannot_be_named_away() {
        let mut map = headers(&[("transfer-encoding", "chunked"), ("content-length", "5")]);
        to_backend(&mut map);
        assert_eq!(names(&map), [""; 0]);
        let mut map = headers(&[("connection", "content-length"), ("content-length", "5")]);
        to_backend(&mut map);
        assert_eq!(names(&map), ["content-length"]);
    }
}
