//! Base64 encoder for the demo's embeddings, which clients may request in that encoding.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as Base64 with padding (RFC 4648, section 4).
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | usize::from(group.get(at).copied().unwrap_or(0))
        });
        for at in 0..4 {
            // Pad the last group to four digits with `=`: one byte becomes two digits, two bytes
            // become three.
            if at <= group.len() {
                text.push(char::from(DIGITS[bits >> (18 - 6 * at) & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encode_matches_the_examples_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
