//! Rejects requests with a method that llmlb does not serve, before they are read further.

use http::{Method, StatusCode};

use super::Refusal;
use crate::endpoint;
use crate::text;

/// Maximum number of characters of an unknown method in a message or in the log. A client may send
/// a method of tens of kilobytes.
pub(super) const MAX_SHOWN: usize = 32;

/// Rejects the method if it is not served: 405 for methods of HTTP, 501 for all others (RFC 9110, section 9.1).
pub(crate) fn check(method: &Method) -> Result<(), Refusal> {
    match *method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::PATCH
        | Method::DELETE
        | Method::OPTIONS => Ok(()),
        Method::CONNECT | Method::TRACE => Err(Refusal::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            format!("The method {method} is not served."),
        )
        .allow(endpoint::METHODS)),
        _ => Err(Refusal::new(
            StatusCode::NOT_IMPLEMENTED,
            "method_not_implemented",
            format!(
                "The method `{}` is not known.",
                text::shortened(method.as_str(), MAX_SHOWN)
            ),
        )),
    }
}
