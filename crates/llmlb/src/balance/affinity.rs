//! Which backend has seen the beginning of a prompt: it may still have it in its cache.

use super::backend::Backend;
use super::memory::Memory;
use crate::backend_id::BackendId;

/// 2 MiB of memory, for the beginnings of many thousand prompts.
const CELLS: u32 = 18;

/// Who saw which beginnings.
#[derive(Debug)]
pub(super) struct Affinity(Memory);

/// A backend in one of its lives. After a restart its cache is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life(u32);

impl Life {
    pub(super) fn of(backend: &Backend) -> Self {
        Self(u32::from(backend.pulse.life()) << 16 | u32::from(backend.id.0))
    }

    /// Whose life it is, or was.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub(super) fn id(self) -> BackendId {
        BackendId(self.0 as u16)
    }
}

impl Affinity {
    pub(super) fn new() -> Self {
        Self(Memory::new(CELLS))
    }

    /// A backend gets a prompt.
    pub(super) fn remember(&self, blocks: &[u64], backend: &Backend) {
        let Life(life) = Life::of(backend);
        for block in blocks {
            self.0.put(*block, life);
        }
    }

    /// Who saw the longest beginning of a prompt, then who saw the next shorter one, and so on.
    pub(super) fn recall(&self, blocks: &[u64]) -> impl Iterator<Item = Life> {
        let mut last = None;
        let lives = blocks.iter().rev().filter_map(|block| self.0.get(*block));
        lives.map(Life).filter(move |life| {
            // Of a long prompt most blocks are one backend's.
            let is_new = last != Some(*life);
            last = Some(*life);
            is_new
        })
    }
}
