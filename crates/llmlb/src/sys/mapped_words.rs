//! Part of a file that is mapped as shared memory. Stores need no system call, and the kernel keeps
//! them if the process is killed. A power failure can lose them.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use memmap2::{MmapOptions, MmapRaw};

use super::bus_error::Guarded;

/// 64-bit words of a file, mapped into memory that other threads and other processes with this file
/// share.
#[derive(Debug)]
pub(crate) struct MappedWords {
    /// Guard against SIGBUS while the file is mapped. It is declared in front of `map` and so
    /// dropped first, so that no other mapping at the same addresses is guarded.
    _guarded: Guarded,
    map: MmapRaw,
    count: usize,
}

impl MappedWords {
    /// Maps `count` words of the file from `offset`, which must be a multiple of the page size. The
    /// file must have these bytes, otherwise stores to them are lost with the process.
    pub(crate) fn map(file: &File, offset: u64, count: usize) -> io::Result<Self> {
        let length = count * size_of::<AtomicU64>();
        let map = MmapOptions::new()
            .offset(offset)
            .len(length)
            .map_raw(file)?;
        let start = map.as_ptr().addr();
        if !start.is_multiple_of(align_of::<AtomicU64>()) {
            return Err(io::Error::other(
                "the memory mapping of the file is not aligned",
            ));
        }
        let guarded = Guarded::new(start..start + length)?;
        Ok(Self {
            _guarded: guarded,
            map,
            count,
        })
    }
}

impl Deref for MappedWords {
    type Target = [AtomicU64];

    #[expect(unsafe_code, reason = "shared memory is reached through a pointer")]
    #[expect(clippy::cast_ptr_alignment, reason = "`map` checks the alignment")]
    fn deref(&self) -> &[AtomicU64] {
        let start = self.map.as_mut_ptr().cast::<AtomicU64>();
        // SAFETY: the mapping is aligned, has `count` words, lives as long as `self`, and is reached
        // only through atomic words. Every bit pattern is a valid word. If the file is truncated,
        // `Guarded` replaces the missing pages.
        unsafe { std::slice::from_raw_parts(start, self.count) }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, Write};
    use std::sync::atomic::Ordering;

    use super::*;

    fn file_with_words(count: usize) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0; count * 8]).unwrap();
        file
    }

    #[test]
    fn stores_reach_the_file() {
        let mut file = file_with_words(16_384);
        let words = MappedWords::map(&file, 65_536, 8192).unwrap();
        words[8191].store(u64::MAX, Ordering::Relaxed);
        drop(words);
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut bytes).unwrap();
        assert_eq!(
            bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>(),
            8 * 255
        );
        assert_eq!(bytes[16_383 * 8..], [255; 8]);
    }

    #[test]
    #[cfg(unix)]
    fn truncated_file_does_not_end_the_process() {
        let file = file_with_words(8192);
        let words = MappedWords::map(&file, 0, 8192).unwrap();
        words[8191].store(7, Ordering::Relaxed);
        file.set_len(0).unwrap();
        for word in &*words {
            word.store(9, Ordering::Relaxed);
        }
        assert_eq!(words[8191].load(Ordering::Relaxed), 9);
    }
}
