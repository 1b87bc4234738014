//! Records that could not be kept: how many, when and why, in a file that outlives the server. It is
//! written when there is room again.
//!
//! ```text
//! {"at":"2026-11-16T12:00:00Z","records":23,"why":"..: No space left on device"}
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::sys::data_file;

/// The rest of a longer file is not read.
const LONGEST_FILE: u64 = 64 << 20;

/// In the data directory.
pub(crate) const FILE: &str = "lost.jsonl";

#[derive(Debug, Serialize, Deserialize)]
struct Line {
    at: String,
    records: u64,
    why: String,
}

/// Adds to the file.
pub(crate) fn note(data: &Path, records: u64, why: &str) -> io::Result<()> {
    let line = Line {
        at: jiff::Timestamp::now().to_string(),
        records,
        why: why.to_owned(),
    };
    let mut text = serde_json::to_vec(&line)?;
    text.push(b'\n');
    let mut file = data_file::append(&data.join(FILE))?;
    // At once, so that there is never half a line.
    file.write_all(&text)?;
    file.sync_data()
}

/// How many there were in all; none if there is no such file.
pub(crate) fn total(data: &Path) -> u64 {
    let Ok(file) = data_file::open(&data.join(FILE)) else {
        return 0;
    };
    let lines = BufReader::new(file.take(LONGEST_FILE)).lines();
    let lines = lines.map_while(Result::ok);
    let noted = lines.filter_map(|line| serde_json::from_str::<Line>(&line).ok());
    noted.fold(0, |total, line| total.saturating_add(line.records))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_add_up() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(total(dir.path()), 0);
        note(dir.path(), 23, "no space").unwrap();
        note(dir.path(), 2, "a \"reason\"\n").unwrap();
        assert_eq!(total(dir.path()), 25);
    }
}
