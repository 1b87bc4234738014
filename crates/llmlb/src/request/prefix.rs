//! The beginnings of a prompt, as far as they help to find the backend that has seen them: an LLM
//! server that has the beginning of a prompt in its cache need not compute it again.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;

/// The size of a block. Shorter prompts are computed as fast as they are looked up.
const BLOCK: usize = 1 << 10;
/// The most blocks that are looked at. With more, one prompt would push those of many others out of
/// what is remembered.
const MOST: usize = 512;

/// One number for each block: it stands for everything up to the block's end.
///
/// `before` is what a model reads before the prompt: the model itself, tools, instructions.
pub(super) fn blocks<'a>(before: impl Iterator<Item = &'a [u8]>, prompt: &[u8]) -> Vec<u64> {
    if prompt.len() < BLOCK {
        return Vec::new();
    }
    let state = FixedState::default();
    let mut hasher = state.build_hasher();
    for part in before {
        hasher.write(part);
    }
    let mut chain = hasher.finish();
    prompt
        .chunks_exact(BLOCK)
        .take(MOST)
        .map(|block| {
            let mut hasher = state.build_hasher();
            hasher.write_u64(chain);
            hasher.write(block);
            chain = hasher.finish();
            chain
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(before: &str, prompt: &str) -> Vec<u64> {
        blocks([before.as_bytes()].into_iter(), prompt.as_bytes())
    }

    #[test]
    fn prompts_share_the_blocks_that_they_begin_with() {
        let long = "abc".repeat(2000);
        let (first, second) = (of("m", &long), of("m", &format!("{long}more{long}")));
        assert_eq!(first.len(), 5);
        assert_eq!(first[..], second[..5]);
        assert_ne!(of("m", &long.replacen('a', "x", 1))[4], first[4]);
        assert_ne!(of("other", &long)[0], first[0]);
        assert!(of("m", "short").is_empty());
    }
}
