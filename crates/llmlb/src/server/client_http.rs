//! Every option of hyper's server connections, set explicitly: a new version of the library must not
//! change a limit that a client meets. docs/limits.md lists those that clients can see.
//!
//! h2 has three more that hyper does not pass on: it remembers 50 streams that it has reset for 1 s
//! each, and closes a connection whose small DATA frames cost more than half the window.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;

// What these buffers take is charged to the memory of clients.
use super::client_memory::{
    H1_LARGE_BUFFER, H2_CONNECTION_WINDOW, H2_SEND_BUFFER, H2_STREAM_WINDOW,
};

/// Limits on the connections of clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HttpLimits {
    /// For a connection without a request, and for the head of one.
    pub(crate) idle: Duration,
    /// Maximum size of a request's head, in bytes.
    pub(crate) max_header: usize,
    /// Maximum number of streams on one HTTP/2 connection.
    pub(crate) max_streams: u32,
}

/// Maximum number of fields in a head of HTTP/1.1. This many are parsed on the stack.
const MAX_FIELDS: usize = 100;
/// Interval of PING frames, by which a client that has vanished is found out, and the time in which
/// they must be answered.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// Streams that the client has reset before they were even looked at ("rapid reset"); the connection
/// is closed beyond that.
const MAX_UNSEEN_RESETS: usize = 20;
/// Streams that had to be reset for errors of the client; the connection is closed beyond that.
const MAX_ERROR_RESETS: usize = 128;
/// The smallest maximum that the protocol allows: a frame is buffered whole.
const MAX_FRAME: u32 = 16 << 10;
/// Size of the table of compressed header fields that clients may fill: the protocol's default.
const HEADER_TABLE: u32 = 4096;

pub(crate) fn http1(limits: &HttpLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Counts from the end of the response before: it is the limit of an idle connection too.
        .header_read_timeout(limits.idle)
        .max_header_size(limits.max_header)
        .max_headers(MAX_FIELDS)
        // A head that is allowed must fit. Reads of most connections are smaller: client_memory.rs.
        .max_buf_size(H1_LARGE_BUFFER.max(limits.max_header))
        .keep_alive(true)
        // A client that closes its side has left: its request is cancelled.
        .half_close(false)
        // What servers read in different ways is rejected.
        .allow_multiple_spaces_in_request_line_delimiters(false)
        .ignore_invalid_headers(false)
        .preserve_header_case(false)
        .title_case_headers(false)
        // Bodies are written from where they are, without a copy.
        .writev(true)
        // Experimental, and no client pipelines.
        .pipeline_flush(false)
        .auto_date_header(true);
    builder
}

pub(crate) fn http2<E: Clone>(limits: &HttpLimits, executor: E) -> http2::Builder<E> {
    let mut builder = http2::Builder::new(executor);
    // The extended CONNECT protocol stays off: nothing here would serve it.
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(u32::try_from(limits.max_header).unwrap_or(u32::MAX))
        .header_table_size(HEADER_TABLE)
        .max_pending_accept_reset_streams(MAX_UNSEEN_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        // A window that grows with the speed of a client would be memory that the client chooses.
        .adaptive_window(false)
        .initial_stream_window_size(H2_STREAM_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_send_buf_size(H2_SEND_BUFFER)
        .auto_date_header(true);
    builder
}
