//! Code that the benchmarks of spool share.
//!
//! The benchmarks print their results and panic on errors.

pub mod backlog;
mod load;
pub mod segment;
pub mod sqlite;

use std::path::PathBuf;
use std::sync::LazyLock;

use spool::{Grouping, Options, Record};
use uuid::Uuid;

pub use load::{Measured, median, produce};

/// A record of 305 bytes, as a proxy would bill one request.
pub fn record() -> Record {
    record_with(Uuid::now_v7())
}

/// A record of 305 bytes with this id.
pub fn record_with(id: Uuid) -> Record {
    static TEXT: LazyLock<String> = LazyLock::new(text);
    Record::parse_with_id(&TEXT, id).expect("a record")
}

/// Options of consolidation with totals by the fields of [`record`].
pub fn options() -> Options {
    let mut options = Options::default();
    options.grouping = Grouping::by(["model", "endpoint"])
        .sum(["tokens_in", "tokens_out"])
        .total_from(["tokens_in", "tokens_out"])
        .count(["status"]);
    options
}

fn text() -> String {
    let text = r#"{"time":"2026-01-01T00:00:00Z","model":"llama-3.3-70b-instruct","endpoint":"gpu-07","user":"#;
    let rest = r#""tokens_in":1532,"tokens_out":411,"millis":8123,"stream":true,"status":200"#;
    let length = 305 - r#","id":"00000000-0000-0000-0000-000000000000""#.len();
    let filler = "x".repeat(length - text.len() - rest.len() - r#""",}"#.len());
    format!(r#"{text}"{filler}",{rest}}}"#)
}

/// Creates a directory below the last argument, or below the current directory. It is removed at the
/// end, so that no deletion disturbs a measurement.
pub fn directory() -> tempfile::TempDir {
    let words = std::env::args().skip(1);
    let parent = words
        .last()
        .map_or_else(|| PathBuf::from("."), PathBuf::from);
    tempfile::tempdir_in(parent).expect("a directory")
}
