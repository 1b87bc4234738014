//! Classes of response statuses.

/// Class of a response status: the fate of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatusClass {
    Accepted,
    Rejected,
    TooLarge,
    /// The batch is sent again later. `unknown` is true if the receiver may have committed the
    /// batch before it failed.
    Later {
        unknown: bool,
    },
    Misconfigured,
}

/// Returns the class of a status. With `conflict_is_failure`, 409 is a rejection; otherwise 409
/// means that the receiver has the batch already.
pub(super) fn classify(status: u16, conflict_is_failure: bool) -> StatusClass {
    match status {
        409 if conflict_is_failure => StatusClass::Rejected,
        200..=299 | 409 => StatusClass::Accepted,
        400 | 422 => StatusClass::Rejected,
        413 => StatusClass::TooLarge,
        // Some gateways respond 503, as others 502 or 504, when the receiver closes the connection
        // after it has read the batch. So the receiver may have the batch.
        500..=599 => StatusClass::Later { unknown: true },
        // A receiver that responds 408 or 429 has not processed the request, so it cannot have the
        // batch.
        408 | 429 => StatusClass::Later { unknown: false },
        // Any other status, such as 401, 404 or a redirect: the token is wrong, or the address is
        // not that of the API. Delivery pauses, since other batches would fail alike, and this
        // batch stays pending.
        _ => StatusClass::Misconfigured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_class() {
        for status in 100..=599 {
            let expected = match status {
                200..300 | 409 => StatusClass::Accepted,
                400 | 422 => StatusClass::Rejected,
                413 => StatusClass::TooLarge,
                500.. => StatusClass::Later { unknown: true },
                408 | 429 => StatusClass::Later { unknown: false },
                _ => StatusClass::Misconfigured,
            };
            assert_eq!(classify(status, false), expected, "{status}");
            let strict = if status == 409 {
                StatusClass::Rejected
            } else {
                expected
            };
            assert_eq!(classify(status, true), strict, "{status}");
        }
    }

    #[test]
    fn statuses_that_only_a_person_can_fix_pause_delivery() {
        for status in [
            101, 301, 302, 307, 308, 401, 403, 404, 405, 410, 451, 600, 999,
        ] {
            assert_eq!(
                classify(status, false),
                StatusClass::Misconfigured,
                "{status}"
            );
        }
    }
}
