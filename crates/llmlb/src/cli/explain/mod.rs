//! `llmlb explain`: why a request went to its backend, what each attempt took, and whether its usage is billed.
//!
//! `servers` asks the running servers, `records` searches the usage records on disk, so that the command works
//! after a restart too. `text` prints in words. Prompts and responses are never known.

mod errors;
mod records;
mod servers;
mod text;

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::args::Explain;
use super::exit::{self, Failure};
use super::output;

/// Maximum number of requests with one id that are shown.
const MAX_SHOWN: usize = 10;

/// A request, from a running server or from its usage record. Both have the same names of fields.
#[derive(Debug)]
struct Explanation {
    fields: Map<String, Value>,
    /// Port of the server that knows the request; `None` if only the record is known.
    port: Option<u16>,
    /// Directory and file of the usage record, if it is on disk.
    record: Option<(spool::Place, PathBuf)>,
}

/// Places that were searched, for the message if nothing was found.
#[derive(Debug, Default)]
struct Searched {
    /// Ports of servers that responded.
    ports: Vec<u16>,
    data: Option<PathBuf>,
    /// Reasons why a place could not be searched.
    problems: Vec<String>,
}

pub(super) fn explain(args: &Explain) -> Result<u8, Failure> {
    let Some(id) = &args.id else {
        return errors::list(args);
    };
    let mut searched = Searched::default();
    let mut found = servers::find(args, id, &mut searched);
    records::add(args, id, &mut searched, &mut found);
    if found.is_empty() {
        return Err(not_found(id, &searched));
    }
    // Ids of records sort by time.
    found.sort_by(|one, other| other.text("id").cmp(&one.text("id")));
    found.truncate(MAX_SHOWN);
    if args.json {
        let requests: Vec<Value> = found.iter().map(Explanation::json).collect();
        output::data(&output::json(
            &json!({ "version": 1, "requests": requests }),
        )?)?;
    } else {
        let requests: Vec<String> = found.iter().map(text::render).collect();
        output::data(&requests.join("\n\n"))?;
        if let [_, _, ..] = found.as_slice() {
            output::message(&format!(
                "{} requests have this id, the latest one first: clients choose x-request-id",
                found.len()
            ));
        }
    }
    for problem in searched.problems {
        output::message(&problem);
    }
    Ok(exit::DONE)
}

impl Explanation {
    fn text(&self, name: &str) -> Option<&str> {
        self.fields.get(name)?.as_str()
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.fields.get(name)?.as_u64()
    }

    fn list(&self, name: &str) -> &[Value] {
        let list = self.fields.get(name).and_then(Value::as_array);
        list.map_or(&[], Vec::as_slice)
    }

    /// State of the usage record as a word.
    fn billing(&self) -> &'static str {
        use spool::Place;
        match &self.record {
            Some((Place::Staged, _)) => "staged",
            Some((Place::Pending, _)) => "pending",
            Some((Place::Archived, _)) => "archived",
            Some((Place::Failed, _)) => "failed",
            _ if self.fields.get("recorded") == Some(&Value::Bool(false)) => "not_recorded",
            _ => "not_on_disk",
        }
    }

    fn json(&self) -> Value {
        let mut fields = self.fields.clone();
        let file = self.record.as_ref();
        let file = file.map(|(_, file)| file.to_string_lossy().into_owned());
        fields.insert("server_port".to_owned(), self.port.into());
        fields.insert("billing".to_owned(), self.billing().into());
        fields.insert("record_file".to_owned(), file.into());
        Value::Object(fields)
    }
}

fn not_found(id: &str, searched: &Searched) -> Failure {
    let servers = match searched.ports.as_slice() {
        [] => "no server responded".to_owned(),
        ports => {
            let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
            format!(
                "it is not among the recent requests of port {}",
                ports.join(", ")
            )
        }
    };
    let data = match &searched.data {
        Some(dir) => format!("no usage record in {} has it", dir.display()),
        None => "no data directory was searched".to_owned(),
    };
    let message = format!("no finished request has the id {id}: {servers}, and {data}");
    let mut failure = Failure::new(exit::FAILED, message);
    for problem in &searched.problems {
        failure = failure.hint(problem.clone());
    }
    failure
        .hint(format!(
            "search the log, which has every request: `journalctl -u llmlb | grep id={id}`"
        ))
        .hint(format!(
            "name the data directory of the server: `llmlb explain --data DIR {id}`"
        ))
        .hint("delivered records are no longer on disk: the receiver has them")
}
