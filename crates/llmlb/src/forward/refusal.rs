//! Responses to clients whose request was not forwarded with success.

use http::StatusCode;

use super::ForwardError;
use crate::request::{Refusal, backend_auth, incomplete, too_slow};

/// Response to a request for `model` that could not be forwarded.
pub(crate) fn refusal(error: ForwardError, model: Option<&str>) -> Refusal {
    let unavailable = |message: String| {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Refusal::new(status, "all_backends_down", message).retry_after(1)
    };
    match error {
        ForwardError::Unreachable(Some(why)) => {
            unavailable(format!("No backend could be reached ({why})."))
        }
        ForwardError::Unreachable(None) => unavailable(match model {
            Some(model) => format!("Every backend that serves `{model}` is down."),
            None => "No backend is up.".to_owned(),
        }),
        ForwardError::NoAnswer(why) => Refusal::new(
            StatusCode::BAD_GATEWAY,
            "upstream_error",
            format!("The backend gave no answer ({why})."),
        ),
        ForwardError::BackendAuth(status) => backend_auth(status),
        ForwardError::TimedOut(why) => Refusal::new(
            StatusCode::GATEWAY_TIMEOUT,
            "upstream_timeout",
            format!("The backend took too long ({why})."),
        ),
        ForwardError::BadUpload(why) => incomplete(&why),
        ForwardError::Stalled(pace) => too_slow(pace),
        ForwardError::Shortage(why) => Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "overloaded",
            format!("This server cannot open another connection ({why})."),
        )
        .retry_after(1),
        ForwardError::AddressLimit(max) => Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "address_limit",
            format!(
                "This address has {max} requests at the backends, the limit of one address \
                 (server.max_connections_per_address)."
            ),
        )
        .retry_after(1),
        ForwardError::QueueFull => Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "queue_full",
            "All backends are at `max_concurrent` and the queue is full (`server.queue`).",
        )
        .retry_after(1),
        ForwardError::WaitedTooLong => Refusal::new(
            StatusCode::TOO_MANY_REQUESTS,
            "queue_timeout",
            "Every backend was at its limit for as long as a request may wait \
             (server.queue_timeout).",
        )
        .retry_after(5),
    }
}
