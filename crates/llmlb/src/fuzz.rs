//! Properties of the parsers that hold for any input, one function for each fuzz target.
//!
//! `cargo fuzz run -s none TARGET` searches for inputs that violate a property. `fuzz/corpus/TARGET` holds
//! inputs that reach different code, which `cargo test` replays.

pub use crate::keys::fuzz::keys_file;
pub use crate::meter::fuzz::{estimate, in_flight_list, ndjson, sse, usage_report, websocket};
pub use crate::request::fuzz::{forwarded_for, json_fields, multipart, path, query, request_body};
pub use crate::upstream::fuzz::{chunks, response_head};

#[cfg(test)]
mod tests {
    use testkit::corpus;

    use super::*;

    type FuzzTarget = fn(&[u8]);

    const TARGETS: [(&str, FuzzTarget); 15] = [
        ("chunks", chunks),
        ("estimate", estimate),
        ("forwarded_for", forwarded_for),
        ("in_flight_list", in_flight_list),
        ("json_fields", json_fields),
        ("keys_file", keys_file),
        ("multipart", multipart),
        ("ndjson", ndjson),
        ("path", path),
        ("query", query),
        ("request_body", request_body),
        ("response_head", response_head),
        ("sse", sse),
        ("usage_report", usage_report),
        ("websocket", websocket),
    ];
    /// Fuzz targets of tenure and spool, which replay their own corpora and so must not be missed
    /// here.
    const TARGETS_OF_LIBRARIES: [&str; 6] = [
        "lock_record",
        "spool_batch",
        "spool_entry",
        "spool_entry_line",
        "spool_journal",
        "spool_record",
    ];

    #[test]
    fn every_target_has_a_corpus_and_a_source_file() {
        let mut expected: Vec<_> = TARGETS.map(|(name, _)| name).to_vec();
        expected.extend(TARGETS_OF_LIBRARIES);
        expected.sort_unstable();
        assert_eq!(corpus::names(&corpus::fuzz_dir().join("corpus")), expected);
        let sources: Vec<_> = expected.iter().map(|name| format!("{name}.rs")).collect();
        let dir = corpus::fuzz_dir().join("fuzz_targets");
        assert_eq!(corpus::names(&dir), sources);
    }

    #[test]
    fn corpus_inputs_and_variations_violate_no_property() {
        for (name, target) in TARGETS {
            corpus::replay(name, target);
        }
    }
}
