//! Detects responses which show that a backend does not serve an endpoint, so that later requests
//! to the endpoint can be routed to other backends.

use std::time::Duration;

use http::StatusCode;
use tokio::time::timeout;

use super::Outbound;
use super::response::UpstreamResponse;
use crate::balance::EndpointKey;

/// Maximum number of bytes of an error response that are searched for the name of a model, before
/// it is relayed to the client.
const MAX_SEARCHED: usize = 16 << 10;
/// Maximum time to wait for the body of an error response that is searched. It usually arrives with
/// the head.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Learns from a response if its backend serves the endpoint of the request, so that later requests
/// to it can be routed to other backends.
pub(super) async fn learn(response: &mut UpstreamResponse, outbound: &Outbound<'_>) {
    let Some(endpoint) = outbound.hints.endpoint else {
        return;
    };
    let status = response.head.status;
    let backend = &response.backend;
    if endpoint.is_websocket() {
        if status == StatusCode::SWITCHING_PROTOCOLS {
            backend.note_served(endpoint);
        } else if refuses_websocket(outbound, status) {
            backend.note_missing(endpoint, status, outbound.path);
        }
    } else if status.is_success() {
        backend.note_served(endpoint);
    } else if matches!(
        status,
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED
    ) && backend.may_lack(endpoint)
        // The request names a stored object, so a 404 may mean that the backend lacks the object
        // and not the endpoint. Learn nothing from it.
        && outbound.parsed.issued.is_none()
    {
        let whole = timeout(MAX_WAIT, response.exchange.peek(MAX_SEARCHED)).await;
        // Learn nothing from an error whose body did not arrive in time, because the rest may name
        // a model. An error that names a model means that the backend lacks the model, not the
        // endpoint.
        if whole.is_ok() && !names_a_model(&response.exchange.peeked()) {
            backend.note_missing(endpoint, status, outbound.head.uri.path());
        }
    }
}

/// True if a response shows that its backend does not accept WebSockets on a path that is also served over
/// HTTP. The client gets 426 instead of the response, because clients fall back to HTTP at once only then.
pub(super) fn refuses_websocket(outbound: &Outbound<'_>, status: StatusCode) -> bool {
    let is_handshake = outbound
        .hints
        .endpoint
        .is_some_and(EndpointKey::is_websocket);
    let is_refusal = status.is_success()
        || matches!(
            status,
            StatusCode::NOT_FOUND
                | StatusCode::METHOD_NOT_ALLOWED
                | StatusCode::UPGRADE_REQUIRED
                | StatusCode::NOT_IMPLEMENTED
        );
    is_handshake && is_refusal
}

fn names_a_model(error: &[u8]) -> bool {
    let word = b"model";
    error
        .windows(word.len())
        .any(|part| part.eq_ignore_ascii_case(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_about_a_model_is_not_about_the_endpoint() {
        for error in [
            r#"{"object":"error","message":"The model `x` does not exist.","code":404}"#,
            r#"{"error":"model 'x' not found"}"#,
            r#"{"error":{"code":"MODEL_NOT_FOUND"}}"#,
        ] {
            assert!(names_a_model(error.as_bytes()), "{error}");
        }
        for error in [
            "",
            r#"{"detail":"Not Found"}"#,
            r#"{"error":{"code":501,"message":"This server does not support embeddings."}}"#,
        ] {
            assert!(!names_a_model(error.as_bytes()), "{error}");
        }
    }
}
