//! The memory of one client's connection: what it is charged from `server.body_memory`, besides the
//! bodies and responses on it.
//!
//! A connection is charged when it opens. That covers one request at a time with a usual head, a
//! small body and a small backlog. Each further request of an HTTP/2 connection is charged the same,
//! and so is what a large head takes beyond its part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{HeaderMap, Version};

use crate::backlog::Backlog;
use crate::request::Budget;

/// Charge of a connection, and of each further request on it.
const CONNECTION: usize = 32 << 10;
/// Part of that which a request's head may use.
const HEAD: usize = 8 << 10;
/// Memory that a parsed header field takes besides its text, at most.
const PER_FIELD: usize = 256;

/// Size of each buffer of an HTTP/1.1 connection. A body that arrives in one piece is not copied, so
/// it is larger than most bodies.
pub(crate) const H1_BUFFER: usize = 128 << 10;

/// Bytes of request bodies that a client may send ahead on an HTTP/2 connection. They are charged
/// while the connection is open: h2 buffers them before a request is known.
pub(crate) const H2_CONNECTION_WINDOW: u32 = 256 << 10;
/// The same for one stream, so that one upload that nobody reads does not block the others.
pub(crate) const H2_STREAM_WINDOW: u32 = 128 << 10;
/// Bytes of a response that h2 buffers for each stream.
pub(crate) const H2_SEND_BUFFER: usize = 64 << 10;

/// The memory of one connection. It is charged until this is dropped.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    budget: Arc<Budget>,
    charged: AtomicUsize,
    /// Requests that are being served.
    requests: AtomicUsize,
    /// Bytes of the head that is being read over HTTP/1.1, or of the last one while its request is
    /// being served: its fields are parts of the buffer.
    head: AtomicUsize,
    /// The last request was refused, and may have a body of which a part is yet to come.
    is_body_unread: AtomicBool,
    /// Responses over HTTP/1.1 that the client has not taken yet.
    pub(crate) backlog: Arc<Backlog>,
}

impl ClientMemory {
    /// `None` if the connection does not fit into the budget.
    pub(crate) fn new(budget: &Arc<Budget>) -> Option<Arc<Self>> {
        budget.take_for_connection(CONNECTION).then(|| {
            Arc::new(Self {
                budget: Arc::clone(budget),
                charged: AtomicUsize::new(CONNECTION),
                requests: AtomicUsize::new(0),
                head: AtomicUsize::new(0),
                is_body_unread: AtomicBool::new(false),
                backlog: Backlog::new(budget),
            })
        })
    }

    /// Charges the window of an HTTP/2 connection; `false` if it does not fit into the budget.
    #[must_use]
    pub(crate) fn take_window(&self) -> bool {
        let window = H2_CONNECTION_WINDOW as usize;
        let taken = self.budget.take(window);
        if taken {
            self.charged.fetch_add(window, Ordering::Relaxed);
        }
        taken
    }

    /// Counts bytes that were read from an HTTP/1.1 connection; `false` if a head does not fit into
    /// the budget any more.
    #[must_use]
    pub(crate) fn note_read(&self, bytes: usize) -> bool {
        // What belongs to a request has a share of its own, or is discarded.
        if self.requests.load(Ordering::Relaxed) > 0 || self.is_body_unread() {
            return true;
        }
        let before = self.head.fetch_add(bytes, Ordering::Relaxed);
        let more = beyond_usual(before + bytes) - beyond_usual(before);
        if more == 0 {
            return true;
        }
        let taken = self.budget.take(more);
        if taken {
            self.charged.fetch_add(more, Ordering::Relaxed);
        } else {
            self.head.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }

    /// True if the last request was refused before its body was read.
    pub(crate) fn is_body_unread(&self) -> bool {
        self.is_body_unread.load(Ordering::Relaxed)
    }

    fn forget_head(&self) {
        let head = self.head.swap(0, Ordering::Relaxed);
        let charged = beyond_usual(head);
        if charged > 0 {
            self.charged.fetch_sub(charged, Ordering::Relaxed);
            self.budget.give_back(charged);
        }
    }
}

/// Bytes of a head that its connection's charge does not cover.
fn beyond_usual(head: usize) -> usize {
    head.saturating_sub(HEAD)
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        self.budget.give_back(*self.charged.get_mut());
    }
}

/// The memory of one request, besides its body and its response. It is charged until this is dropped.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    client: Arc<ClientMemory>,
    charged: usize,
    /// The body was read whole, or there is none.
    pub(crate) is_body_read: bool,
}

impl RequestMemory {
    /// `None` if the request does not fit into the budget.
    pub(crate) fn new(
        client: &Arc<ClientMemory>,
        version: Version,
        headers: &HeaderMap,
    ) -> Option<Self> {
        let others = client.requests.fetch_add(1, Ordering::Relaxed);
        client.is_body_unread.store(false, Ordering::Relaxed);
        // From here on it is counted, and dropping it takes it back.
        let mut memory = Self {
            client: Arc::clone(client),
            charged: 0,
            is_body_read: false,
        };
        let mut bytes = if others == 0 { 0 } else { CONNECTION };
        if version == Version::HTTP_2 {
            bytes += beyond_usual(size_of_fields(headers));
        }
        memory.grow(bytes).then_some(memory)
    }

    /// Notes that the request is refused. Its body may be read no further.
    pub(crate) fn refuse(&self) {
        let is_unread = !self.is_body_read;
        self.client
            .is_body_unread
            .store(is_unread, Ordering::Relaxed);
    }

    /// Charges more to the request; `false` if that does not fit into the budget.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let taken = bytes == 0 || self.client.budget.take(bytes);
        if taken {
            self.charged += bytes;
        }
        taken
    }
}

impl Drop for RequestMemory {
    fn drop(&mut self) {
        self.client.budget.give_back(self.charged);
        if self.client.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.client.forget_head();
        }
    }
}

fn size_of_fields(headers: &HeaderMap) -> usize {
    let text =
        |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len();
    headers.iter().map(text).sum::<usize>() + headers.len() * PER_FIELD
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(client: &Arc<ClientMemory>, headers: &HeaderMap) -> Option<RequestMemory> {
        RequestMemory::new(client, Version::HTTP_2, headers)
    }

    #[test]
    fn further_requests_and_large_heads_are_charged_until_they_end() {
        let budget = Arc::new(Budget::without_reserve(3 * CONNECTION));
        let client = ClientMemory::new(&budget).unwrap();
        let usual = HeaderMap::new();
        let first = request(&client, &usual).unwrap();
        assert_eq!(budget.used(), CONNECTION);
        let second = request(&client, &usual).unwrap();
        assert_eq!(budget.used(), 2 * CONNECTION);
        let mut large = HeaderMap::new();
        large.insert("x-large", "y".repeat(HEAD).parse().unwrap());
        assert!(request(&client, &large).is_none());
        assert_eq!(budget.used(), 2 * CONNECTION);
        drop(first);
        drop(second);
        let large = request(&client, &large).unwrap();
        assert_eq!(budget.used(), CONNECTION + "x-large".len() + PER_FIELD);
        drop((client, large));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_large_head_over_http_1_is_charged_while_it_is_read_and_served() {
        let budget = Arc::new(Budget::without_reserve(CONNECTION + 100));
        let client = ClientMemory::new(&budget).unwrap();
        assert!(client.note_read(HEAD) && client.note_read(60));
        assert_eq!(budget.used(), CONNECTION + 60);
        assert!(!client.note_read(41) && client.note_read(40));
        let served = RequestMemory::new(&client, Version::HTTP_11, &HeaderMap::new()).unwrap();
        assert!(client.note_read(1 << 20), "the body counts elsewhere");
        assert_eq!(budget.used(), CONNECTION + 100);
        drop(served);
        assert_eq!(budget.used(), CONNECTION);
        assert!(!client.take_window());
        drop(client);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn connections_beyond_the_budget_do_not_open() {
        let budget = Arc::new(Budget::without_reserve(2 * CONNECTION));
        let first = ClientMemory::new(&budget).unwrap();
        let _second = ClientMemory::new(&budget).unwrap();
        assert!(ClientMemory::new(&budget).is_none());
        drop(first);
        assert!(ClientMemory::new(&budget).is_some());
    }
}
