//! The requests in flight of this server, read while its workers change their rows.
//!
//! A reader takes no lock that a request needs, and writes nothing. It may read a row while a worker changes
//! it: every text has a checksum, every number is one word, and a row whose id changed meanwhile is skipped.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Weak};

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
        segments.iter().filter_map(Weak::upgrade).collect()
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::row::RequestState;
    use super::super::{Request, RowPool};
    use super::*;
    use crate::endpoint::Api;
    use crate::meter::usage::TokenUsage;

    fn request(id: Uuid, request_id: &str) -> Request<'_> {
        Request {
            record_id: id,
            request_id,
            path: "/v1/chat/completions",
            api: Api::Chat,
            key: Some("alice"),
            team: None,
        }
    }

    fn list(dir: &tempfile::TempDir) -> Arc<InFlightList> {
        Arc::new(InFlightList::create(dir.path(), None, "test:1").unwrap())
    }

    #[test]
    fn oldest_requests_are_listed_first_until_they_end() {
        let dir = tempfile::tempdir().unwrap();
        let list = list(&dir);
        let pool = Arc::new(RowPool::new(Arc::clone(&list)));
        // More than a segment.
        let ids: Vec<_> = (0..40).map(|_| Uuid::now_v7()).collect();
        let names: Vec<_> = (0..40).map(|number| format!("request-{number}")).collect();
        let listed = ids.iter().zip(&names).rev();
        let mut rows: Vec<_> = listed
            .map(|(id, name)| pool.add(&request(*id, name)).unwrap())
            .collect();
        let live = list.live(3);
        let shown: Vec<_> = live.oldest.iter().map(|one| one.id.as_str()).collect();
        assert_eq!(shown, ["request-0", "request-1", "request-2"]);
        assert_eq!(live.count, 40);
        assert_eq!(live.oldest[0].key.as_deref(), Some("alice"));
        assert_eq!(
            (live.oldest[0].backend.as_deref(), live.oldest[0].has_begun),
            (None, false)
        );
        rows.pop();
        assert_eq!(list.live(3).oldest[0].id, "request-1");
        drop(rows);
        assert_eq!(list.live(3), LiveList::default());
    }

    #[test]
    fn tokens_are_summed_by_backend() {
        let dir = tempfile::tempdir().unwrap();
        let list = list(&dir);
        let pool = Arc::new(RowPool::new(Arc::clone(&list)));
        let rows: Vec<_> = (0..3)
            .map(|_| pool.add(&request(Uuid::now_v7(), "id")).unwrap())
            .collect();
        let usage = TokenUsage {
            prompt: 10,
            completion: 4,
            ..TokenUsage::default()
        };
        for row in &rows {
            row.note_state(&RequestState {
                usage,
                ..RequestState::default()
            });
        }
        assert!(list.tokens_by_backend().is_empty(), "no backend has them");
        rows[0].note_served_by(Some(BackendId(7)));
        rows[1].note_served_by(Some(BackendId(7)));
        assert_eq!(list.tokens_by_backend()[&BackendId(7)], (20, 8));
        rows[1].note_served_by(None);
        assert_eq!(list.tokens_by_backend()[&BackendId(7)], (10, 4));
    }

    #[test]
    fn reader_never_sees_a_mixture_of_two_requests() {
        let dir = tempfile::tempdir().unwrap();
        let list = list(&dir);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let pool = Arc::new(RowPool::new(Arc::clone(&list)));
                for number in 0..20_000 {
                    let name = format!("request-{number}");
                    let row = pool.add(&request(Uuid::now_v7(), &name)).unwrap();
                    row.note_model(&name);
                    row.note_backend(&name, None);
                }
                is_done.store(true, Ordering::Release);
            });
            while !is_done.load(Ordering::Acquire) {
                for live in list.live(10).oldest {
                    for text in [&live.model, &live.backend].into_iter().flatten() {
                        assert_eq!(*text, live.id);
                    }
                }
            }
        });
    }
}
