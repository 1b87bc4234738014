//! Usage records of a sandbox, read from the files of its data directory.

use std::path::Path;

use serde_json::Value;
use testkit::{Sandbox, until};

/// Returns every record in the data directory, staged or in a batch, in the order of the ids.
pub(crate) fn all(sandbox: &Sandbox) -> Vec<Value> {
    in_dir(&sandbox.data_dir())
}

/// Like [`all`], for any data directory.
pub(crate) fn in_dir(data: &Path) -> Vec<Value> {
    testkit::records::all(data).unwrap()
}

pub(crate) fn of_request(sandbox: &Sandbox, request_id: &str) -> Vec<Value> {
    testkit::records::of_request(&sandbox.data_dir(), request_id).unwrap()
}

/// Returns the only record of a request that has ended: the record is persisted before the client
/// receives the last bytes.
pub(crate) fn one(sandbox: &Sandbox, request_id: &str) -> Value {
    let mut found = of_request(sandbox, request_id);
    assert_eq!(found.len(), 1, "{request_id}: {found:#?}");
    found.remove(0)
}

/// Waits for the record of a request whose client does not see its end.
pub(crate) fn eventually(sandbox: &Sandbox, request_id: &str) -> Value {
    until("the request is recorded", || {
        !of_request(sandbox, request_id).is_empty()
    });
    one(sandbox, request_id)
}
