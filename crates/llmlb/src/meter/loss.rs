//! Losses of usage records because staging failed: their number, time and error, in a file that
//! outlives the server. The file is written once staging works again, since the disk may be full
//! before.
//!
//! ```text
//! {"at":"2026-11-16T12:00:00Z","records":23,"why":"..: No space left on device"}
//! ```

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::sys::data_file;

/// Maximum number of bytes that are read from `lost.jsonl`. The rest of a longer file is ignored,
/// so that a damaged file cannot use up time and memory.
const MAX_FILE: u64 = 64 << 20;

/// Name of the file in the data directory that lists the losses of usage records. The usage reports
/// read it, because totals do not include lost records.
pub(crate) const FILE: &str = "lost.jsonl";

#[derive(Debug, Serialize, Deserialize)]
struct LossEntry {
    at: String,
    records: u64,
    why: String,
}

/// Appends the number of lost usage records and the reason to `lost.jsonl`, and syncs the file.
pub(crate) fn note(data: &Path, records: u64, why: &str) -> io::Result<()> {
    let line = LossEntry {
        at: jiff::Timestamp::now().to_string(),
        records,
        why: why.to_owned(),
    };
    let mut text = serde_json::to_vec(&line)?;
    text.push(b'\n');
    let mut file = data_file::append(&data.join(FILE))?;
    // Write the line with a single call, so that servers that share the data directory cannot
    // interleave parts of their lines.
    file.write_all(&text)?;
    file.sync_data()
}

/// Returns the number of all usage records that `lost.jsonl` lists as lost; 0 if the file does not
/// exist.
pub(crate) fn total(data: &Path) -> u64 {
    let Ok(file) = data_file::open(&data.join(FILE)) else {
        return 0;
    };
    let lines = BufReader::new(file.take(MAX_FILE)).lines();
    let lines = lines.map_while(Result::ok);
    let noted = lines.filter_map(|line| serde_json::from_str::<LossEntry>(&line).ok());
    noted.fold(0, |total, line| total.saturating_add(line.records))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn total_is_the_sum_of_all_losses() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(total(dir.path()), 0);
        note(dir.path(), 23, "no space").unwrap();
        note(dir.path(), 2, "a \"reason\"\n").unwrap();
        assert_eq!(total(dir.path()), 25);
    }
}
