//! HTTP responses for connections that are closed before a request was read, so without the HTTP
//! library.

use serde_json::json;

use crate::headers::ERROR_CODE;

/// Returns an HTTP/1.1 error response in OpenAI's format as bytes, after which the connection is
/// closed. Each of `fields` is a header line that ends in `\r\n`.
pub(super) fn error(status: &str, kind: &str, code: &str, message: &str, fields: &str) -> String {
    let error = json!({ "message": message, "type": kind, "param": null, "code": code });
    let body = json!({ "error": error }).to_string();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\
         {ERROR_CODE}: {code}\r\n{fields}connection: close\r\n\r\n{body}",
        body.len()
    )
}

/// Returns the response to a request without TLS on a port that serves https.
pub(super) fn https_required() -> String {
    error(
        "400 Bad Request",
        "invalid_request_error",
        HTTPS_REQUIRED,
        "This port serves https, and the request was sent without TLS. Use https:// in the base URL.",
        "",
    )
}

/// Code of the error for a request without TLS on a port that serves https. `llmlb status`
/// recognizes the code and connects with TLS.
pub(crate) const HTTPS_REQUIRED: &str = "https_required";
