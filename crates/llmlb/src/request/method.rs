//! The methods that are served. Any other one is rejected before the request is read further.

use http::{Method, StatusCode};

use super::Refusal;
use crate::endpoint;
use crate::text;

/// Maximum number of characters of an unknown method in a message or in the log. A client may send
/// tens of kilobytes.
pub(super) const SHOWN: usize = 32;

/// 405 for methods that HTTP defines and llmlb does not serve, 501 for all others (RFC 9110,
/// section 9.1).
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
                text::shortened(method.as_str(), SHOWN)
            ),
        )),
    }
}
