//! Names for requests and for those who send them.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use foldhash::fast::FixedState;
use http::{HeaderMap, HeaderValue, header};
use uuid::{Builder, Uuid};

use crate::balance::ClientKey;
use crate::client_network::ClientNetwork;
use crate::headers::REQUEST_ID;

/// The longest id that a client may give.
const LONGEST: usize = 128;

/// Makes ids that no other request has.
#[derive(Debug)]
pub(crate) struct Ids {
    seed: RandomState,
    next: AtomicU64,
}

impl Default for Ids {
    fn default() -> Self {
        Self {
            seed: RandomState::new(),
            next: AtomicU64::new(0),
        }
    }
}

impl Ids {
    /// A UUID that sorts by time.
    pub(crate) fn next(&self) -> Uuid {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (high, low) = (self.seed.hash_one(number), self.seed.hash_one(!number));
        let mut random = [0; 10];
        random[..8].copy_from_slice(&high.to_le_bytes());
        random[8..].copy_from_slice(&low.to_le_bytes()[..2]);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |passed| passed.as_millis());
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        Builder::from_unix_timestamp_millis(now, &random).into_uuid()
    }
}

/// When an id was made, in milliseconds since 1970.
pub(super) fn time_ms(id: &Uuid) -> u64 {
    u64::try_from(id.as_u128() >> 80).unwrap_or_default()
}

/// What the request is called from end to end: as the client says, if that can be a name, else by
/// an id of ours.
pub(super) fn of_request(headers: &HeaderMap, own: &Uuid) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|id| {
        let bytes = id.as_bytes();
        (1..=LONGEST).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    // A copy: the client's field is a part of the buffer that its head was read into.
    let given = given.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok());
    given.unwrap_or_else(|| {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        HeaderValue::from_str(own.as_hyphenated().encode_lower(&mut text))
            .unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    })
}

/// The sender of a request that came from this address. The credential is a header that clients
/// choose freely, so it only distinguishes clients that share an address.
pub(crate) fn client_key(address: IpAddr, headers: &HeaderMap) -> ClientKey {
    let credential = headers
        .get(header::AUTHORIZATION)
        .or_else(|| headers.get("x-api-key"))
        .or_else(|| headers.get("api-key"));
    ClientKey {
        address: ClientNetwork::containing(address).number(),
        credential: credential.map_or(0, |credential| {
            FixedState::default().hash_one(credential.as_bytes())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_id_of_the_clients_is_kept_and_any_other_replaced() {
        let own = Ids::default().next();
        let named = |text: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(text).unwrap());
            of_request(&headers, &own)
        };
        assert_eq!(named(b"abc-1"), "abc-1");
        let long = [b'a'; 129];
        for text in [&b""[..], b"a b", b"\xe9", &long] {
            assert_eq!(named(text), own.to_string());
        }
        assert_eq!(of_request(&HeaderMap::new(), &own), own.to_string());
    }

    #[test]
    fn ids_differ_and_sort_by_time() {
        let ids = Ids::default();
        let first = ids.next();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let second = ids.next();
        assert!(first < second);
        assert!(time_ms(&first) < time_ms(&second));
        assert_eq!(first.get_version_num(), 7);
    }

    #[test]
    fn credential_distinguishes_clients_of_one_address() {
        let with = |name: &'static str, value: &'static str| {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(header::HeaderName::from_static(name), value)]);
            client_key(IpAddr::from([192, 0, 2, 1]), &headers)
        };
        let first = with("authorization", "Bearer a");
        for other in [
            with("authorization", "Bearer b"),
            with("x-api-key", "a"),
            with("api-key", "b"),
            with("accept", "a"),
        ] {
            assert_eq!(first.address, other.address);
            assert_ne!(first.credential, other.credential);
        }
    }
}
