//! Replays the committed inputs of the fuzz targets in `cargo test`, so that an input that once
//! made a parser fail is tested in every run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::random::Random;

/// Bytes that parsers treat as special. [`replay`] puts them into fuzz inputs at random places, so
/// that the variations reach more code of the parsers.
const SPECIAL: &[u8] = b"\"{\\\r\n%\0\xFF";

/// Directory of the fuzz targets and their corpora.
#[must_use]
pub fn fuzz_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Names of the entries of a directory, such as the inputs in a corpus. They are sorted, so that
/// every run has the same order.
#[must_use]
pub fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("the directory is readable");
    let mut names: Vec<_> = entries
        .map(|entry| entry.expect("the directory is readable").file_name())
        .map(|name| name.into_string().expect("file names are UTF-8"))
        .collect();
    names.sort();
    names
}

/// Passes every input in `fuzz/corpus/NAME` to the fuzz target, and random variations of each.
pub fn replay(name: &str, target: impl Fn(&[u8])) {
    let corpus = fuzz_dir().join("corpus").join(name);
    let files = names(&corpus);
    assert!(!files.is_empty(), "{name} has no corpus");
    let mut random = Random::new(1);
    for file in files {
        let input = fs::read(corpus.join(&file)).expect("the input is readable");
        target(&input);
        for _ in 0..8 {
            let mut input = input.clone();
            input.truncate(index(&mut random, input.len() + 1));
            target(&input);
            if !input.is_empty() {
                let at = index(&mut random, input.len());
                input[at] = SPECIAL[index(&mut random, SPECIAL.len())];
                target(&input);
            }
        }
    }
}

fn index(random: &mut Random, end: usize) -> usize {
    usize::try_from(random.below(end as u64)).unwrap_or_default()
}
