//! Decides about WebSocket handshakes: some are forwarded, the others get a 426, so that the client
//! uses HTTP.

use http::{Method, Request, Version, header};
use hyper::body::Incoming;

use crate::balance::{EndpointKey, Route, Table};
use crate::endpoint::{self, Api, Endpoint, WebSocketUse};
use crate::request::{Refusal, no_websocket};

/// True if the client requests an upgrade to WebSocket.
pub(super) fn is_requested(request: &Request<Incoming>) -> bool {
    request.version() == Version::HTTP_11
        && request.method() == Method::GET
        // Accept no upgrade to another protocol: its requests would be neither checked nor metered.
        && request
            .headers()
            .get(header::UPGRADE)
            .is_some_and(|protocol| protocol.as_bytes().eq_ignore_ascii_case(b"websocket"))
        && request
            .headers()
            .get_all(header::CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
}

/// Returns the endpoint of a WebSocket on this path, or the error with which the handshake is
/// rejected.
pub(super) fn admit(table: &Table, endpoint: Endpoint, path: &str) -> Result<Endpoint, Refusal> {
    match endpoint::websocket_use(endpoint, path) {
        WebSocketUse::Always => Ok(endpoint),
        // A GET of this path without an upgrade returns stored responses and is not metered. A
        // WebSocket creates responses, so it needs the metered endpoint.
        WebSocketUse::IfAccepted if table.accepts_websocket(EndpointKey::websocket(path)) => {
            Ok(Endpoint {
                api: Api::Responses,
                ..endpoint
            })
        }
        WebSocketUse::IfAccepted | WebSocketUse::Never => Err(no_websocket(path)),
    }
}

/// Rejects a handshake if no backend that serves its model accepts WebSockets on this path, by the
/// configuration (`backend.websocket`) or an earlier handshake. The client then uses HTTP at once.
pub(super) fn check_route(route: &Route, endpoint: Endpoint, path: &str) -> Result<(), Refusal> {
    match endpoint_key(endpoint, path) {
        Some(key) if !route.accepts_websocket(key) => Err(no_websocket(path)),
        _ => Ok(()),
    }
}

/// Returns the key under which llmlb remembers that a backend accepts WebSockets on this path. `None` for paths
/// whose handshakes are always forwarded.
pub(super) fn endpoint_key(endpoint: Endpoint, path: &str) -> Option<EndpointKey> {
    let websocket_use = endpoint::websocket_use(endpoint, path);
    (websocket_use == WebSocketUse::IfAccepted).then(|| EndpointKey::websocket(path))
}
