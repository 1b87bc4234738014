//! Detects requests that this server has forwarded already. Two balancers that are backends of each
//! other would otherwise forward a request in circles until their descriptors are used up.

use http::header::{self, HeaderMap, HeaderValue};

/// This server's own entry in the header field `Via`, by which it recognizes requests that it has
/// forwarded already.
#[derive(Clone, Debug)]
pub(crate) struct Via(HeaderValue);

impl Via {
    /// Returns the entry of the server that listens on `port`. `token` must differ from the tokens
    /// of all other servers with this port: a server rejects requests with its own entry as a loop,
    /// and would reject requests of a server with the same entry.
    pub(crate) fn new(port: u16, token: u64) -> Self {
        let name = format!("1.1 llmlb-{port}-{token}");
        Self(HeaderValue::try_from(name).unwrap_or_else(|_| HeaderValue::from_static("1.1 llmlb")))
    }

    /// True if the header fields show that this server has forwarded the request already, so that
    /// it must be rejected.
    pub(crate) fn is_in(&self, headers: &HeaderMap) -> bool {
        entries(headers).any(|entry| entry == self.0.as_bytes())
    }

    /// Writes the field `Via` for a backend: the entries of every llmlb that has forwarded the
    /// request, and this server's as the last. Entries of other proxies are dropped, because they
    /// describe the client's network.
    pub(super) fn write(&self, headers: &HeaderMap, out: &mut Vec<u8>) {
        out.extend_from_slice(b"via: ");
        for entry in entries(headers)
            .filter(|entry| is_llmlb_entry(entry))
            .take(MAX_ENTRIES)
        {
            out.extend_from_slice(entry);
            out.extend_from_slice(b", ");
        }
        out.extend_from_slice(self.0.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

/// Maximum number of entries in `Via` that are forwarded. It is larger than any realistic chain of
/// balancers, and bounds a field that clients can send.
const MAX_ENTRIES: usize = 16;

/// True if an entry of `Via` has the format of llmlb's entries. A client can forge such an entry, but it
/// contains only two numbers, so that forwarding it reveals nothing.
fn is_llmlb_entry(entry: &[u8]) -> bool {
    let is_number =
        |text: &[u8]| matches!(text.len(), 1..=20) && text.iter().all(u8::is_ascii_digit);
    let numbers = entry.strip_prefix(b"1.1 llmlb-").unwrap_or_default();
    let mut parts = numbers.split(|byte| *byte == b'-');
    parts.next().is_some_and(is_number)
        && parts.next().is_some_and(is_number)
        && parts.next().is_none()
}

fn entries(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    headers
        .get_all(header::VIA)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .map(<[u8]>::trim_ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_entry_is_found_among_others() {
        let (own, other) = (Via::new(8000, 7), Via::new(8000, 77));
        let mut headers = HeaderMap::new();
        headers.insert(header::VIA, HeaderValue::from_static("1.1 proxy,1.0 llmlb"));
        headers.append(header::VIA, other.0.clone());
        assert!(!own.is_in(&headers));
        headers.append(header::VIA, own.0.clone());
        assert!(own.is_in(&headers) && other.is_in(&headers));
        let joined = "1.1 a , 1.1 llmlb-8000-7, 1.1 b";
        headers.insert(header::VIA, HeaderValue::from_static(joined));
        assert!(own.is_in(&headers) && !other.is_in(&headers));
    }

    #[test]
    fn chain_keeps_the_entries_of_balancers_and_drops_those_of_other_proxies() {
        let mut headers = HeaderMap::new();
        let sent =
            "1.1 corp-proxy, 1.1 llmlb-8000-7, 1.1 llmlb-x-y, 1.1 llmlb-1-2 (text), 1.1 llmlb-1";
        headers.insert(header::VIA, HeaderValue::from_static(sent));
        let mut field = Vec::new();
        Via::new(9000, 8).write(&headers, &mut field);
        assert_eq!(field, b"via: 1.1 llmlb-8000-7, 1.1 llmlb-9000-8\r\n");
    }
}
