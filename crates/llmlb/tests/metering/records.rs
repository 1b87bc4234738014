//! Usage records of a sandbox, read from the files of its data directory.

use std::path::Path;

use serde_json::Value;
use testkit::{Sandbox, until};

/// Every record in the data directory, staged or in a batch, by its id.
pub(crate) fn all(place: &Sandbox) -> Vec<Value> {
    in_dir(&place.data_dir())
}

/// As [`all`], of any data directory.
pub(crate) fn in_dir(data: &Path) -> Vec<Value> {
    testkit::records::all(data).unwrap()
}

/// The records with the id that a client gave its request.
pub(crate) fn of_request(place: &Sandbox, request_id: &str) -> Vec<Value> {
    testkit::records::of_request(&place.data_dir(), request_id).unwrap()
}

/// The one record of a request that has ended: it is persisted already.
pub(crate) fn one(place: &Sandbox, request_id: &str) -> Value {
    let mut found = of_request(place, request_id);
    assert_eq!(found.len(), 1, "{request_id}: {found:#?}");
    found.remove(0)
}

/// Waits for the record of a request whose client does not see its end.
pub(crate) fn eventually(place: &Sandbox, request_id: &str) -> Value {
    until("there is a record", || {
        !of_request(place, request_id).is_empty()
    });
    one(place, request_id)
}
