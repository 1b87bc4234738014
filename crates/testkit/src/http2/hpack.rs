//! The part of HPACK (RFC 7541) that a hand-written client needs: every field is sent as a literal
//! without compression, and of a response only the status is decoded.

/// Returns a header block of these fields, in this order.
pub fn encode(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        // First byte of a field in HPACK (RFC 7541, section 6.2.2): a literal field that is not
        // added to the dynamic table and whose name is a string.
        block.push(0);
        string(&mut block, name.as_bytes());
        string(&mut block, value.as_bytes());
    }
    block
}

fn string(block: &mut Vec<u8>, bytes: &[u8]) {
    integer(block, bytes.len());
    block.extend_from_slice(bytes);
}

fn integer(block: &mut Vec<u8>, value: usize) {
    const PREFIX: usize = 0x7f;
    if value < PREFIX {
        block.extend(u8::try_from(value));
        return;
    }
    block.push(0x7f);
    let mut rest = value - PREFIX;
    while rest >= 0x80 {
        block.extend(u8::try_from(rest % 0x80).map(|byte| byte | 0x80));
        rest /= 0x80;
    }
    block.extend(u8::try_from(rest));
}

/// Returns the status in a response's header block. Servers send it as the first field.
pub(super) fn status(mut block: &[u8]) -> Option<u16> {
    // Updates of the dynamic table's size may precede the first field. They are skipped.
    while let [first, rest @ ..] = block
        && first & 0xe0 == 0x20
    {
        block = rest;
    }
    let (&first, rest) = block.split_first()?;
    // Statuses that the static table of HPACK contains as whole fields, at indexes 8 to 14.
    let indexed = [200, 204, 206, 304, 400, 404, 500];
    if (0x88..=0x8e).contains(&first) {
        return indexed.get(usize::from(first - 0x88)).copied();
    }
    // Any other status is a literal whose name refers to a `:status` entry of the static table.
    let index = match first {
        0x40..=0x7f => first & 0x3f,
        0x00..=0x1f => first & 0x0f,
        _ => return None,
    };
    if !(8..=14).contains(&index) {
        return None;
    }
    let (&length, value) = rest.split_first()?;
    let value = value.get(..usize::from(length & 0x7f))?;
    let digits = if length & 0x80 == 0 {
        value.to_vec()
    } else {
        huffman_digits(value)
    };
    String::from_utf8(digits).ok()?.parse().ok()
}

/// Decodes digits in Huffman code: `0` to `2` have 5 bits, `3` to `9` have 6.
fn huffman_digits(bytes: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = bytes
        .iter()
        .flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1))
        .collect();
    let number = |bits: &[u8]| bits.iter().fold(0, |number, bit| number << 1 | bit);
    let mut digits = Vec::new();
    let mut rest = bits.as_slice();
    loop {
        if let Some(code) = rest.get(..5).map(number)
            && code <= 2
        {
            digits.push(b'0' + code);
            rest = &rest[5..];
        } else if let Some(code) = rest.get(..6).map(number)
            && (0x19..=0x1f).contains(&code)
        {
            digits.push(b'3' + code - 0x19);
            rest = &rest[6..];
        } else {
            return digits;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_literals() {
        assert_eq!(
            encode(&[(":path", "/")]),
            [0, 5, b':', b'p', b'a', b't', b'h', 1, b'/']
        );
        let long = "x".repeat(300);
        let block = encode(&[("a", &long)]);
        assert_eq!(block[3..6], [0x7f, 0xad, 0x01]);
        assert_eq!(block.len(), 6 + 300);
    }

    #[test]
    fn status_is_decoded_in_every_form() {
        assert_eq!(status(&[0x88]), Some(200));
        assert_eq!(status(&[0x20, 0x8d]), Some(404));
        assert_eq!(status(&[0x48, 3, b'4', b'2', b'9']), Some(429));
        // Header blocks for the statuses 302 and 307 from RFC 7541, appendix C.6.
        assert_eq!(status(&[0x48, 0x82, 0x64, 0x02]), Some(302));
        assert_eq!(status(&[0x48, 0x83, 0x64, 0x0e, 0xff]), Some(307));
        assert_eq!(status(&[0x40]), None);
    }
}
