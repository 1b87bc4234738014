//! Effect of a response on the health and latency of its backend: success, failure, or suspicion
//! that needs further evidence.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, StatusCode, header};

use crate::balance::{Evidence, Pool, Slot};
use crate::upstream::{Head, UpstreamError};

/// Maximum pause that a backend may request with `Retry-After`, so that a wrong value does not
/// disable it for hours.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Minimum latency that a response 429 counts with. The backend is not ejected, but it must not
/// attract requests by rejecting them fast.
const BUSY_LATENCY: Duration = Duration::from_secs(1);

/// True for a status with which a backend reports that it cannot serve now, so that another backend
/// may have a better response.
pub(super) fn is_retryable_status(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// True if the client's request may have caused this status. Such a response counts against the
/// backend only together with further evidence.
pub(super) fn is_suspect(status: StatusCode) -> bool {
    rejects_credential(status)
        || (status.is_server_error()
            && !is_retryable_status(status)
            // 501 and 505 are always caused by the request, so they never count against the
            // backend.
            && status != StatusCode::NOT_IMPLEMENTED
            && status != StatusCode::HTTP_VERSION_NOT_SUPPORTED)
}

/// True if the backend rejects the credential of the request (401 or 403).
pub(super) fn rejects_credential(status: StatusCode) -> bool {
    matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
}

/// Counts a response that began `took` after its request. Only a success counts for the latency: a
/// backend that fails fast must not look like the best one. A suspect response is judged later, when the
/// responses of other backends are known.
pub(super) fn note_response(
    pool: &Pool,
    slot: &mut Slot,
    head: &Head,
    took: Duration,
    is_inference: bool,
) {
    let (backend, status) = (slot.backend(), head.status);
    backend.health.note_response();
    if status.is_server_error() || is_suspect(status) || status == StatusCode::TOO_MANY_REQUESTS {
        backend
            .health
            .note_error(Some(status), status.canonical_reason().unwrap_or_default());
    }
    if status == StatusCode::TOO_MANY_REQUESTS && is_inference {
        let pause = retry_after(&head.headers, SystemTime::now());
        if !pause.is_some_and(|pause| pool.back_off(backend, pause)) {
            slot.note_began(Some(took.max(BUSY_LATENCY)));
        }
    } else if is_retryable_status(status) {
        slot.note_failed();
    } else if !is_suspect(status) {
        if status.is_success() && is_inference {
            slot.note_success_began();
        }
        slot.note_began(status.is_success().then_some(took));
    }
}

/// Counts a response that the backend did not complete. A timeout is a failure of the backend. Any
/// other error is only evidence against the backend, as a 500 is, because the client's prompt may
/// have crashed the engine. Without `evidence` the response counts neither for nor against the
/// backend.
pub(super) fn note_cut(
    pool: &Pool,
    slot: &Slot,
    error: &UpstreamError,
    evidence: Option<Evidence>,
) {
    match evidence {
        _ if matches!(error, UpstreamError::Timeout(_)) => slot.note_cut(),
        Some(evidence) => pool.suspect(slot.backend(), evidence),
        None => pool.note_inconclusive(slot.backend()),
    }
}

/// Returns the pause that the field `Retry-After` requests, in seconds or until a date.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => httpdate::parse_http_date(text)
            .ok()?
            .duration_since(now)
            .ok()?,
    };
    Some(pause.min(MAX_BACKOFF)).filter(|pause| !pause.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_in_seconds_or_a_date_and_is_bounded() {
        let now = httpdate::parse_http_date("Wed, 21 Oct 2026 07:28:00 GMT").unwrap();
        for (text, expected) in [
            ("7", Some(7)),
            (" 30 ", Some(30)),
            ("86400", Some(60)),
            ("0", None),
            ("-1", None),
            ("soon", None),
            ("Wed, 21 Oct 2026 07:28:09 GMT", Some(9)),
            ("Wednesday, 21-Oct-26 07:28:09 GMT", Some(9)),
            ("Wed Oct 21 07:28:09 2026", Some(9)),
            ("Wed, 21 Oct 2026 09:28:00 GMT", Some(60)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(60)),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
            ("Wed, 21 Oct 2026 07:27:59 GMT", None),
            ("Wed, 99 Oct 2026 07:28:00 GMT", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            let expected = expected.map(Duration::from_secs);
            assert_eq!(retry_after(&headers, now), expected, "{text}");
        }
        assert_eq!(retry_after(&HeaderMap::new(), now), None);
    }

    #[test]
    fn responses_that_a_client_may_provoke_are_suspect() {
        let suspect = |code: u16| is_suspect(StatusCode::from_u16(code).unwrap());
        for code in [401, 403, 500, 507, 529] {
            assert!(suspect(code), "{code}");
        }
        for code in [200, 302, 400, 404, 429, 501, 502, 503, 504, 505] {
            assert!(!suspect(code), "{code}");
        }
    }
}
