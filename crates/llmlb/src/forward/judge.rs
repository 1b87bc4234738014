//! What the head of an answer says about the backend.

use std::time::Duration;

use http::{HeaderMap, StatusCode, header};

use crate::balance::Slot;
use crate::upstream::Head;

/// No backend is left alone for longer than this, whatever it says.
const LONGEST_REST: Duration = Duration::from_secs(60);

/// Whether another backend may have a better answer: this one cannot serve right now.
pub(super) fn is_worth_another(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT
    )
}

/// Takes note of an answer that began so long after its request. One that fails fast must not look
/// like the best of all: what is not served says nothing about how long serving takes.
pub(super) fn note(slot: &mut Slot, head: &Head, took: Duration) {
    slot.backend().has_answered();
    match head.status {
        StatusCode::TOO_MANY_REQUESTS => match rest(&head.headers) {
            Some(long) => slot.rests(long),
            None => slot.failed(),
        },
        // Whoever asks, it is our key that it does not like.
        StatusCode::UNAUTHORIZED => slot.failed(),
        StatusCode::FORBIDDEN if slot.backend().credential.is_some() => slot.failed(),
        // It can do other things.
        StatusCode::NOT_IMPLEMENTED | StatusCode::HTTP_VERSION_NOT_SUPPORTED => slot.began(None),
        status if status.is_server_error() => slot.failed(),
        status => slot.began(status.is_success().then_some(took)),
    }
}

/// For how long the backend wants to be left alone. A date is not worth a parser here.
fn rest(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let rest = Duration::from_secs(seconds.trim().parse().ok()?);
    Some(rest.min(LONGEST_REST)).filter(|rest| !rest.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_told_in_seconds_and_is_not_endless() {
        for (text, expected) in [
            ("7", Some(7)),
            (" 30 ", Some(30)),
            ("86400", Some(60)),
            ("0", None),
            ("-1", None),
            ("Wed, 21 Oct 2026 07:28:00 GMT", None),
        ] {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, text.parse().unwrap())]);
            assert_eq!(rest(&headers), expected.map(Duration::from_secs), "{text}");
        }
        assert_eq!(rest(&HeaderMap::new()), None);
    }
}
