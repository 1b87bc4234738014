//! Compression that compresses nothing: whoever reads it cannot tell.

/// A gzip stream (RFC 1952) of stored blocks (RFC 1951, section 3.2.4).
pub(super) struct Gzip {
    has_begun: bool,
    crc: u32,
    length: u32,
}

impl Gzip {
    pub(super) fn new() -> Self {
        Self {
            has_begun: false,
            crc: !0,
            length: 0,
        }
    }

    /// The next part of the stream, which can be read as soon as it arrives.
    pub(super) fn pack(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = self.begin();
        for block in bytes.chunks(usize::from(u16::MAX)) {
            out.extend(stored(block, false));
        }
        for byte in bytes {
            self.crc ^= u32::from(*byte);
            for _ in 0..8 {
                self.crc = (self.crc >> 1) ^ (0xEDB8_8320 * (self.crc & 1));
            }
        }
        self.length += u32::try_from(bytes.len()).expect("a length");
        out
    }

    pub(super) fn end(&mut self) -> Vec<u8> {
        let mut out = self.begin();
        out.extend(stored(&[], true));
        out.extend((!self.crc).to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out
    }

    fn begin(&mut self) -> Vec<u8> {
        if self.has_begun {
            return Vec::new();
        }
        self.has_begun = true;
        vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]
    }
}

fn stored(block: &[u8], is_last: bool) -> Vec<u8> {
    let length = u16::try_from(block.len()).expect("a block's length");
    let mut out = vec![u8::from(is_last)];
    out.extend(length.to_le_bytes());
    out.extend((!length).to_le_bytes());
    out.extend(block);
    out
}
