//! Charges incomplete HTTP/2 request heads to `server.body_memory`. h2 parses header fields as they arrive,
//! before llmlb sees the request. A few hundred compressed bytes can expand to far more memory, so a head is
//! charged until its last frame has arrived.

use std::sync::Arc;

use crate::memory_budget::{Budget, Share};

/// Length of the preface that a client sends in front of its first HTTP/2 frame. It is skipped to
/// find that frame.
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// Memory of parsed header fields per byte that counts towards `server.max_header`. HTTP/2 counts
/// at least 33 bytes for a field, which uses up to 170, including the spare capacity of the map.
const MEMORY_PER_BYTE: usize = 6;

/// Charge of the incomplete request head of one HTTP/2 connection. The frames of the connection are
/// tracked to find the end of the head, at which the charge is released.
#[derive(Debug)]
pub(crate) struct UnfinishedHead {
    share: Share,
    charge: usize,
    /// Number of bytes to skip up to the next HTTP/2 frame header.
    skip: usize,
    frame: [u8; FRAME_HEAD],
    filled: usize,
    /// True if the frame whose content is being skipped ends the request head, so that the charge
    /// is released after it.
    is_last: bool,
}

impl UnfinishedHead {
    pub(crate) fn new(budget: &Arc<Budget>, max_header: usize) -> Self {
        Self {
            share: Share::new(budget),
            charge: max_header.saturating_mul(MEMORY_PER_BYTE),
            skip: PREFACE,
            frame: [0; FRAME_HEAD],
            filled: 0,
            is_last: false,
        }
    }

    /// Finds the frames of request heads in bytes that were read. Returns `false` if an incomplete
    /// head would exceed the memory budget.
    #[must_use]
    pub(crate) fn note_read(&mut self, mut read: &[u8]) -> bool {
        loop {
            let skipped = self.skip.min(read.len());
            self.skip -= skipped;
            read = &read[skipped..];
            if self.skip > 0 {
                return true;
            }
            if self.is_last {
                self.is_last = false;
                self.share.shrink_to(0);
            }
            if read.is_empty() {
                return true;
            }
            let taken = (FRAME_HEAD - self.filled).min(read.len());
            self.frame[self.filled..self.filled + taken].copy_from_slice(&read[..taken]);
            self.filled += taken;
            read = &read[taken..];
            if self.filled == FRAME_HEAD {
                self.filled = 0;
                if !self.begin_frame() {
                    return false;
                }
            }
        }
    }

    fn begin_frame(&mut self) -> bool {
        let [first, second, third, kind, flags, ..] = self.frame;
        self.skip = u32::from_be_bytes([0, first, second, third]) as usize;
        if !matches!(kind, HEADERS | CONTINUATION) {
            return true;
        }
        self.is_last = flags & END_HEADERS != 0;
        self.is_last || self.share.grow_to(self.charge)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u8) -> Vec<u8> {
        let mut frame = vec![0, 0, length, kind, flags, 0, 0, 0, 1];
        frame.extend(vec![HEADERS; length.into()]);
        frame
    }

    #[test]
    fn head_is_charged_from_its_first_frame_to_the_end_of_its_last_frame() {
        const CHARGE: usize = 100 * MEMORY_PER_BYTE;
        let data = 0;
        let whole = [
            vec![b'P'; PREFACE],
            frame(4, 0, 0),
            frame(HEADERS, END_HEADERS, 20),
            frame(data, 0, 200),
        ]
        .concat();
        let unfinished = [frame(HEADERS, 0, 20), frame(CONTINUATION, 0, 0)].concat();
        let last = frame(CONTINUATION, END_HEADERS, 20);
        for piece in [1, 7, 1000] {
            let budget = Arc::new(Budget::without_reserve(CHARGE));
            let mut head = UnfinishedHead::new(&budget, 100);
            let mut read = |bytes: &[u8]| bytes.chunks(piece).all(|part| head.note_read(part));
            assert!(read(&whole));
            assert_eq!(budget.used(), 0);
            assert!(read(&unfinished) && read(&last[..last.len() - 1]));
            assert_eq!(budget.used(), CHARGE);
            assert!(read(&last[last.len() - 1..]));
            assert_eq!(budget.used(), 0);
            assert!(read(&unfinished));
            let mut other = UnfinishedHead::new(&budget, 100);
            assert!(other.note_read(&whole) && !other.note_read(&unfinished));
            drop(head);
            assert_eq!(budget.used(), 0);
        }
    }
}
