//! Gzip compression for tests. The output is not much smaller, but a reader that does not
//! decompress it cannot find the text.

/// A gzip stream (RFC 1952) of literals with the fixed codes (RFC 1951, section 3.2.6).
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

    /// Compresses the bytes and returns them as the next part of the gzip stream. The client can
    /// decompress each part as soon as it is received.
    pub(super) fn pack(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Bits {
            bytes: self.begin(),
            free: 0,
        };
        // The first three bits of a block state that further blocks follow and that this block uses
        // the fixed codes.
        out.push(0, 1);
        out.push(0b10, 2);
        for byte in bytes {
            let literal = u16::from(*byte);
            match literal {
                0..144 => out.push(0x30 + literal, 8),
                _ => out.push(0x190 + literal - 144, 9),
            }
            self.crc ^= u32::from(*byte);
            for _ in 0..8 {
                self.crc = (self.crc >> 1) ^ (0xEDB8_8320 * (self.crc & 1));
            }
        }
        // The block ends, and an empty block aligns the stream to a byte, so that the client can
        // decompress all that was sent so far.
        out.push(0, 7);
        out.push(0, 3);
        out.bytes.extend([0, 0, 255, 255]);
        self.length += u32::try_from(bytes.len()).expect("a length");
        out.bytes
    }

    pub(super) fn end(&mut self) -> Vec<u8> {
        let mut out = self.begin();
        // Empty final block, which ends the compressed data. The checksum and the length of the
        // uncompressed data follow.
        out.extend([3, 0]);
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

/// Bit string. The first bit of each byte is its lowest bit.
struct Bits {
    bytes: Vec<u8>,
    free: u8,
}

impl Bits {
    /// Adds the lowest bits of a code to the bit string, the highest of them first, as gzip stores
    /// its codes.
    fn push(&mut self, code: u16, count: u8) {
        for at in (0..count).rev() {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            let bit = u8::from(code >> at & 1 == 1);
            if let Some(last) = self.bytes.last_mut() {
                *last |= bit << (8 - self.free);
            }
            self.free -= 1;
        }
    }
}
