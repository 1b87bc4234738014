//! Remembers which backend received the beginning of a prompt: the prefix cache of that backend may still
//! contain this beginning.

use super::backend::Backend;
use super::lossy_cache::{LossyCache, VALUE_BITS};
use crate::backend_id::BackendId;

/// Binary logarithm of the number of cells in the table of prompt beginnings. The table then has 2
/// MiB, enough for many thousand prompts.
const CELLS_LOG2: u32 = 18;

/// Table of the beginnings of prompts, with the backend that received each of them. A later prompt
/// with the same beginning is sent there, because the backend's prefix cache may still contain it.
#[derive(Debug)]
pub(super) struct Affinity(LossyCache);

/// Number of bits of a backend's id in a [`BackendEpoch`]. Backends with a larger id have no affinity, which
/// concerns only a server whose configuration has named more than 16 million backends since its start.
const ID_BITS: u32 = VALUE_BITS - u16::BITS;

/// Id of a backend, and the number of times that the backend came up. After a restart the prefix cache is
/// empty, so entries with an earlier number do not match any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BackendEpoch(u64);

impl BackendEpoch {
    /// Returns `None` for a backend's id that does not fit into [`ID_BITS`]: a truncated id would
    /// name another backend.
    pub(super) fn new(backend: &Backend) -> Option<Self> {
        let id = u64::from(backend.id.0);
        (id >> ID_BITS == 0).then(|| Self(u64::from(backend.stats.epoch()) << ID_BITS | id))
    }

    /// Returns the id of the backend, without the number of times that the backend came up.
    pub(super) fn id(self) -> BackendId {
        BackendId((self.0 & ((1 << ID_BITS) - 1)) as u32)
    }
}

impl Affinity {
    pub(super) fn new() -> Self {
        Self(LossyCache::new(CELLS_LOG2))
    }

    /// Notes that a backend receives a prompt, so that later prompts with the same beginning are
    /// sent to that backend.
    pub(super) fn remember(&self, blocks: &[u64], backend: &Backend) {
        let Some(BackendEpoch(epoch)) = BackendEpoch::new(backend) else {
            return;
        };
        for block in blocks {
            self.0.put(*block, epoch);
        }
    }

    /// Returns the backends that received the longest known beginning of a prompt, then the
    /// backends of shorter beginnings.
    pub(super) fn recall(&self, blocks: &[u64]) -> impl Iterator<Item = BackendEpoch> {
        let mut last = None;
        let epochs = blocks.iter().rev().filter_map(|block| self.0.get(*block));
        epochs.map(BackendEpoch).filter(move |epoch| {
            // Return each backend once: successive blocks of a prompt mostly lead to the same
            // backend.
            let is_new = last != Some(*epoch);
            last = Some(*epoch);
            is_new
        })
    }
}
