//! List of the last failed requests, whose ids `llmlb explain ID` takes.

use serde_json::{Value, json};

use super::{Searched, servers};
use crate::cli::args::Explain;
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::cli::table;

/// Maximum number of failed requests that are shown.
const MAX_SHOWN: usize = 50;
const HEAD: [&str; 7] = [
    "TIME",
    "STATUS",
    "CODE",
    "MODEL",
    "BACKEND",
    "KEY",
    "REQUEST ID",
];

pub(super) fn list(args: &Explain) -> Result<u8, Failure> {
    let mut searched = Searched::default();
    let mut errors = servers::errors(args, &mut searched);
    let time = |error: &Value| error["at"].as_str().unwrap_or_default().to_owned();
    errors.sort_by_key(|(_, error)| std::cmp::Reverse(time(error)));
    errors.truncate(MAX_SHOWN);
    if searched.ports.is_empty() {
        let mut failure = Failure::new(exit::FAILED, "no server responded");
        for problem in searched.problems {
            failure = failure.hint(problem);
        }
        return Err(failure
            .hint("explain a request of a server that has stopped: `llmlb explain REQUEST_ID`"));
    }
    if args.json {
        let errors = errors.into_iter().map(|(port, mut error)| {
            error["server_port"] = port.into();
            error
        });
        let errors: Vec<Value> = errors.collect();
        output::data(&output::json(&json!({ "version": 1, "errors": errors }))?)?;
    } else if errors.is_empty() {
        output::data("No request has failed recently")?;
    } else {
        let mut rows = vec![HEAD.map(str::to_owned).to_vec()];
        rows.extend(errors.iter().map(|(_, error)| row(error)));
        output::data(&table::aligned(&rows))?;
    }
    for problem in searched.problems {
        output::message(&problem);
    }
    Ok(exit::DONE)
}

fn row(error: &Value) -> Vec<String> {
    let text = |name: &str| error[name].as_str().unwrap_or("-").to_owned();
    let status = match error["status"].as_u64() {
        None | Some(0) => "-".to_owned(),
        Some(status) => status.to_string(),
    };
    let code = error["code"].as_str().or(error["outcome"].as_str());
    vec![
        text("at"),
        status,
        code.unwrap_or("-").to_owned(),
        text("model"),
        text("backend"),
        text("key"),
        text("id"),
    ]
}
