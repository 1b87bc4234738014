//! Base64 (RFC 4648).

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Returns the Base64 text of these bytes, with padding (RFC 4648, section 4).
pub(super) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, at| {
            bits << 8 | usize::from(group.get(at).copied().unwrap_or(0))
        });
        for at in 0..4 {
            // A last group of one byte has two digits, a last group of two bytes has three. Padding
            // follows.
            if at <= group.len() {
                text.push(char::from(DIGITS[bits >> (18 - 6 * at) & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}
