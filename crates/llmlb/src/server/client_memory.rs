//! The memory of one client's connection: what it is charged from `server.body_memory`, besides the
//! bodies and responses on it.
//!
//! A connection is charged when it opens. That covers one request at a time with a usual head, a
//! small body and a small backlog. Each further request of an HTTP/2 connection is charged the same,
//! and so is what a large head takes beyond its part. The receive window of an HTTP/2 connection is
//! charged only while it has a request whose body is larger, or of unknown length, and not read yet:
//! an idle connection holds none of it.
//!
//! hyper makes the read buffer of an HTTP/1.1 connection larger when a read fills it, and never
//! returns that memory while the connection is idle. So reads are kept small enough to leave the
//! buffers small. Large ones are for connections that send large bodies, are charged until the
//! connection closes, and are granted only while clients use little of the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{HeaderMap, Uri, Version};
use hyper::body::Body;

use super::backlog::Backlog;
use crate::memory_budget::Budget;
use crate::request::{H1_BUFFER, SMALL_BODY};

/// Charge of a connection, and of each further request on it.
const CONNECTION: usize = 32 << 10;
/// Part of that which a request's head may use.
const HEAD: usize = 8 << 10;
/// Memory that a parsed header field takes besides its text, at most.
const PER_FIELD: usize = 256;

/// Size of each buffer of an HTTP/1.1 connection that sends large bodies. A body that arrives in one
/// piece is not copied, so it is larger than most bodies.
pub(crate) const H1_LARGE_BUFFER: usize = 128 << 10;
/// Charge of a connection with such buffers: one for a head or a piece of a body, one for the copy of
/// a piece that passes in chunks, and the one that the next bytes are read into.
const LARGE_BUFFERS: usize = 3 * H1_LARGE_BUFFER;

/// Maximum size of a read into the buffer of any other HTTP/1.1 connection. hyper enlarges a buffer that one read fills.
const H1_READ: usize = H1_BUFFER - 1;
/// Maximum size of a read after a request that was refused. It may be the rest of a body, which is
/// discarded.
const READ_AFTER_REFUSAL: usize = 4 << 10;

/// Bytes of request bodies that a client may send ahead on an HTTP/2 connection. h2 buffers them
/// before a request is known, but not beyond the poll that makes it known.
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
    /// Requests over HTTP/2 among these whose bodies may fill the window, which is charged meanwhile.
    uploads: AtomicUsize,
    /// Bytes of the head that is being read over HTTP/1.1, or of the last one while its request is
    /// being served: its fields are parts of the buffer.
    head: AtomicUsize,
    /// The last request was refused, and may have a body of which a part is yet to come.
    is_body_unread: AtomicBool,
    /// The connection may have large buffers, and is charged for them.
    has_large_buffers: AtomicBool,
    /// Another protocol goes on with the connection, and nothing that it carries is held here.
    is_upgraded: AtomicBool,
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
                uploads: AtomicUsize::new(0),
                head: AtomicUsize::new(0),
                is_body_unread: AtomicBool::new(false),
                has_large_buffers: AtomicBool::new(false),
                is_upgraded: AtomicBool::new(false),
                backlog: Backlog::new(budget),
            })
        })
    }

    /// Counts a request whose body may fill the window of an HTTP/2 connection. The first one is
    /// charged for the window; `false` if that does not fit into the budget.
    #[must_use]
    fn begin_upload(&self) -> bool {
        // All requests of a connection belong to one thread.
        let is_first = self.uploads.load(Ordering::Relaxed) == 0;
        let fits = !is_first || self.budget.take(H2_CONNECTION_WINDOW as usize);
        if fits {
            self.uploads.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    fn end_upload(&self) {
        if self.uploads.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.budget.give_back(H2_CONNECTION_WINDOW as usize);
        }
    }

    /// Maximum size of the next read from an HTTP/1.1 connection.
    pub(crate) fn max_read(&self) -> usize {
        if self.is_body_unread() {
            READ_AFTER_REFUSAL
        } else if self.is_read_freely() {
            usize::MAX
        } else {
            H1_READ
        }
    }

    /// True if reads are neither limited nor counted.
    fn is_read_freely(&self) -> bool {
        self.has_large_buffers.load(Ordering::Relaxed) || self.is_upgraded.load(Ordering::Relaxed)
    }

    /// Counts bytes that were read from an HTTP/1.1 connection; `false` if a head does not fit into
    /// the budget any more.
    #[must_use]
    pub(crate) fn note_read(&self, bytes: usize) -> bool {
        if self.is_read_freely() {
            return true;
        }
        // Bytes of a request have a share of their own, or are discarded.
        if self.requests.load(Ordering::Relaxed) > 0 {
            if bytes == H1_READ && self.budget.take_if_plenty(LARGE_BUFFERS) {
                self.charged.fetch_add(LARGE_BUFFERS, Ordering::Relaxed);
                self.has_large_buffers.store(true, Ordering::Relaxed);
            }
            return true;
        }
        let before = self.head.load(Ordering::Relaxed);
        let more = charge_of_head(before + bytes) - charge_of_head(before);
        if more > 0 {
            if !self.budget.take(more) {
                return false;
            }
            self.charged.fetch_add(more, Ordering::Relaxed);
        }
        self.head.store(before + bytes, Ordering::Relaxed);
        true
    }

    /// True if the last request was refused before its body was read.
    pub(crate) fn is_body_unread(&self) -> bool {
        self.is_body_unread.load(Ordering::Relaxed)
    }

    /// Returns the charge of what was read with a head and does not belong to it.
    fn shrink_head_to(&self, bytes: usize) {
        let before = self.head.load(Ordering::Relaxed);
        if bytes >= before {
            return;
        }
        self.head.store(bytes, Ordering::Relaxed);
        let less = charge_of_head(before) - charge_of_head(bytes);
        if less > 0 {
            self.charged.fetch_sub(less, Ordering::Relaxed);
            self.budget.give_back(less);
        }
    }
}

/// Charge of a head of HTTP/1.1 that has this many bytes. It is held twice: as it came, and as it is
/// forwarded.
fn charge_of_head(bytes: usize) -> usize {
    2 * beyond_usual(bytes)
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
    is_body_read: bool,
    /// The body may fill the window of its HTTP/2 connection.
    is_upload: bool,
}

impl RequestMemory {
    /// `None` if the request does not fit into the budget.
    pub(crate) fn new(
        client: &Arc<ClientMemory>,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
        body: &impl Body,
    ) -> Option<Self> {
        let others = client.requests.fetch_add(1, Ordering::Relaxed);
        client.is_body_unread.store(false, Ordering::Relaxed);
        // From here on it is counted, and dropping it takes it back.
        let mut memory = Self {
            client: Arc::clone(client),
            charged: 0,
            is_body_read: body.is_end_stream(),
            is_upload: false,
        };
        let mut bytes = if others == 0 { 0 } else { CONNECTION };
        if version == Version::HTTP_2 {
            let text = text_of_head(uri, headers);
            // It is held twice, like a head of HTTP/1.1, but not as one text.
            bytes += beyond_usual(text + headers.len() * PER_FIELD) + beyond_usual(text);
            let is_small =
                (body.size_hint().upper()).is_some_and(|length| length <= SMALL_BODY as u64);
            if !memory.is_body_read && !is_small {
                if !client.begin_upload() {
                    return None;
                }
                memory.is_upload = true;
            }
        } else if client.head.load(Ordering::Relaxed) > HEAD {
            client.shrink_head_to(text_of_head(uri, headers) + headers.len() * PER_FIELD);
        }
        memory.grow(bytes).then_some(memory)
    }

    /// Notes that the body was read whole.
    pub(crate) fn note_body_read(&mut self) {
        self.is_body_read = true;
        self.end_upload();
    }

    fn end_upload(&mut self) {
        if self.is_upload {
            self.is_upload = false;
            self.client.end_upload();
        }
    }

    /// Notes that another protocol goes on with the connection.
    pub(crate) fn upgrade(&self) {
        self.client.is_upgraded.store(true, Ordering::Relaxed);
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
        self.end_upload();
        self.client.budget.give_back(self.charged);
        if self.client.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.client.shrink_head_to(0);
        }
    }
}

/// Number of bytes that the target and the fields of a request have as text.
fn text_of_head(uri: &Uri, headers: &HeaderMap) -> usize {
    let text =
        |(name, value): (&http::HeaderName, &http::HeaderValue)| name.as_str().len() + value.len();
    let target = uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    target + headers.iter().map(text).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::{Empty, Full};

    use super::*;

    fn request(client: &Arc<ClientMemory>, headers: &HeaderMap) -> Option<RequestMemory> {
        let uri = Uri::from_static("/v1");
        let body = Empty::<Bytes>::new();
        RequestMemory::new(client, Version::HTTP_2, &uri, headers, &body)
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
        let target_and_name = "/v1".len() + "x-large".len();
        assert_eq!(budget.used(), CONNECTION + 2 * target_and_name + PER_FIELD);
        drop((client, large));
        assert_eq!(budget.used(), 0);
    }

    fn upload(client: &Arc<ClientMemory>, length: usize) -> Option<RequestMemory> {
        let (uri, body) = (
            Uri::from_static("/v1"),
            Full::new(Bytes::from(vec![0; length])),
        );
        RequestMemory::new(client, Version::HTTP_2, &uri, &HeaderMap::new(), &body)
    }

    #[test]
    fn window_is_charged_once_while_a_large_body_is_not_read() {
        const WINDOW: usize = H2_CONNECTION_WINDOW as usize;
        let budget = Arc::new(Budget::without_reserve(WINDOW + 4 * CONNECTION));
        let client = ClientMemory::new(&budget).unwrap();
        let small = upload(&client, SMALL_BODY).unwrap();
        assert_eq!(budget.used(), CONNECTION);
        let mut first = upload(&client, SMALL_BODY + 1).unwrap();
        let second = upload(&client, 1 << 20).unwrap();
        assert_eq!(budget.used(), 3 * CONNECTION + WINDOW);
        first.note_body_read();
        assert_eq!(budget.used(), 3 * CONNECTION + WINDOW);
        // Another connection does not have room for its window.
        let other = ClientMemory::new(&budget).unwrap();
        assert!(upload(&other, 1 << 20).is_none());
        drop(second);
        assert_eq!(budget.used(), 3 * CONNECTION);
        let third = upload(&other, 1 << 20).unwrap();
        assert_eq!(budget.used(), 3 * CONNECTION + WINDOW);
        drop((small, first, third, client, other));
        assert_eq!(budget.used(), 0);
    }

    fn request_over_http_1(client: &Arc<ClientMemory>, value: usize) -> RequestMemory {
        let mut headers = HeaderMap::new();
        headers.insert("x-large", "y".repeat(value).parse().unwrap());
        let uri = Uri::from_static("/v1");
        let body = Full::new(Bytes::from_static(b"body"));
        RequestMemory::new(client, Version::HTTP_11, &uri, &headers, &body).unwrap()
    }

    #[test]
    fn large_head_over_http_1_is_charged_twice_while_it_is_read_and_served() {
        let budget = Arc::new(Budget::without_reserve(CONNECTION + 200));
        let client = ClientMemory::new(&budget).unwrap();
        assert!(client.note_read(HEAD) && client.note_read(60));
        assert_eq!(budget.used(), CONNECTION + 120);
        assert!(!client.note_read(41) && client.note_read(40));
        let served = request_over_http_1(&client, HEAD + 100);
        assert!(client.note_read(1 << 20), "the body counts elsewhere");
        assert_eq!(budget.used(), CONNECTION + 200);
        drop(served);
        assert_eq!(budget.used(), CONNECTION);
        drop(client);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn body_that_arrives_with_its_head_is_not_charged_as_head() {
        let budget = Arc::new(Budget::new(1 << 30));
        let client = ClientMemory::new(&budget).unwrap();
        assert!(client.note_read(H1_READ));
        assert!(budget.used() > CONNECTION);
        let _served = request_over_http_1(&client, 100);
        assert_eq!(budget.used(), CONNECTION);
    }

    #[test]
    fn long_target_over_http_2_is_charged() {
        let budget = Arc::new(Budget::new(1 << 30));
        let client = ClientMemory::new(&budget).unwrap();
        let uri: Uri = format!("/v1?{}", "x".repeat(HEAD)).parse().unwrap();
        let headers = HeaderMap::new();
        let body = Empty::<Bytes>::new();
        let _served = RequestMemory::new(&client, Version::HTTP_2, &uri, &headers, &body).unwrap();
        assert_eq!(budget.used(), CONNECTION + 2 * "/v1?".len());
    }

    #[test]
    fn bytes_of_a_websocket_are_not_charged() {
        let budget = Arc::new(Budget::without_reserve(CONNECTION));
        let client = ClientMemory::new(&budget).unwrap();
        assert!(client.note_read(100));
        let handshake = request_over_http_1(&client, 100);
        handshake.upgrade();
        drop(handshake);
        assert!((0..100).all(|_| client.note_read(1 << 20)));
        assert_eq!(budget.used(), CONNECTION);
    }

    #[test]
    fn head_after_a_refused_request_is_charged() {
        let budget = Arc::new(Budget::new(1 << 30));
        let client = ClientMemory::new(&budget).unwrap();
        let refused = request_over_http_1(&client, 100);
        refused.refuse();
        drop(refused);
        assert!(client.is_body_unread());
        assert_eq!(client.max_read(), READ_AFTER_REFUSAL);
        for _ in 0..8 {
            assert!(client.note_read(READ_AFTER_REFUSAL));
        }
        let head = 8 * READ_AFTER_REFUSAL;
        assert_eq!(budget.used(), CONNECTION + 2 * (head - HEAD));
    }

    #[test]
    fn large_buffers_are_charged_and_granted_only_while_there_is_plenty() {
        let most = 4 * (CONNECTION + LARGE_BUFFERS + CONNECTION);
        let budget = Arc::new(Budget::new(most));
        let first = ClientMemory::new(&budget).unwrap();
        let second = ClientMemory::new(&budget).unwrap();
        for (client, max_read) in [(&first, usize::MAX), (&second, H1_READ)] {
            assert!(client.note_read(H1_READ));
            let served = request_over_http_1(client, 100);
            assert_eq!(client.max_read(), H1_READ);
            assert!(client.note_read(H1_READ));
            assert_eq!(client.max_read(), max_read);
            drop(served);
            assert_eq!(client.max_read(), max_read);
        }
        assert_eq!(budget.used(), 2 * CONNECTION + LARGE_BUFFERS);
        drop((first, second));
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
