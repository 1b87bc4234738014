//! New secrets of API keys: `llmlb-` and 32 random bytes in base 62.

use std::fmt;

use super::hasher::{NoRandomness, random_bytes};

/// Prefix by which scanners of source code, and people, recognise a secret.
const PREFIX: &str = "llmlb-";
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Number of digits of 32 bytes in base 62.
const LENGTH: usize = 43;

/// A secret that was just generated for an API key. It is printed once and stored nowhere.
pub(crate) struct NewSecret(String);

impl NewSecret {
    pub(crate) fn generate() -> Result<Self, NoRandomness> {
        Ok(Self::from_bytes(random_bytes()?))
    }

    fn from_bytes(mut number: [u8; 32]) -> Self {
        let mut digits = [0; LENGTH];
        for digit in digits.iter_mut().rev() {
            // Divide the number, whose bytes are digits in base 256, by 62. The rest is the next
            // digit in base 62.
            let mut rest = 0;
            for byte in &mut number {
                let value = rest << 8 | usize::from(*byte);
                *byte = u8::try_from(value / DIGITS.len()).unwrap_or_default();
                rest = value % DIGITS.len();
            }
            *digit = DIGITS[rest];
        }
        let digits = digits.iter().copied().map(char::from);
        Self(PREFIX.chars().chain(digits).collect())
    }

    /// Returns the secret itself. Must be called only by the command that prints the secret once.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NewSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_of_the_random_bytes_is_in_the_secret() {
        let zero = NewSecret::from_bytes([0; 32]);
        assert_eq!(zero.expose(), format!("llmlb-{}", "0".repeat(43)));
        let mut one = [0; 32];
        one[31] = 62;
        assert!(NewSecret::from_bytes(one).expose().ends_with("010"));
        // The largest possible number needs all 43 digits, so no random bit is lost.
        let largest = NewSecret::from_bytes([255; 32]);
        assert!(!largest.expose().starts_with("llmlb-0"));
        assert_eq!(largest.expose().len(), 6 + 43);
    }

    #[test]
    fn secrets_differ_and_are_not_printed() {
        let [a, b] = [(); 2].map(|()| NewSecret::generate().unwrap());
        assert_ne!(a.expose(), b.expose());
        assert_eq!(format!("{a:?}"), "***");
    }
}
