//! What a server wrote down, read as anyone can read it: from the files of its data directory.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde_json::Value;

use crate::process;
use crate::support::Place;

/// Every record in the data directory of a place, wherever it has got to, by its id.
pub(crate) fn all(place: &Place) -> Vec<Value> {
    in_dir(&place.path("data"))
}

/// As [`all`], of any data directory.
pub(crate) fn in_dir(data: &Path) -> Vec<Value> {
    let mut found = BTreeMap::new();
    // In the order in which records move on: none is missed.
    for (dir, is_batch) in [("_staging", false), ("spool", true), ("archive", true)] {
        for text in texts(&data.join(dir)) {
            let records = if is_batch { batch(&text) } else { entry(&text) };
            for record in records {
                let id = record["id"].as_str().expect("an id").to_owned();
                if let Some(before) = found.insert(id, record.clone()) {
                    assert_eq!(before, record, "two records with one id");
                }
            }
        }
    }
    found.into_values().collect()
}

/// The records with the id that a client gave its request.
pub(crate) fn of_request(place: &Place, request_id: &str) -> Vec<Value> {
    let all = all(place);
    let is_its = |record: &Value| record["request_id"] == request_id;
    all.into_iter().filter(is_its).collect()
}

/// The one record of a request that is over: it is there already.
pub(crate) fn one(place: &Place, request_id: &str) -> Value {
    let mut found = of_request(place, request_id);
    assert_eq!(found.len(), 1, "{request_id}: {found:#?}");
    found.remove(0)
}

/// Waits for the record of a request whose client does not see its end.
pub(crate) fn eventually(place: &Place, request_id: &str) -> Value {
    process::until("there is a record", || {
        !of_request(place, request_id).is_empty()
    });
    one(place, request_id)
}

/// The texts of all files in a directory. One that is renamed meanwhile is looked for again.
fn texts(dir: &Path) -> Vec<String> {
    process::eventually("the directory can be read", || match try_texts(dir) {
        Ok(texts) => Some(texts),
        Err(error) if error.kind() == io::ErrorKind::NotFound => (!dir.exists()).then(Vec::new),
        Err(error) => panic!("{}: {error}", dir.display()),
    })
}

fn try_texts(dir: &Path) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for file in fs::read_dir(dir)? {
        let file = file?;
        let name = file.file_name();
        let name = name.to_string_lossy();
        let is_ours = [".json", ".jsonl", ".jsonl.open"]
            .iter()
            .any(|end| name.ends_with(end));
        if is_ours && !name.starts_with('.') {
            texts.push(String::from_utf8_lossy(&fs::read(file.path())?).into_owned());
        }
    }
    Ok(texts)
}

/// The records of an entry; half a line at its end is none.
fn entry(text: &str) -> Vec<Value> {
    let lines = text.lines().filter_map(|line| {
        let line: Value = serde_json::from_str(line).ok()?;
        Some(line["record"].clone()).filter(Value::is_object)
    });
    lines.collect()
}

fn batch(text: &str) -> Vec<Value> {
    let batch: Value = serde_json::from_str(text).unwrap_or_default();
    batch["records"].as_array().cloned().unwrap_or_default()
}
