//! Keyed hashes (HMAC) of the secrets of API keys.

use std::fmt;

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use crate::config::SecretHash;

/// Number of bytes at the start of a keyed hash by which a table finds a secret.
pub(super) const PREFIX: usize = 16;

/// HMAC-SHA-256 of the secret of an API key.
#[derive(Clone, Copy)]
pub(crate) struct KeyedHash(pub(crate) [u8; 32]);

impl KeyedHash {
    /// Returns the start of the hash, by which a table finds a secret. The time of that search
    /// depends on the hash, which discloses nothing useful: without the HMAC key, a client cannot
    /// choose secrets with similar hashes.
    pub(super) fn prefix(&self) -> [u8; PREFIX] {
        let mut prefix = [0; PREFIX];
        prefix.copy_from_slice(&self.0[..PREFIX]);
        prefix
    }

    /// Compares two hashes in constant time, so that the time of a rejection does not disclose a
    /// part of the hash.
    pub(super) fn is_equal(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Computes keyed hashes. The HMAC key is processed once, so the hash of a secret of usual length
/// costs two compressions of SHA-256.
#[derive(Clone)]
pub(super) struct Hasher(hmac::Key);

impl Hasher {
    pub(super) fn new(key: &[u8; 32]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    pub(super) fn hash(&self, secret: &[u8]) -> KeyedHash {
        self.sign(secret)
    }

    /// Returns the keyed hash for a secret of which only the SHA-256 is known. A leading NUL, which
    /// no secret has, distinguishes it from the hash of a secret: otherwise a client that knows the
    /// SHA-256 could authenticate with its bytes.
    pub(super) fn hash_of_digest(&self, digest: SecretHash) -> KeyedHash {
        let mut text = [0; 33];
        text[1..].copy_from_slice(&digest.0);
        self.sign(&text)
    }

    fn sign(&self, text: &[u8]) -> KeyedHash {
        let tag = hmac::sign(&self.0, text);
        let mut hash = [0; 32];
        hash.copy_from_slice(tag.as_ref());
        KeyedHash(hash)
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Returns 32 random bytes from the operating system. The error means that the system has no source
/// of randomness, so no secret can be created.
pub(crate) fn random_bytes() -> Result<[u8; 32], NoRandomness> {
    let mut bytes = [0; 32];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// Error: the operating system supplies no random bytes, so no key or secret can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRandomness;

impl fmt::Display for NoRandomness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the operating system supplies no random bytes")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{bytes_from_hex, bytes_to_hex};

    /// Expected value from the second test of RFC 4231.
    #[test]
    fn keyed_hash_is_hmac_sha_256() {
        let key = hmac::Key::new(hmac::HMAC_SHA256, b"Jefe");
        let tag = hmac::sign(&key, b"what do ya want for nothing?");
        let expected = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        assert_eq!(bytes_to_hex(tag.as_ref()), expected);

        let hasher = Hasher::new(&[7; 32]);
        let hash = hasher.hash(b"secret");
        assert!(hash.is_equal(&hasher.hash(b"secret")));
        assert!(!hash.is_equal(&Hasher::new(&[8; 32]).hash(b"secret")));
        let digest = SecretHash::new(b"secret");
        assert!(!hasher.hash_of_digest(digest).is_equal(&hash));
        assert!(
            !hasher
                .hash_of_digest(digest)
                .is_equal(&hasher.hash(&digest.0))
        );
        let mut last = hash;
        last.0[31] ^= 1;
        assert!(!hash.is_equal(&last), "every byte counts");
        assert_eq!(bytes_from_hex(&bytes_to_hex(&hash.0)), Some(hash.0));
    }

    #[test]
    fn hashes_and_keys_are_not_printed() {
        let hasher = Hasher::new(&[7; 32]);
        let hash = hasher.hash(b"secret");
        assert_eq!(format!("{hasher:?} {hash:?}"), "*** ***");
    }
}
