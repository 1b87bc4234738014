//! Hashes of the beginnings of a prompt. A request goes to the backend that received a prompt with the same
//! beginning before, because that backend may have the beginning in its prefix cache.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::FixedState;

/// Number of bytes of a prompt in one block, which has one hash. A prompt shorter than one block
/// has no hash, because its prefix in a backend's cache would save too little.
const BLOCK: usize = 1 << 10;
/// Maximum number of blocks of a prompt. With more, one long prompt would displace many others in the
/// affinity cache.
const MAX_BLOCKS: usize = 512;

/// Returns one hash for each block of the prompt, which covers everything up to the end of the
/// block. Prompts with the same beginning have the same first hashes.
///
/// `before` are the parts that the model reads in front of the prompt: the model's name, tools,
/// instructions.
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
        .take(MAX_BLOCKS)
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

    fn hashes(before: &str, prompt: &str) -> Vec<u64> {
        blocks([before.as_bytes()].into_iter(), prompt.as_bytes())
    }

    #[test]
    fn prompts_share_the_blocks_that_they_begin_with() {
        let long = "abc".repeat(2000);
        let (first, second) = (
            hashes("m", &long),
            hashes("m", &format!("{long}more{long}")),
        );
        assert_eq!(first.len(), 5);
        assert_eq!(first[..], second[..5]);
        assert_ne!(hashes("m", &long.replacen('a', "x", 1))[4], first[4]);
        assert_ne!(hashes("other", &long)[0], first[0]);
        assert!(hashes("m", "short").is_empty());
    }
}
