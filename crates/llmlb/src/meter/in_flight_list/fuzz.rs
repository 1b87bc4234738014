//! Fuzz target of the reader of lists.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use super::recover::parse_header;
use super::row::{ROW_BYTES, read, repair};
use crate::config::Instance;

const INSTANCE: &str = "gpu-1:32768";

/// Any bytes are either no header, or a header with a valid name of a server. Any row has either no request, or
/// a request whose record is valid and has the id of the row.
pub fn in_flight_list(data: &[u8]) {
    if let Ok(Some(header)) = parse_header(data) {
        assert!(Instance::parse(&header.instance).is_some());
    }
    let mut row = [0; ROW_BYTES];
    let length = data.len().min(ROW_BYTES);
    row[..length].copy_from_slice(&data[..length]);
    check(&row);
    repair(&mut row);
    check(&row);
}

fn check(row: &[u8; ROW_BYTES]) {
    let Some(request) = read(row) else {
        return;
    };
    let record = request.record(INSTANCE);
    let parsed = spool::Record::parse(record.json()).expect("the record is valid");
    assert_eq!(parsed, record);
    let id = uuid_of(row);
    assert_eq!(record.id().as_u64_pair(), id);
}

/// Returns the id of the usage record: the second and third word of a row.
fn uuid_of(row: &[u8; ROW_BYTES]) -> (u64, u64) {
    let (words, _) = row.as_chunks::<8>();
    (u64::from_ne_bytes(words[1]), u64::from_ne_bytes(words[2]))
}
