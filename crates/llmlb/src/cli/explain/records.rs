//! Usage records of a request on disk: what is known of it after a restart, and how far its billing is.

use serde_json::{Map, Value};
use spool::Record;
use uuid::Uuid;

use super::{Explanation, MAX_SHOWN, Searched};
use crate::cli::args::Explain;

/// Adds the requests of the records with this id, and the places of the records to the requests that a server
/// knows. Problems are reported and stop nothing: a server may know the request.
pub(super) fn add(args: &Explain, id: &str, searched: &mut Searched, found: &mut Vec<Explanation>) {
    let dir = match args.data.directory() {
        Ok(dir) => dir,
        Err(failure) => {
            searched.problems.push(failure.message().to_owned());
            return;
        }
    };
    if !dir.is_dir() {
        searched.problems.push(format!(
            "the data directory {} does not exist",
            dir.display()
        ));
        return;
    }
    let own_id = Uuid::try_parse(id).ok();
    let mut ids = vec![id.to_owned()];
    // The requests that a server found by the ids of their records.
    ids.extend(
        found
            .iter()
            .filter_map(|one| one.text("id").map(str::to_owned)),
    );
    ids.sort_unstable();
    ids.dedup();
    for known in ids {
        // The text as a record has it, with escapes.
        let text = Value::String(known.clone()).to_string();
        let is_wanted = |record: &Record| {
            let fields = fields(record);
            Some(record.id()) == own_id
                || record.id().to_string() == known
                || fields.get("request_id").and_then(Value::as_str) == Some(id)
        };
        match spool::find(&dir, &text, MAX_SHOWN, is_wanted) {
            Ok((records, problems)) => {
                for record in records {
                    merge(record, found);
                }
                if let Some(first) = problems.first() {
                    let count = problems.len();
                    let problem = format!("{count} files with records cannot be read: {first}");
                    searched.problems.push(problem);
                }
            }
            Err(error) => searched.problems.push(error.to_string()),
        }
    }
    searched.data = Some(dir);
}

fn merge(record: spool::FoundRecord, found: &mut Vec<Explanation>) {
    let id = record.record.id().to_string();
    let place = Some((record.place, record.path));
    match found.iter_mut().find(|one| one.text("id") == Some(&*id)) {
        Some(known) => known.record = place,
        None => found.push(Explanation {
            fields: fields(&record.record),
            port: None,
            record: place,
        }),
    }
}

fn fields(record: &Record) -> Map<String, Value> {
    serde_json::from_str(record.json()).unwrap_or_default()
}
