//! A data directory with a million staged records.

use std::fs;
use std::path::{Path, PathBuf};

use spool::{Durability, Staging};

use crate::record;

pub const RECORDS: usize = 1_000_000;
/// Records per call of `stage_all`.
const RECORDS_PER_CALL: usize = 1000;

/// Stages the records, and leaves one entry open as a killed process does. Returns the data directory.
pub fn make(parent: &Path) -> PathBuf {
    let data = parent.join("data");
    let staging_dir = data.join("_staging");
    let staging = Staging::open(&staging_dir).expect("a staging directory");
    for _ in 0..RECORDS / RECORDS_PER_CALL {
        let records: Vec<_> = (0..RECORDS_PER_CALL).map(|_| record()).collect();
        staging
            .stage_all(&records, Durability::Process)
            .expect("staged records");
    }
    staging.close().expect("a sealed entry");
    abandon_one(&staging_dir);
    data
}

/// Replaces the newest entry by an open one, with half a record in place of its last line.
fn abandon_one(staging_dir: &Path) {
    let names = fs::read_dir(staging_dir).expect("the entries");
    let newest = names.map(|file| file.expect("an entry").path()).max();
    let newest = newest.expect("at least one entry");
    let mut bytes = fs::read(&newest).expect("its lines");
    let last = bytes[..bytes.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n');
    bytes.truncate(last.expect("several lines") + 1);
    bytes.extend_from_slice(br#"{"id":"01890a5d-"#);
    fs::write(newest.with_extension("jsonl.open"), bytes).expect("an open entry");
    fs::remove_file(newest).expect("a removed entry");
}

/// Returns the peak memory of this process, in MB.
pub fn peak_memory() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
}
