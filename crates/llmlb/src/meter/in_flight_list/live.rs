//! The requests in flight of this server, read while its workers change their rows.
//!
//! A reader takes no lock that a request needs, and writes nothing. It may read a row while a worker changes
//! it: every text has a checksum, every number is one word, and a row whose id changed meanwhile is skipped.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use uuid::Uuid;

use super::row::{self, InterruptedRequest, ROW_BYTES, ROW_WORDS, RowTokens};
use super::{InFlightList, SEGMENT_ROWS, lock};
use crate::backend_id::BackendId;
use crate::sys::mapped_words::MappedWords;

/// A request in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LiveRequest {
    pub(crate) id: String,
    /// Arrival, in milliseconds since 1970.
    pub(crate) time_ms: u64,
    pub(crate) model: Option<String>,
    pub(crate) backend: Option<String>,
    pub(crate) key: Option<String>,
    pub(crate) is_stream: bool,
    /// True if the response has begun.
    pub(crate) has_begun: bool,
    /// Tokens of the response so far.
    pub(crate) completion: u64,
}

/// The requests in flight at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LiveList {
    /// The oldest requests, oldest first.
    pub(crate) oldest: Vec<LiveRequest>,
    /// Number of all requests.
    pub(crate) count: usize,
}

impl InFlightList {
    /// Returns the tokens of the requests in flight, prompt and completion, by backend. Requests that
    /// no backend has yet are left out.
    pub(crate) fn tokens_by_backend(&self) -> HashMap<BackendId, (u64, u64)> {
        let mut tokens: HashMap<_, (u64, u64)> = HashMap::new();
        for segment in self.segments() {
            for words in rows(&segment) {
                let Some(RowTokens {
                    backend,
                    prompt,
                    completion,
                }) = row::read_tokens(words)
                else {
                    continue;
                };
                let sum = tokens.entry(backend).or_default();
                sum.0 += prompt;
                sum.1 += completion;
            }
        }
        tokens
    }

    /// Returns the `max` oldest requests, and the number of all.
    pub(crate) fn live(&self, max: usize) -> LiveList {
        let segments = self.segments();
        let all = segments.iter().flat_map(|segment| rows(segment));
        let mut ids: Vec<(Uuid, &[AtomicU64])> = all
            .filter_map(|words| Some((row::read_id(words)?, words)))
            .collect();
        let count = ids.len();
        // Ids of version 7 sort by time.
        if count > max {
            ids.select_nth_unstable_by_key(max, |(id, _)| *id);
            ids.truncate(max);
        }
        ids.sort_unstable_by_key(|(id, _)| *id);
        let read = |(id, words): (Uuid, &[AtomicU64])| read_same(words, id);
        LiveList {
            oldest: ids.into_iter().filter_map(read).collect(),
            count,
        }
    }

    fn segments(&self) -> Vec<Arc<MappedWords>> {
        let segments = lock(&self.segments);
        segments.iter().filter_map(|weak| weak.upgrade()).collect()
    }
}

/// Returns all rows of a segment. The header of the list, in the first one, is a row without a request.
fn rows(segment: &MappedWords) -> impl Iterator<Item = &[AtomicU64]> {
    segment.chunks_exact(ROW_WORDS).take(SEGMENT_ROWS)
}

/// Reads a row if it still has the request with this id after it was read.
fn read_same(words: &[AtomicU64], id: Uuid) -> Option<LiveRequest> {
    let mut bytes = [0; ROW_BYTES];
    for (eight, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *eight = word.load(Ordering::Relaxed).to_ne_bytes();
    }
    // The id of a row is stored in front of its texts, so texts of another request come with another id.
    fence(Ordering::Acquire);
    let request = row::read(&bytes)?;
    (row::read_id(words) == Some(id) && request.id() == id).then(|| request.into_live())
}

impl InterruptedRequest {
    fn into_live(self) -> LiveRequest {
        LiveRequest {
            time_ms: self.time_ms(),
            id: self.request_id,
            model: self.model,
            backend: self.backend,
            key: self.key,
            is_stream: self.state.is_stream,
            has_begun: self.state.first_byte_ms.is_some(),
            completion: self.state.usage.completion,
        }
    }
}
