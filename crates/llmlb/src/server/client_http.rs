//! Options of hyper's server connections. All are set explicitly, so that a new version of the
//! library does not change a limit. docs/limits.md lists the limits that clients can observe.
//!
//! h2 has more limits, which hyper does not let llmlb set. h2 remembers at most 50 streams that it
//! has reset, each for 1 s. h2 closes a connection if the overhead of small DATA frames exceeds
//! half the receive window.

use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;

// The sizes of the buffers are defined in `client_memory`, where their memory is charged to
// `server.body_memory`.
use super::client_memory::{
    H1_LARGE_BUFFER, H2_CONNECTION_WINDOW, H2_SEND_BUFFER, H2_STREAM_WINDOW,
};
use crate::request_settings::HttpLimits;

/// Maximum number of header fields in an HTTP/1.1 request. hyper parses up to this many without an
/// allocation.
const MAX_FIELDS: usize = 100;
/// Interval of PING frames on an HTTP/2 connection. They detect clients that vanished without
/// closing the connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time until a client acknowledges a PING frame. After that time the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of streams that a client resets before llmlb accepts them ("rapid reset"). A
/// client that exceeds it makes the server work for nothing, so its connection is closed.
const MAX_UNSEEN_RESETS: usize = 20;
/// Maximum number of streams of a connection that are reset for errors of the client. Beyond it the
/// connection is closed.
const MAX_ERROR_RESETS: usize = 128;
/// Maximum size of an HTTP/2 frame: the smallest maximum that HTTP/2 allows, because each frame is
/// buffered completely.
const MAX_FRAME: u32 = 16 << 10;
/// Size of the HPACK table that clients may fill: the default of HTTP/2. A larger table would let a
/// client use more memory.
const HEADER_TABLE: u32 = 4096;

pub(crate) fn http1(limits: &HttpLimits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // hyper starts the timeout for reading a request's head at the end of the previous
        // response. So this timeout also closes idle connections.
        .header_read_timeout(limits.idle)
        .max_header_size(limits.max_header)
        .max_headers(MAX_FIELDS)
        // The buffer must hold the largest allowed head. Most connections use less of it, because
        // their reads are limited (`client_memory`).
        .max_buf_size(H1_LARGE_BUFFER.max(limits.max_header))
        .keep_alive(true)
        // Disable half-close: a client that closes its side has disconnected, and its request must
        // be cancelled.
        .half_close(false)
        // Reject syntax that servers parse differently, because it enables request smuggling.
        .allow_multiple_spaces_in_request_line_delimiters(false)
        .ignore_invalid_headers(false)
        .preserve_header_case(false)
        .title_case_headers(false)
        // Write the pieces of a response with one vectored write, without copying them together.
        .writev(true)
        // Disable hyper's flushing for pipelined requests: it is experimental, and clients of llmlb
        // do not pipeline.
        .pipeline_flush(false)
        .auto_date_header(true);
    builder
}

pub(crate) fn http2<E: Clone>(limits: &HttpLimits, executor: E) -> http2::Builder<E> {
    let mut builder = http2::Builder::new(executor);
    // Do not enable the extended CONNECT protocol, because llmlb does not serve WebSockets over
    // HTTP/2.
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(u32::try_from(limits.max_header).unwrap_or(u32::MAX))
        .header_table_size(HEADER_TABLE)
        .max_pending_accept_reset_streams(MAX_UNSEEN_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        // Disable the adaptive window, which would let a client choose how much memory its
        // connection uses.
        .adaptive_window(false)
        .initial_stream_window_size(H2_STREAM_WINDOW)
        .initial_connection_window_size(H2_CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME)
        .max_send_buf_size(H2_SEND_BUFFER)
        .auto_date_header(true);
    builder
}
