//! Ids that identify requests in responses, logs and usage records, and keys that identify clients
//! for fair queueing and for ejection.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use foldhash::fast::FixedState;
use http::{HeaderMap, HeaderValue, header};
use uuid::{Builder, Uuid};

use super::credentials::KEY_FIELDS;
use crate::balance::ClientKey;
use crate::client_network::ClientNetwork;
use crate::headers::REQUEST_ID;
use crate::keys::ApiKey;

/// Maximum length of a request id that a client sends. A longer one is replaced by llmlb's own id.
const MAX_CLIENT_ID: usize = 128;

/// Generates unique ids.
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
    /// Returns a new UUID. UUIDs of version 7 sort by time.
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

/// Returns the time at which a UUID of version 7 was generated, in milliseconds since 1970.
pub(super) fn time_ms(id: &Uuid) -> u64 {
    u64::try_from(id.as_u128() >> 80).unwrap_or_default()
}

/// Returns the request id for the backend, the client and the log: the client's id if it is valid,
/// otherwise `own`.
pub(super) fn request_id(headers: &HeaderMap, own: &Uuid) -> HeaderValue {
    let client_id = headers.get(REQUEST_ID).filter(|id| {
        let bytes = id.as_bytes();
        (1..=MAX_CLIENT_ID).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
    });
    // Copy the client's id: a reference to its header field would keep the whole buffer that the
    // head was read into.
    let client_id = client_id.and_then(|id| HeaderValue::from_bytes(id.as_bytes()).ok());
    client_id.unwrap_or_else(|| {
        let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
        HeaderValue::from_str(own.as_hyphenated().encode_lower(&mut text))
            .unwrap_or_else(|_| HeaderValue::from_static("unknown"))
    })
}

/// Returns the key that identifies a client in the fair queue, which serves its clients in turn.
///
/// Requests with the same API key count as one client, and the addresses of this key take turns.
/// Without API keys, the address is the client, divided by a hash of its credential. Clients choose
/// such a credential freely, so it only distinguishes clients that share an address.
pub(crate) fn client_key(address: IpAddr, headers: &HeaderMap, key: Option<&ApiKey>) -> ClientKey {
    let network = ClientNetwork::containing(address).number();
    if let Some(key) = key {
        return ClientKey {
            address: key.number,
            credential: network,
        };
    }
    let credential = headers
        .get(header::AUTHORIZATION)
        .or_else(|| KEY_FIELDS.iter().find_map(|name| headers.get(name)));
    ClientKey {
        address: network,
        credential: credential.map_or(0, |credential| {
            FixedState::default().hash_one(credential.as_bytes())
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::test_key;

    #[test]
    fn invalid_request_id_of_a_client_is_replaced() {
        let own = Ids::default().next();
        let named = |text: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(text).unwrap());
            request_id(&headers, &own)
        };
        assert_eq!(named(b"abc-1"), "abc-1");
        let long = [b'a'; 129];
        for text in [&b""[..], b"a b", b"\xe9", &long] {
            assert_eq!(named(text), own.to_string());
        }
        assert_eq!(request_id(&HeaderMap::new(), &own), own.to_string());
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
            client_key(IpAddr::from([192, 0, 2, 1]), &headers, None)
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

    #[test]
    fn api_key_counts_instead_of_the_address() {
        let [alice, bob] = ["alice", "bob"].map(|name| test_key(name, None));
        let client = |host: u8, key: &ApiKey| {
            let address = IpAddr::from([192, 0, 2, host]);
            client_key(address, &HeaderMap::new(), Some(key))
        };
        assert_eq!(client(1, &alice).address, client(2, &alice).address);
        assert_ne!(client(1, &alice).credential, client(2, &alice).credential);
        assert_ne!(client(1, &alice).address, client(1, &bob).address);
    }
}
