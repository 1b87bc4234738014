//! What the benchmarks of spool share.
//!
//! They report to a person and end where they cannot go on, so they print and expect.

pub mod backlog;
mod load;
pub mod segment;
pub mod sqlite;

use std::path::PathBuf;

use spool::Record;

pub use load::{Measured, median, produce};

/// A record of 305 bytes, as a proxy would bill one request.
pub fn record() -> Record {
    let text = r#"{"time":"2026-01-01T00:00:00Z","model":"llama-3.3-70b-instruct","endpoint":"gpu-07","user":"#;
    let rest = r#""tokens_in":1532,"tokens_out":411,"millis":8123,"stream":true,"status":200"#;
    let length = 305 - r#","id":"00000000-0000-0000-0000-000000000000""#.len();
    let filler = "x".repeat(length - text.len() - rest.len() - r#""",}"#.len());
    let record = Record::parse(&format!(r#"{text}"{filler}",{rest}}}"#)).expect("a record");
    assert_eq!(record.json().len(), 305);
    record
}

/// A fresh directory for one run, below the first argument or here. It is removed when dropped:
/// at the end, so that nothing is deleted while something else is measured.
pub fn directory() -> tempfile::TempDir {
    let words = std::env::args().skip(1);
    let above = words
        .last()
        .map_or_else(|| PathBuf::from("."), PathBuf::from);
    tempfile::tempdir_in(above).expect("a directory")
}
