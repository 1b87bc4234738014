//! Reasons why a request could not be forwarded, and the error responses that the client gets.

use http::StatusCode;

use crate::body_deadline::BodyPace;
use crate::request::{Refusal, backend_auth, incomplete, no_websocket, too_slow};

/// Reason why a request was not forwarded, or got no response.
#[derive(Debug)]
pub(crate) enum ForwardError {
    /// All backends that could serve the request are down or cannot be reached. They have received
    /// nothing.
    Unreachable(Option<String>),
    /// A backend received the request, but no response of it arrived.
    NoResponse(String),
    /// A backend rejected llmlb's credential, which the configuration sets for it. The client's key
    /// is not at fault.
    BackendAuth(StatusCode),
    /// No backend accepts a WebSocket on this path. The client gets a 426, after which it uses
    /// HTTP.
    NoWebSocket(String),
    /// No backend's response began within `upstream.first_byte_timeout`.
    TimedOut(String),
    /// The client did not send the whole body that it announced.
    BadUpload(String),
    /// The client sent its body more slowly than this minimum rate.
    Stalled(BodyPace),
    /// This machine has no more file descriptors, or no local port for connections to any of the
    /// backends.
    Shortage(String),
    /// The client's address uses as many connections to backends as it may.
    AddressLimit(usize),
    /// All backends are at capacity, and the queue is full.
    QueueFull,
    /// All backends were at capacity for longer than `server.queue_timeout` allows a request to
    /// wait.
    WaitedTooLong,
}

/// Returns the error response to a request for `model` that could not be forwarded.
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
            Some(model) => format!("Every backend that serves `{model}` is down or drained."),
            None => "No backend is up.".to_owned(),
        }),
        ForwardError::NoResponse(why) => Refusal::new(
            StatusCode::BAD_GATEWAY,
            "upstream_error",
            format!("The backend did not respond ({why})."),
        ),
        ForwardError::BackendAuth(status) => backend_auth(status),
        ForwardError::NoWebSocket(path) => no_websocket(&path),
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
                "Requests of this address use {max} connections to backends, the maximum for one \
                 address (server.max_connections_per_address, or a quarter of all connections to \
                 backends if that is more)."
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
