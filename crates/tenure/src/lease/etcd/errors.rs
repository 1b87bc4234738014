//! Classification of etcd errors: the reason for messages, and whether a later request may succeed.

use std::error::Error as _;

use super::super::backend::StoreError;
use super::super::bridge::describe_sources;

// Codes of gRPC.
const INVALID_ARGUMENT: i32 = 3;
pub(super) const NOT_FOUND: i32 = 5;
const PERMISSION_DENIED: i32 = 7;
pub(super) const FAILED_PRECONDITION: i32 = 9;
const OUT_OF_RANGE: i32 = 11;
const UNIMPLEMENTED: i32 = 12;
const DATA_LOSS: i32 = 15;

/// True if the etcd server responded with this status code and a message that contains this text.
/// etcd uses one code for several errors, which only the text distinguishes.
pub(super) fn is_status(error: &etcd_client::Error, code: i32, text: &str) -> bool {
    match error {
        etcd_client::Error::GRpcStatus(status) => {
            i32::from(status.code()) == code && status.message().contains(text)
        }
        _ => false,
    }
}

pub(super) fn to_store_error(error: &etcd_client::Error) -> StoreError {
    let etcd_client::Error::GRpcStatus(status) = error else {
        let invalid = matches!(
            error,
            etcd_client::Error::InvalidArgs(_) | etcd_client::Error::InvalidUri(_)
        );
        let why = match error {
            etcd_client::Error::TransportError(error) => describe_sources(error),
            error => describe_sources(error),
        };
        return if invalid {
            StoreError::fatal(why)
        } else {
            StoreError::transient(why)
        };
    };
    let code = i32::from(status.code());
    // The causes of an error describe the connection. An error that the server sent has no causes,
    // and its message is used.
    let why = match status.source() {
        Some(cause) => describe_sources(cause),
        None => crate::text::sanitize_name(status.message().to_owned()),
    };
    if code == INVALID_ARGUMENT && why.contains("user name is empty") {
        return StoreError::fatal(
            "the server requires a user; write etcd://USER@HOST:PORT?password_file=PATH",
        );
    }
    // Another client changed etcd's users or roles during the request. The next request uses the
    // new state, so this error is temporary.
    let is_outdated = why.contains("revision of auth store is old");
    let fatal = matches!(
        code,
        INVALID_ARGUMENT
            | PERMISSION_DENIED
            | FAILED_PRECONDITION
            | OUT_OF_RANGE
            | UNIMPLEMENTED
            | DATA_LOSS
    );
    if fatal && !is_outdated {
        StoreError::fatal(why)
    } else {
        StoreError::transient(why)
    }
}

pub(super) fn unexpected() -> StoreError {
    StoreError::fatal("the server sent an unexpected response")
}
