//! Usage records, read from the files of a data directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::wait::try_eventually;

/// Returns every record in a data directory, staged or in a batch, in the order of the ids.
pub fn all(data_dir: &Path) -> io::Result<Vec<Value>> {
    let mut records = BTreeMap::new();
    // Records move from staging to the spool and then to the archive. Reading in this order misses
    // no record while a server consolidates.
    for (dir, is_batch) in [("_staging", false), ("spool", true), ("archive", true)] {
        for text in texts(&data_dir.join(dir))? {
            let found = if is_batch { batch(&text) } else { entry(&text) };
            for record in found {
                let id = record["id"].as_str().unwrap_or_default().to_owned();
                let known = records.insert(id, record.clone());
                if known.is_some_and(|known| known != record) {
                    let error = format!("two different records with one id: {record}");
                    return Err(io::Error::new(io::ErrorKind::InvalidData, error));
                }
            }
        }
    }
    Ok(records.into_values().collect())
}

/// Returns the records of the request with this id (`x-request-id`).
pub fn of_request(data_dir: &Path, request_id: &str) -> io::Result<Vec<Value>> {
    let mut records = all(data_dir)?;
    records.retain(|record| record["request_id"] == request_id);
    Ok(records)
}

/// Returns the texts of the record files in a directory. If a file is renamed meanwhile, the whole
/// directory is read again, so that no record is missed.
fn texts(dir: &Path) -> io::Result<Vec<String>> {
    let texts = try_eventually("the directory can be read", || match try_texts(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            (!dir.exists()).then(|| Ok(Vec::new()))
        }
        texts => Some(texts),
    });
    texts.map_err(|timed_out| io::Error::new(io::ErrorKind::TimedOut, timed_out))?
}

fn try_texts(dir: &Path) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for file in fs::read_dir(dir)? {
        let file = file?;
        let name = file.file_name();
        let name = name.to_string_lossy();
        let is_record_file = [".json", ".jsonl", ".jsonl.open"]
            .iter()
            .any(|end| name.ends_with(end));
        if is_record_file && !name.starts_with('.') {
            texts.push(String::from_utf8_lossy(&fs::read(file.path())?).into_owned());
        }
    }
    Ok(texts)
}

/// Returns the records of a staged entry. An incomplete last line is ignored, because the server
/// may be writing it.
fn entry(text: &str) -> Vec<Value> {
    let line = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        Some(line["record"].clone()).filter(Value::is_object)
    };
    text.lines().filter_map(line).collect()
}

fn batch(text: &str) -> Vec<Value> {
    let batch: Value = serde_json::from_str(text).unwrap_or_default();
    batch["records"].as_array().cloned().unwrap_or_default()
}
