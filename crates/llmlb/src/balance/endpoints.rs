//! The endpoints that a backend serves, learned from its responses.
//!
//! A backend that responds 404, 405 or 501 to a POST gets no requests for that endpoint for ten
//! minutes, if another backend is available. A success since the backend came up proves that it
//! serves the endpoint: then 404, 405 or 501 concerns the request, not the endpoint.
//!
//! The table has a fixed size and is read without a lock. Clients choose unknown paths, so these
//! have cells of their own and cannot displace known endpoints.

use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use foldhash::fast::FixedState;

use super::clock::Moment;

/// Time for which a backend counts as lacking an endpoint after it responded 404, 405 or 501.
const EXPIRES_AFTER: Duration = Duration::from_secs(10 * 60);
/// Number of cells for known endpoints, and as many again for other paths. A power of two, so that
/// every hash selects a cell evenly.
const CELLS: usize = 32;
/// Number of successive cells in which one endpoint may be stored, so that endpoints whose hashes
/// select the same first cell can all be stored.
const PROBES: usize = 16;
/// Lower half of a cell whose endpoint the backend has served.
const SERVED: u32 = u32::MAX;

/// Key of an endpoint in the table [`Endpoints`], which notes whether a backend serves the
/// endpoint. The key is a hash of the endpoint's path, which contains no id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndpointKey {
    hash: u64,
    is_known: bool,
    is_websocket: bool,
}

impl EndpointKey {
    /// Returns the key of a path. `is_known` is true for the paths in llmlb's own list. Clients can
    /// invent any other path, so unknown paths have separate cells and cannot displace known
    /// endpoints.
    pub(crate) fn new(path: &str, is_known: bool) -> Self {
        Self {
            hash: FixedState::default().hash_one(path),
            is_known,
            is_websocket: false,
        }
    }

    /// Returns the key under which a backend's support of WebSockets on this path is remembered. `path` is one
    /// that llmlb knows, not one that a client invented, so these keys are always remembered.
    pub(crate) fn websocket(path: &str) -> Self {
        Self {
            hash: FixedState::default().hash_one(("websocket", path)),
            is_known: true,
            is_websocket: true,
        }
    }

    /// True if the key stands for WebSockets on a path, and not for ordinary requests to that path.
    pub(crate) fn is_websocket(self) -> bool {
        self.is_websocket
    }

    /// Returns the path's hash, whose upper 32 bits identify the endpoint in a cell of
    /// [`Endpoints`]. One of these bits is always set, because 0 marks an empty cell.
    fn tag(self) -> u64 {
        self.hash | 1 << 32
    }
}

/// Table of the endpoints that one backend serves or lacks. Each cell holds one endpoint: the upper
/// half is the endpoint's tag, the lower half is [`SERVED`] or the second until which the endpoint
/// counts as missing.
#[derive(Debug)]
pub(super) struct Endpoints {
    cells: [AtomicU64; 2 * CELLS],
}

impl Default for Endpoints {
    fn default() -> Self {
        Self {
            cells: [const { AtomicU64::new(0) }; 2 * CELLS],
        }
    }
}

impl Endpoints {
    /// True if the backend counts as lacking the endpoint at this time.
    pub(super) fn lacks(&self, endpoint: EndpointKey, now: Moment) -> bool {
        self.state(endpoint)
            .is_some_and(|state| is_missing(state, now))
    }

    /// True if the backend has served the endpoint since it came up.
    pub(super) fn has_served(&self, endpoint: EndpointKey) -> bool {
        self.state(endpoint) == Some(SERVED)
    }

    /// Notes that the backend served the endpoint, so that a later 404, 405 or 501 does not mark
    /// the endpoint as missing.
    pub(super) fn note_served(&self, endpoint: EndpointKey, now: Moment) {
        if !self.has_served(endpoint) {
            self.put(endpoint, SERVED, now);
        }
    }

    /// Notes that the backend lacks the endpoint, unless it has served the endpoint. True if the
    /// endpoint did not count as missing before, so that the caller logs the fact once.
    pub(super) fn note_missing(&self, endpoint: EndpointKey, now: Moment) -> bool {
        if self.has_served(endpoint) || self.lacks(endpoint, now) {
            return false;
        }
        self.put(endpoint, seconds(now.plus(EXPIRES_AFTER)), now)
    }

    /// Removes all endpoints: another program may listen at the backend's address by now.
    pub(super) fn clear(&self) {
        for cell in &self.cells {
            cell.store(0, Ordering::Relaxed);
        }
    }

    fn state(&self, endpoint: EndpointKey) -> Option<u32> {
        let cells = self
            .probed(endpoint)
            .map(|cell| cell.load(Ordering::Relaxed));
        let mut own = cells.filter(|content| is_of(*content, endpoint));
        own.next().map(lower_half)
    }

    /// Stores that an endpoint is served, or the time until which it counts as missing. Returns
    /// false and stores nothing if other endpoints use all cells in which this endpoint may be
    /// stored.
    fn put(&self, endpoint: EndpointKey, state: u32, now: Moment) -> bool {
        let content = endpoint.tag() >> 32 << 32 | u64::from(state);
        let is_free = |content: u64| {
            let state = lower_half(content);
            content == 0 || (state != SERVED && !is_missing(state, now))
        };
        // Two threads that store the same endpoint at the same time may use two cells. That does no
        // harm, because readers use the first of the two cells.
        let own = |content: u64| is_of(content, endpoint);
        for may_replace in [&own as &dyn Fn(u64) -> bool, &is_free] {
            for cell in self.probed(endpoint) {
                let before = cell.load(Ordering::Relaxed);
                let order = Ordering::Relaxed;
                if may_replace(before)
                    && cell.compare_exchange(before, content, order, order).is_ok()
                {
                    return true;
                }
            }
        }
        false
    }

    fn probed(&self, endpoint: EndpointKey) -> impl Iterator<Item = &AtomicU64> {
        let half = if endpoint.is_known { 0 } else { CELLS };
        let start = usize::try_from(endpoint.hash % CELLS as u64).unwrap_or_default();
        (0..PROBES).map(move |step| &self.cells[half + (start + step) % CELLS])
    }
}

fn is_of(content: u64, endpoint: EndpointKey) -> bool {
    content >> 32 == endpoint.tag() >> 32
}

fn is_missing(state: u32, now: Moment) -> bool {
    state != SERVED && seconds(now) < state
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "only the lower half is wanted"
)]
fn lower_half(content: u64) -> u32 {
    content as u32
}

/// Whole seconds since the start of the clock. After 136 years the value stays at its maximum.
fn seconds(moment: Moment) -> u32 {
    u32::try_from(moment.0 / 1000).unwrap_or(SERVED - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment(5_000);

    fn known(path: &str) -> EndpointKey {
        EndpointKey::new(path, true)
    }

    fn unknown(path: &str) -> EndpointKey {
        EndpointKey::new(path, false)
    }

    #[test]
    fn missing_endpoint_is_forgotten_after_ten_minutes() {
        let endpoints = Endpoints::default();
        let (chat, messages) = (known("chat/completions"), known("messages"));
        assert!(!endpoints.lacks(chat, NOW));
        assert!(endpoints.note_missing(chat, NOW));
        assert!(!endpoints.note_missing(chat, NOW), "not new");
        assert!(endpoints.lacks(chat, NOW) && !endpoints.lacks(messages, NOW));
        let end = NOW.plus(EXPIRES_AFTER);
        assert!(endpoints.lacks(chat, Moment(end.0 - 1)));
        assert!(!endpoints.lacks(chat, end));
        assert!(endpoints.note_missing(chat, end));
    }

    #[test]
    fn endpoint_that_was_served_is_never_missing() {
        let endpoints = Endpoints::default();
        let chat = known("chat/completions");
        endpoints.note_missing(chat, NOW);
        endpoints.note_served(chat, NOW);
        assert!(!endpoints.lacks(chat, NOW));
        assert!(!endpoints.note_missing(chat, NOW));
        assert!(!endpoints.lacks(chat, NOW));
        endpoints.clear();
        assert!(endpoints.note_missing(chat, NOW), "after a restart");
    }

    #[test]
    fn unknown_paths_do_not_displace_known_endpoints() {
        let endpoints = Endpoints::default();
        let names: Vec<String> = (0..16).map(|number| format!("known {number}")).collect();
        let missing = |path: &String| endpoints.note_missing(known(path), NOW);
        assert!(names.iter().all(missing));
        for number in 0..10_000 {
            let path = unknown(&number.to_string());
            if number % 2 == 0 {
                endpoints.note_served(path, NOW);
            } else {
                endpoints.note_missing(path, NOW);
            }
        }
        assert!(names.iter().all(|path| endpoints.lacks(known(path), NOW)));
        let count = |path: u32| endpoints.lacks(unknown(&path.to_string()), NOW);
        let remembered = (0..10_000).filter(|path| count(*path)).count();
        assert!((1..=CELLS).contains(&remembered), "{remembered}");
    }
}
