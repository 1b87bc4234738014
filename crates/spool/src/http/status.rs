//! What a status means for a batch.

/// What is to be done about a status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Accepted,
    Rejected,
    TooLarge,
    /// `unknown`: the receiver may have committed the batch before it failed.
    Later {
        unknown: bool,
    },
    Misconfigured,
}

/// `conflict_is_failure`: 409 does not mean that the receiver has the batch already.
pub(super) fn meaning(status: u16, conflict_is_failure: bool) -> Meaning {
    match status {
        409 if conflict_is_failure => Meaning::Rejected,
        200..=299 | 409 => Meaning::Accepted,
        400 | 422 => Meaning::Rejected,
        413 => Meaning::TooLarge,
        // Some gateways respond 503, as others 502 or 504, when the receiver closes the connection
        // after it has read the batch.
        500..=599 => Meaning::Later { unknown: true },
        // The receiver rejects the request before it processes it.
        408 | 429 => Meaning::Later { unknown: false },
        // Wrong token, wrong address, or not the API we were told it is.
        _ => Meaning::Misconfigured,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_a_meaning() {
        for status in 100..=599 {
            let expected = match status {
                200..300 | 409 => Meaning::Accepted,
                400 | 422 => Meaning::Rejected,
                413 => Meaning::TooLarge,
                500.. => Meaning::Later { unknown: true },
                408 | 429 => Meaning::Later { unknown: false },
                _ => Meaning::Misconfigured,
            };
            assert_eq!(meaning(status, false), expected, "{status}");
            let strict = if status == 409 {
                Meaning::Rejected
            } else {
                expected
            };
            assert_eq!(meaning(status, true), strict, "{status}");
        }
    }

    #[test]
    fn what_only_a_person_can_mend_is_not_tried_again() {
        for status in [
            101, 301, 302, 307, 308, 401, 403, 404, 405, 410, 451, 600, 999,
        ] {
            assert_eq!(meaning(status, false), Meaning::Misconfigured, "{status}");
        }
    }
}
