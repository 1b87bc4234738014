//! Logs HTTP/1.1 requests whose head cannot be parsed. hyper itself responds to them, so they do not pass
//! through the stages that log other requests.

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};

use super::serve::ConnectionContext;
use crate::request::{Refusal, RequestGuard};

/// Text in the access log for a method or path that is missing or invalid.
const UNKNOWN: &str = "-";

/// Logs the last request of a connection if its head could not be parsed. `unread` returns the
/// bytes of the head.
pub(crate) fn log(
    caller: &ConnectionContext,
    served: &hyper::Result<()>,
    unread: impl FnOnce() -> Option<Bytes>,
) {
    if let Err(error) = served
        && error.is_parse()
    {
        let (method, path) = first_line(&unread().unwrap_or_default());
        let client = {
            let settings = caller.worker.shared.settings();
            caller.client_address(&HeaderMap::new(), &settings.proxies)
        };
        let accounting = caller.worker.accounting();
        let mut guard = RequestGuard::unparsed(accounting, client, method, path);
        guard.note_refusal(&refusal(error));
    }
}

/// Returns the status with which hyper responds to a head that it cannot parse, and an error code
/// for the access log.
fn refusal(error: &hyper::Error) -> Refusal {
    let (status, code) = match error.to_string().as_str() {
        "URI too long" => (StatusCode::URI_TOO_LONG, "path_too_long"),
        _ if error.is_parse_too_large() => (
            StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            "header_too_large",
        ),
        _ => (StatusCode::BAD_REQUEST, "bad_head"),
    };
    Refusal::new(status, code, "")
}

/// Returns the method and the path from the first line of an invalid request, as far as they can be
/// parsed.
fn first_line(head: &[u8]) -> (Method, Box<str>) {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.trim_ascii_end().split(|byte| *byte == b' ');
    let method = words.next().unwrap_or_default();
    let method = Method::from_bytes(method).or_else(|_| Method::from_bytes(UNKNOWN.as_bytes()));
    // Omit the query from the log, because it may contain credentials.
    let path = words.next().and_then(|target| {
        let path = target.split(|byte| *byte == b'?').next()?;
        (!path.is_empty()).then(|| String::from_utf8_lossy(path).into())
    });
    (
        method.unwrap_or_default(),
        path.unwrap_or_else(|| UNKNOWN.into()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_is_parsed_as_far_as_possible() {
        for (head, method, path) in [
            (
                "GET /v1/models?key=1 HTTP/1.1\r\nhost: x",
                "GET",
                "/v1/models",
            ),
            ("POST /v1/chat", "POST", "/v1/chat"),
            ("POST\r\nhost: x", "POST", "-"),
            ("GET ?secret HTTP/1.1", "GET", "-"),
            ("G(T / HTTP/1.1", "-", "/"),
            ("", "-", "-"),
        ] {
            let (read_method, read_path) = first_line(head.as_bytes());
            assert_eq!((read_method.as_str(), &*read_path), (method, path));
        }
    }
}
