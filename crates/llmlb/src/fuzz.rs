//! Properties of the parsers that hold for any input, one function for each fuzz target.
//!
//! `cargo fuzz run -s none TARGET` searches for inputs that violate a property. `fuzz/corpus/TARGET` holds
//! inputs that reach different code, which `cargo test` replays.

pub use crate::meter::fuzz::{estimate, ndjson, sse, usage_report};
pub use crate::request::fuzz::{forwarded_for, json_fields, multipart, path, query, request_body};
pub use crate::upstream::fuzz::{chunks, response_head};

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::dice::Dice;

    type FuzzTarget = fn(&[u8]);

    const TARGETS: [(&str, FuzzTarget); 12] = [
        ("chunks", chunks),
        ("estimate", estimate),
        ("forwarded_for", forwarded_for),
        ("json_fields", json_fields),
        ("multipart", multipart),
        ("ndjson", ndjson),
        ("path", path),
        ("query", query),
        ("request_body", request_body),
        ("response_head", response_head),
        ("sse", sse),
        ("usage_report", usage_report),
    ];

    fn directory() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
        let mut names: Vec<_> = entries
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Replays the corpus of one target, and random variations of its inputs.
    fn replay(name: &str, target: FuzzTarget) {
        let corpus = directory().join("corpus").join(name);
        let files = names(&corpus);
        assert!(!files.is_empty(), "{name} has no corpus");
        let mut dice = Dice::new(1);
        for file in files {
            let data = fs::read(corpus.join(&file)).unwrap();
            target(&data);
            for _ in 0..8 {
                let mut data = data.clone();
                data.truncate(dice.below(data.len() + 1));
                target(&data);
                if !data.is_empty() {
                    let at = dice.below(data.len());
                    data[at] =
                        *dice.pick(&[&b'"', &b'{', &b'\\', &b'\r', &b'\n', &b'%', &0, &0xFF]);
                    target(&data);
                }
            }
        }
    }

    #[test]
    fn every_target_has_a_corpus_and_a_source_file() {
        let expected: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(names(&directory().join("corpus")), expected);
        let sources: Vec<_> = expected.iter().map(|name| format!("{name}.rs")).collect();
        assert_eq!(names(&directory().join("fuzz_targets")), sources);
    }

    #[test]
    fn corpus_inputs_and_variations_violate_no_property() {
        for (name, target) in TARGETS {
            replay(name, target);
        }
    }
}
