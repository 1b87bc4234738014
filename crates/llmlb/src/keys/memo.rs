//! The last secret of a connection and its key. Clients send the same secret with every request, so most requests
//! need no keyed hash.

use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use subtle::ConstantTimeEq;

use super::ApiKey;

/// Maximum length, in words of eight bytes, of a secret that a connection remembers. The secrets
/// that `llmlb key` creates are shorter.
const WORDS: usize = 10;
const MAX_BYTES: usize = WORDS * size_of::<u64>();

/// The last secret of a connection. It is compared in constant time, because a reverse proxy can send
/// requests of several clients over one connection.
#[derive(Debug, Default)]
pub(crate) struct SecretMemo(Mutex<Option<Remembered>>);

#[derive(Clone)]
struct Remembered {
    secret: [u64; WORDS],
    length: usize,
    /// Number of the snapshot of the key table in which the secret was found. After a change of the
    /// table the secret is looked up anew, so that a revoked key is rejected.
    version: u64,
    found: FoundKey,
}

/// A key, and the times at which it or its secret expires.
#[derive(Clone, Debug)]
pub(super) struct FoundKey {
    pub(super) key: Arc<ApiKey>,
    pub(super) ends: [Option<Timestamp>; 2],
}

impl SecretMemo {
    /// Returns the key if the secret is the remembered one, and if the table has not changed since then.
    pub(super) fn get(&self, secret: &[u8], version: u64) -> Option<FoundKey> {
        let memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = memo.as_ref()?;
        if last.version != version || last.length != secret.len() {
            return None;
        }
        let is_equal = last.secret.ct_eq(&padded(secret)?);
        bool::from(is_equal).then(|| last.found.clone())
    }

    /// Remembers a secret that was found in the key table. Longer secrets are looked up each time.
    pub(super) fn set(&self, secret: &[u8], version: u64, found: &FoundKey) {
        let Some(words) = padded(secret) else {
            return;
        };
        let mut memo = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *memo = Some(Remembered {
            secret: words,
            length: secret.len(),
            version,
            found: found.clone(),
        });
    }
}

impl std::fmt::Debug for Remembered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("***")
    }
}

/// Returns a secret as words, padded with zeros; `None` if the secret is too long to be remembered.
fn padded(secret: &[u8]) -> Option<[u64; WORDS]> {
    let mut bytes = [0; MAX_BYTES];
    bytes.get_mut(..secret.len())?.copy_from_slice(secret);
    let mut words = [0; WORDS];
    for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
        *word = u64::from_ne_bytes(*eight);
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::test_key;

    fn found(name: &str) -> FoundKey {
        FoundKey {
            key: test_key(name, None),
            ends: [None; 2],
        }
    }

    #[test]
    fn memo_returns_the_key_of_the_same_secret_in_the_same_table_only() {
        let memo = SecretMemo::default();
        assert!(memo.get(b"secret", 1).is_none());
        memo.set(b"secret", 1, &found("k"));
        assert_eq!(&*memo.get(b"secret", 1).unwrap().key.name, "k");
        for other in [&b"secreT"[..], b"secre", b"secret\0", b"", b"Secret"] {
            assert!(memo.get(other, 1).is_none(), "{other:?}");
        }
        assert!(memo.get(b"secret", 2).is_none());
    }

    #[test]
    fn long_secrets_are_not_remembered_and_do_not_match() {
        let memo = SecretMemo::default();
        let long = [b'x'; MAX_BYTES + 1];
        memo.set(&long, 1, &found("k"));
        assert!(memo.get(&long, 1).is_none());
        memo.set(&long[..MAX_BYTES], 1, &found("k"));
        assert!(memo.get(&long[..MAX_BYTES], 1).is_some());
        assert!(memo.get(&long, 1).is_none());
    }
}
