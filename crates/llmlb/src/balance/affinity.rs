//! Remembers which backend received the beginning of a prompt: the prefix cache of that backend may still
//! contain this beginning.

use super::backend::Backend;
use super::lossy_cache::LossyCache;
use crate::backend_id::BackendId;

/// Binary logarithm of the number of cells: 2 MiB, enough for the beginnings of many thousand prompts.
const CELLS_LOG2: u32 = 18;

/// Backends by the beginnings of prompts that they received.
#[derive(Debug)]
pub(super) struct Affinity(LossyCache);

/// Id of a backend, and the number of times that the backend came up. After a restart the prefix cache is
/// empty, so entries with an earlier number do not match any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackendEpoch(u32);

impl BackendEpoch {
    pub(super) fn new(backend: &Backend) -> Self {
        Self(u32::from(backend.stats.epoch()) << 16 | u32::from(backend.id.0))
    }

    /// Id of the backend, without the number of times that the backend came up.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the id is in the lower half"
    )]
    pub(super) fn id(self) -> BackendId {
        BackendId(self.0 as u16)
    }
}

impl Affinity {
    pub(super) fn new() -> Self {
        Self(LossyCache::new(CELLS_LOG2))
    }

    /// Notes that a backend receives a prompt.
    pub(super) fn remember(&self, blocks: &[u64], backend: &Backend) {
        let BackendEpoch(epoch) = BackendEpoch::new(backend);
        for block in blocks {
            self.0.put(*block, epoch);
        }
    }

    /// Backends that received the longest known beginning of a prompt, then backends of shorter beginnings.
    pub(super) fn recall(&self, blocks: &[u64]) -> impl Iterator<Item = BackendEpoch> {
        let mut last = None;
        let epochs = blocks.iter().rev().filter_map(|block| self.0.get(*block));
        epochs.map(BackendEpoch).filter(move |epoch| {
            // Successive blocks of a prompt mostly lead to the same backend, which is returned once.
            let is_new = last != Some(*epoch);
            last = Some(*epoch);
            is_new
        })
    }
}
