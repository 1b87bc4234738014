//! A data directory with a million records that nobody has delivered.

use std::fs;
use std::path::{Path, PathBuf};

use spool::{Durability, Staging};

use crate::record;

pub const RECORDS: usize = 1_000_000;
/// How many are handed over at once, each with its own id.
const AT_ONCE: usize = 1000;

/// Stages them, and leaves one entry as a writer does that is killed. Returns the data directory.
pub fn make(above: &Path) -> PathBuf {
    let data = above.join("data");
    let place = data.join("_staging");
    let staging = Staging::open(&place).expect("a staging directory");
    for _ in 0..RECORDS / AT_ONCE {
        let records: Vec<_> = (0..AT_ONCE).map(|_| record()).collect();
        staging
            .stage_all(&records, Durability::Process)
            .expect("they are staged");
    }
    staging.close().expect("the last seal");
    abandon_one(&place);
    data
}

/// Gives the newest entry its open name back, without its last line and with half a record.
fn abandon_one(place: &Path) {
    let names = fs::read_dir(place).expect("the entries");
    let newest = names.map(|file| file.expect("an entry").path()).max();
    let newest = newest.expect("at least one entry");
    let mut bytes = fs::read(&newest).expect("its lines");
    let last = bytes[..bytes.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n');
    bytes.truncate(last.expect("several lines") + 1);
    bytes.extend_from_slice(br#"{"id":"01890a5d-"#);
    fs::write(newest.with_extension("jsonl.open"), bytes).expect("an open entry");
    fs::remove_file(newest).expect("it is gone");
}

/// The most memory this process has had, in MB.
pub fn peak_memory() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib / 1024.0)
}
