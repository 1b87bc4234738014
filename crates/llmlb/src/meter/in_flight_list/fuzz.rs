//! Fuzz target for the reader of in-flight lists, which reads files that a killed server or a power
//! failure left damaged.

#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "a panic is how a fuzz target reports a broken property"
)]

use super::recover::parse_header;
use super::row::{ROW_BYTES, read, repair};
use crate::config::Instance;

const INSTANCE: &str = "gpu-1:32768";

/// Fuzz target: any bytes are either rejected as the header of an in-flight list or name a valid
/// server, and any row has either no request or one whose record is valid and has the id of the
/// row.
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

fn uuid_of(row: &[u8; ROW_BYTES]) -> (u64, u64) {
    let (words, _) = row.as_chunks::<8>();
    (u64::from_ne_bytes(words[1]), u64::from_ne_bytes(words[2]))
}
