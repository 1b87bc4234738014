//! SHA-256 of the secrets of API keys, and its hexadecimal digits.

use std::fmt::{self, Write};

use sha2::{Digest, Sha256};

/// SHA-256 of a secret.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct SecretHash(pub(crate) [u8; 32]);

impl SecretHash {
    pub(crate) fn new(secret: &[u8]) -> Self {
        Self(Sha256::digest(secret).into())
    }

    /// Parses 64 hexadecimal digits.
    pub(crate) fn from_hex(text: &str) -> Option<Self> {
        bytes_from_hex(text).map(Self)
    }
}

/// Do not print the hash: it would confirm a guess of a secret that can be guessed.
impl fmt::Debug for SecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Parses 32 bytes as 64 hexadecimal digits, such as the SHA-256 of a secret.
pub(crate) fn bytes_from_hex(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? << 4 | digit(1)?).ok()?;
    }
    Some(bytes)
}

pub(crate) fn bytes_to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Ignore the result: writing into memory cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_digits_are_parsed_in_both_cases_and_nothing_else_is() {
        let hash = SecretHash::new(b"abc");
        let text = bytes_to_hex(&hash.0);
        assert!(text.starts_with("ba7816bf"));
        assert_eq!(SecretHash::from_hex(&text), Some(hash));
        assert_eq!(SecretHash::from_hex(&text.to_uppercase()), Some(hash));
        let plus = format!("+a{}", &text[2..]);
        let wide = format!("é{}", &text[2..]);
        for bad in ["", &text[1..], &format!("{text}0"), &plus, &wide] {
            assert_eq!(SecretHash::from_hex(bad), None, "{bad}");
        }
        assert_eq!(format!("{hash:?}"), "***");
    }
}
