//! Whether a backend says no because of the question that we added to a request.

use std::time::Duration;

use http::StatusCode;
use memchr::memmem;
use tokio::time::timeout;

use crate::upstream::Exchange;

/// How much of what it says is looked at.
const LOOKED_AT: usize = 64 << 10;
/// How long that is waited for. It is short, and comes with its head.
const WAITED: Duration = Duration::from_secs(5);

/// Looks into the answer with this status. If it is not for us it is passed on as it is.
pub(super) async fn is_one(status: StatusCode, exchange: &mut Exchange) -> bool {
    if !matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
    ) {
        return false;
    }
    // What has come until then is all that is known.
    let _ = timeout(WAITED, exchange.peek(LOOKED_AT)).await;
    let said = exchange.peeked();
    let names = |name: &str| memmem::find(&said, name.as_bytes()).is_some();
    names("stream_options") || names("include_usage")
}
