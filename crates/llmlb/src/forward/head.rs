//! Writes the head of a request to a backend.

use std::cell::Cell;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, request};

use super::Via;
use crate::balance::Backend;
use crate::config::{BackendUrl, Kind};
use crate::dropped_headers::DroppedHeaders;
use crate::headers::{self, HeaderAction, HeaderPatterns, REQUEST_ID, RequestContext};
use crate::trace_context::TraceFields;

/// Header fields that llmlb adds to a request for a backend, and rules for the client's fields.
#[derive(Debug)]
pub(super) struct ProxyHeaders<'a> {
    pub(super) via: &'a Via,
    pub(super) id: &'a HeaderValue,
    /// Protocol that the client requests to switch to, such as `websocket`. `None` if the request
    /// has no upgrade.
    pub(super) upgrade: Option<&'a HeaderValue>,
    /// Names of client header fields that are forwarded in addition to the default ones
    /// (`upstream.forward_headers`).
    pub(super) extra: &'a HeaderPatterns,
    /// Set if the client asks why its backend is selected. Noted here, because only the head's writer reads all
    /// names.
    pub(super) asks_why: &'a Cell<bool>,
    /// `traceparent` of the attempt; `None` if the client's is forwarded.
    pub(super) traceparent: Option<&'a [u8]>,
    /// Counts of the client's header fields that are not forwarded, by name, for `/status`.
    pub(super) dropped: &'a DroppedHeaders,
}

/// Length and kind of a request's body, which the head announces to the backend.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyFraming {
    pub(super) length: Option<u64>,
    /// True if llmlb streams the body to the backend without parsing it. The body may then be
    /// compressed, so the client's `Content-Encoding` is forwarded.
    pub(super) is_unread: bool,
}

/// Writes the head of a request to a backend. Fields that are meant for llmlb or for the client's
/// connection, such as credentials, are left out.
pub(super) fn write(
    head: &request::Parts,
    target: &str,
    backend: &Backend,
    proxy: &ProxyHeaders<'_>,
    body: BodyFraming,
) -> Bytes {
    let mut out = Vec::with_capacity(1024);
    line(&mut out, &head.method, backend, target);
    let named = named_by_connection(&head.headers);
    let context = RequestContext {
        method: &head.method,
        is_upgrade: proxy.upgrade.is_some(),
        is_unread: body.is_unread,
        extra: proxy.extra,
    };
    let trace = TraceFields::new(proxy.traceparent.is_some());
    for (name, value) in &head.headers {
        match context.action(name.as_str()) {
            HeaderAction::Consume => {
                if headers::asks_why(name.as_str(), value) {
                    proxy.asks_why.set(true);
                }
                continue;
            }
            HeaderAction::Drop => {
                proxy.dropped.count(name.as_str());
                continue;
            }
            HeaderAction::Forward
                if named.contains(name) || !trace.forwards(name.as_str(), &head.headers) =>
            {
                continue;
            }
            HeaderAction::Forward => {}
        }
        if *name == header::SEC_WEBSOCKET_PROTOCOL {
            field(&mut out, name.as_str(), &without_key(value.as_bytes()));
        } else if *name == header::ACCEPT {
            field(&mut out, name.as_str(), headers::accept(value.as_bytes()));
        } else {
            field(&mut out, name.as_str(), value.as_bytes());
        }
    }
    // Request an uncompressed response, because the meter reads the response.
    field(&mut out, "accept-encoding", b"identity");
    let has_body = body.length != Some(0);
    match body.length {
        // A GET, HEAD, OPTIONS or DELETE without a body needs no Content-Length.
        Some(0) if head.method.is_safe() || head.method == Method::DELETE => {}
        Some(length) => {
            let mut digits = itoa::Buffer::new();
            let length = digits.format(length);
            field(&mut out, "content-length", length.as_bytes());
        }
        None => field(&mut out, "transfer-encoding", b"chunked"),
    }
    if has_body && head.method == Method::DELETE {
        // Close the connection after a DELETE with a body: many servers do not read that body, and
        // would parse it as the next request on the connection.
        field(&mut out, "connection", b"close");
    }
    if let Some(protocol) = proxy.upgrade {
        field(&mut out, "connection", b"upgrade");
        field(&mut out, "upgrade", protocol.as_bytes());
    }
    if let Some(traceparent) = proxy.traceparent {
        field(&mut out, "traceparent", traceparent);
    }
    proxy.via.write(&head.headers, &mut out);
    field(&mut out, REQUEST_ID.as_str(), proxy.id.as_bytes());
    credential(&mut out, backend);
    out.extend_from_slice(b"\r\n");
    out.into()
}

/// Returns the head of a GET request for this path that llmlb itself sends to probe a backend.
pub(crate) fn probe_head(backend: &Backend, path: &str) -> Bytes {
    let mut out = Vec::with_capacity(256);
    line(&mut out, &Method::GET, backend, path);
    field(&mut out, "accept", b"application/json");
    field(&mut out, "connection", b"close");
    if backend.kind() == Some(Kind::Anthropic) {
        // Anthropic's API rejects requests without this header field, so the probe would fail.
        field(&mut out, "anthropic-version", b"2023-06-01");
    }
    credential(&mut out, backend);
    out.extend_from_slice(b"\r\n");
    out.into()
}

fn line(out: &mut Vec<u8>, method: &Method, backend: &Backend, target: &str) {
    out.extend_from_slice(method.as_str().as_bytes());
    out.push(b' ');
    out.extend_from_slice(backend.url.prefix().as_bytes());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    field(out, "host", host(&backend.url).as_bytes());
}

/// Returns the value of `Host` for a backend's URL, without the scheme's default port.
fn host(url: &BackendUrl) -> &str {
    let default_port = if url.is_https() { ":443" } else { ":80" };
    let authority = url.authority().as_str();
    authority.strip_suffix(default_port).unwrap_or(authority)
}

/// Removes the client's key from `Sec-WebSocket-Protocol`, so that no backend sees the key.
fn without_key(protocols: &[u8]) -> Vec<u8> {
    protocols
        .split(|byte| *byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|one| headers::secret_of_protocol(one).is_none())
        .collect::<Vec<_>>()
        .join(&b", "[..])
}

fn credential(out: &mut Vec<u8>, backend: &Backend) {
    if let Some((name, value)) = &backend.settings.credential {
        field(out, name.as_str(), value.as_bytes());
    }
}

fn field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Returns the names of header fields in `Connection`, which are not forwarded. `Content-Type` is
/// forwarded even if it is among them, because the body's meaning depends on it.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| *name != header::CONTENT_TYPE)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_among_the_protocols_is_not_forwarded() {
        let passed = |text: &str| String::from_utf8(without_key(text.as_bytes())).unwrap();
        let given = "realtime, openai-insecure-api-key.sk-1,openai-beta.realtime-v1, OpenAI-Insecure-API-Key.sk-2";
        assert_eq!(passed(given), "realtime, openai-beta.realtime-v1");
        assert_eq!(passed("graphql-ws"), "graphql-ws");
    }
}
