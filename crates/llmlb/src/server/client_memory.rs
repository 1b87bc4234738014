//! Memory of one client connection that is charged to `server.body_memory`: read buffers, request heads,
//! TLS and the HTTP/2 receive window. Without these charges, many connections could together use more
//! memory than the budget. Large request bodies and large backlogs of responses are charged separately.
//!
//! A connection is charged when it opens. The charge covers one request at a time with a usual head, a small
//! body and a small backlog. Each concurrent request on an HTTP/2 connection is charged the same amount. A
//! larger head is charged in addition. The receive window of an HTTP/2 connection is charged only while a
//! request with a large body, or a body of unknown length, is not read: an idle connection does not use it.
//!
//! hyper enlarges the read buffer of an HTTP/1.1 connection when a read fills it, and does not free that
//! memory while the connection is idle. So reads are limited to keep the buffers small. Connections that
//! send large bodies get large buffers while most of the budget is free, and are charged for them until
//! they close.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use http::{HeaderMap, Uri, Version};
use hyper::body::Body;

use super::backlog::Backlog;
use super::client_stream::{MAX_UNSENT, MAX_WITHOUT_DATA};
use crate::memory_budget::Budget;
use crate::request::{H1_BUFFER, SMALL_BODY};

/// Charge of a client connection to `server.body_memory`, and of each further concurrent request on
/// it.
const CONNECTION: usize = 32 << 10;
/// Additional charge of a connection with TLS: received records, the content of one decrypted
/// record, bytes that are not sent yet, and 8 KiB for keys and the state of the handshake.
const TLS: usize = MAX_WITHOUT_DATA + MAX_RECORD + MAX_UNSENT + (8 << 10);
/// Maximum length of the content of a TLS record, as the protocol defines it.
const MAX_RECORD: usize = 16 << 10;
/// Part of the charge [`CONNECTION`] that covers the head of a request.
const HEAD: usize = 8 << 10;
/// Memory that a parsed header field is charged besides its text.
const PER_FIELD: usize = 256;

/// Size of each buffer of an HTTP/1.1 connection that sends large bodies. It is larger than most
/// bodies, because a body that arrives in one read is not copied.
pub(crate) const H1_LARGE_BUFFER: usize = 128 << 10;
/// Charge of an HTTP/1.1 connection with large buffers: one for a head or a piece of a body, one
/// for the copy of a piece that is streamed in chunks, and one for the next read.
const LARGE_BUFFERS: usize = 3 * H1_LARGE_BUFFER;

/// Maximum size of a read on an HTTP/1.1 connection without large buffers. It is smaller than the
/// buffer, because hyper enlarges a buffer that one read fills.
const H1_READ: usize = H1_BUFFER - 1;
/// Maximum size of a read after a rejected request, whose unread body is then discarded without
/// using much memory.
const READ_AFTER_REFUSAL: usize = 4 << 10;

/// Receive window of an HTTP/2 connection: bytes of request bodies that a client may send before llmlb reads
/// them.
pub(crate) const H2_CONNECTION_WINDOW: u32 = 256 << 10;
/// Receive window of one HTTP/2 stream. It is smaller than the window of the connection, so that
/// one body that is not read does not block the others.
pub(crate) const H2_STREAM_WINDOW: u32 = 128 << 10;
/// Maximum number of response bytes that h2 buffers for each stream, which bounds the memory of a
/// client that does not read.
pub(crate) const H2_SEND_BUFFER: usize = 64 << 10;

/// Memory of one client connection, charged to `server.body_memory` until this value is dropped.
#[derive(Debug)]
pub(crate) struct ClientMemory {
    budget: Arc<Budget>,
    charged: AtomicUsize,
    requests: AtomicUsize,
    /// Number of HTTP/2 requests in flight whose bodies may fill the receive window. The memory of
    /// the window is charged while there are any.
    uploads: AtomicUsize,
    /// Size of the HTTP/1.1 head that is being read, or of the head of the request in flight, whose fields
    /// are slices of the read buffer.
    head: AtomicUsize,
    /// True if the last request was rejected and a part of its body may still arrive. Reads are
    /// then small, because the bytes are discarded.
    is_body_unread: AtomicBool,
    /// True if the connection has large buffers, which are charged until it closes.
    has_large_buffers: AtomicBool,
    /// True if the connection is a WebSocket. Its bytes are not buffered, so reads are not charged.
    is_upgraded: AtomicBool,
    pub(crate) backlog: Arc<Backlog>,
}

impl ClientMemory {
    /// Returns the memory of a new connection; `None` if its charge would exceed the budget, so
    /// that it must be rejected.
    pub(crate) fn new(budget: &Arc<Budget>) -> Option<Arc<Self>> {
        Self::charged(budget, CONNECTION)
    }

    /// As [`ClientMemory::new`], for a connection with TLS, whose buffers are charged in addition.
    pub(crate) fn with_tls(budget: &Arc<Budget>) -> Option<Arc<Self>> {
        Self::charged(budget, CONNECTION + TLS)
    }

    fn charged(budget: &Arc<Budget>, charge: usize) -> Option<Arc<Self>> {
        budget.try_charge_connection(charge).then(|| {
            Arc::new(Self {
                budget: Arc::clone(budget),
                charged: AtomicUsize::new(charge),
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

    /// Counts a request whose body may fill the receive window of an HTTP/2 connection. The first such request
    /// is charged for the window. Returns `false` if that would exceed the budget.
    #[must_use]
    fn begin_upload(&self) -> bool {
        // All requests of a connection run on one thread. So `uploads` cannot change between this
        // check for 0 and the increment, and the window is charged only once.
        let is_first = self.uploads.load(Ordering::Relaxed) == 0;
        let fits = !is_first || self.budget.try_charge(H2_CONNECTION_WINDOW as usize);
        if fits {
            self.uploads.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    fn end_upload(&self) {
        if self.uploads.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.budget.release(H2_CONNECTION_WINDOW as usize);
        }
    }

    /// Returns the maximum size of the next read from an HTTP/1.1 connection, which keeps hyper's
    /// buffers small.
    pub(crate) fn max_read(&self) -> usize {
        if self.is_body_unread() {
            READ_AFTER_REFUSAL
        } else if self.has_unlimited_reads() {
            usize::MAX
        } else {
            H1_READ
        }
    }

    /// True if reads are neither limited nor charged: the connection has large buffers, which are charged
    /// already, or is a WebSocket.
    fn has_unlimited_reads(&self) -> bool {
        self.has_large_buffers.load(Ordering::Relaxed) || self.is_upgraded.load(Ordering::Relaxed)
    }

    /// Charges bytes that were read from an HTTP/1.1 connection. Returns `false` if a request head
    /// would exceed the budget.
    #[must_use]
    pub(crate) fn note_read(&self, bytes: usize) -> bool {
        if self.has_unlimited_reads() {
            return true;
        }
        // Bytes that arrive while a request is served belong to its body, which has a charge of its
        // own. Charging them here would count them twice.
        if self.requests.load(Ordering::Relaxed) > 0 {
            if bytes == H1_READ && self.budget.try_charge_if_plenty(LARGE_BUFFERS) {
                self.charged.fetch_add(LARGE_BUFFERS, Ordering::Relaxed);
                self.has_large_buffers.store(true, Ordering::Relaxed);
            }
            return true;
        }
        let before = self.head.load(Ordering::Relaxed);
        let more = charge_of_head(before + bytes) - charge_of_head(before);
        if more > 0 {
            if !self.budget.try_charge(more) {
                return false;
            }
            self.charged.fetch_add(more, Ordering::Relaxed);
        }
        self.head.store(before + bytes, Ordering::Relaxed);
        true
    }

    /// True if the last request was rejected before its body was read, so that the rest of the body
    /// is discarded.
    pub(crate) fn is_body_unread(&self) -> bool {
        self.is_body_unread.load(Ordering::Relaxed)
    }

    /// Releases the charge of bytes that were read with a head but belong to the body.
    fn shrink_head_to(&self, bytes: usize) {
        let before = self.head.load(Ordering::Relaxed);
        if bytes >= before {
            return;
        }
        self.head.store(bytes, Ordering::Relaxed);
        let less = charge_of_head(before) - charge_of_head(bytes);
        if less > 0 {
            self.charged.fetch_sub(less, Ordering::Relaxed);
            self.budget.release(less);
        }
    }
}

/// Returns the charge of an HTTP/1.1 head of this size. The head is in memory twice: as received,
/// and as forwarded.
fn charge_of_head(bytes: usize) -> usize {
    2 * beyond_usual(bytes)
}

/// Returns the size of the part of a head that the charge of its connection does not cover.
fn beyond_usual(head: usize) -> usize {
    head.saturating_sub(HEAD)
}

impl Drop for ClientMemory {
    fn drop(&mut self) {
        self.budget.release(*self.charged.get_mut());
    }
}

/// Memory of one request besides its body and response, charged to `server.body_memory` until this
/// value is dropped.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    client: Arc<ClientMemory>,
    charged: usize,
    is_body_read: bool,
    /// True if the body may fill the receive window of its HTTP/2 connection, whose memory is then
    /// charged.
    is_upload: bool,
}

impl RequestMemory {
    /// Returns the memory of a new request; `None` if its charge would exceed the budget, so that
    /// it must be rejected.
    pub(crate) fn new(
        client: &Arc<ClientMemory>,
        version: Version,
        uri: &Uri,
        headers: &HeaderMap,
        body: &impl Body,
    ) -> Option<Self> {
        let others = client.requests.fetch_add(1, Ordering::Relaxed);
        client.is_body_unread.store(false, Ordering::Relaxed);
        // The request is counted from here on. An early return drops `memory`, which removes it
        // from the count.
        let mut memory = Self {
            client: Arc::clone(client),
            charged: 0,
            is_body_read: body.is_end_stream(),
            is_upload: false,
        };
        let mut bytes = if others == 0 { 0 } else { CONNECTION };
        if version == Version::HTTP_2 {
            let text = head_length(uri, headers);
            // Charge a large head twice: as parsed header fields, which need additional memory for
            // each field, and as the text that is sent to the backend.
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
            client.shrink_head_to(head_length(uri, headers) + headers.len() * PER_FIELD);
        }
        memory.grow(bytes).then_some(memory)
    }

    /// Records that the request's body was read completely, and releases the charge for the receive
    /// window.
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

    /// Records that the connection becomes a WebSocket, whose reads are not charged.
    pub(crate) fn upgrade(&self) {
        self.client.is_upgraded.store(true, Ordering::Relaxed);
    }

    /// Records that the request is rejected. If its body was not read, reads become small, because
    /// the rest is discarded.
    pub(crate) fn reject(&self) {
        let is_unread = !self.is_body_read;
        self.client
            .is_body_unread
            .store(is_unread, Ordering::Relaxed);
    }

    /// Charges more memory for the request. Returns `false` if that would exceed the budget.
    #[must_use]
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let is_charged = bytes == 0 || self.client.budget.try_charge(bytes);
        if is_charged {
            self.charged += bytes;
        }
        is_charged
    }
}

impl Drop for RequestMemory {
    fn drop(&mut self) {
        self.end_upload();
        self.client.budget.release(self.charged);
        if self.client.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.client.shrink_head_to(0);
        }
    }
}

/// Returns the length of the target and the header fields of a request as text, from which its
/// charge is computed.
fn head_length(uri: &Uri, headers: &HeaderMap) -> usize {
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
    fn concurrent_requests_and_large_heads_are_charged_until_they_end() {
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
    fn receive_window_is_charged_once_while_a_large_body_is_not_read() {
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
        // The budget has no room for the receive window of a second connection, so a large body on
        // that connection is rejected.
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
        assert!(client.note_read(1 << 20), "the body has its own share");
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
    fn head_after_a_rejected_request_is_charged() {
        let budget = Arc::new(Budget::new(1 << 30));
        let client = ClientMemory::new(&budget).unwrap();
        let rejected = request_over_http_1(&client, 100);
        rejected.reject();
        drop(rejected);
        assert!(client.is_body_unread());
        assert_eq!(client.max_read(), READ_AFTER_REFUSAL);
        for _ in 0..8 {
            assert!(client.note_read(READ_AFTER_REFUSAL));
        }
        let head = 8 * READ_AFTER_REFUSAL;
        assert_eq!(budget.used(), CONNECTION + 2 * (head - HEAD));
    }

    #[test]
    fn large_buffers_are_granted_only_while_most_of_the_budget_is_free() {
        let limit = 4 * (CONNECTION + LARGE_BUFFERS + CONNECTION);
        let budget = Arc::new(Budget::new(limit));
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
    fn connection_beyond_the_budget_is_rejected() {
        let budget = Arc::new(Budget::without_reserve(2 * CONNECTION));
        let first = ClientMemory::new(&budget).unwrap();
        let _second = ClientMemory::new(&budget).unwrap();
        assert!(ClientMemory::new(&budget).is_none());
        drop(first);
        assert!(ClientMemory::new(&budget).is_some());
    }
}
