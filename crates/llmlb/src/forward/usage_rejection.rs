//! Detects a backend that rejects a request because llmlb added `stream_options` to it.

use std::time::Duration;

use http::StatusCode;
use memchr::memmem;
use tokio::time::timeout;

use crate::upstream::Exchange;

/// Maximum number of bytes of an error response that are searched for `stream_options`.
const MAX_SEARCHED: usize = 64 << 10;
/// Maximum time to wait for the body of an error response that is searched. The body is short and
/// usually arrives with the head.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// True if the backend rejects `stream_options` with this response. The response can still be
/// forwarded to the client unchanged.
pub(super) async fn rejects_stream_options(status: StatusCode, exchange: &mut Exchange) -> bool {
    if !matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
    ) {
        return false;
    }
    // If the timeout passes, search the part of the error that has arrived, so that a slow backend
    // does not delay the client further.
    let _ = timeout(MAX_WAIT, exchange.peek(MAX_SEARCHED)).await;
    let error = exchange.peeked();
    let names = |name: &str| memmem::find(&error, name.as_bytes()).is_some();
    names("stream_options") || names("include_usage")
}
