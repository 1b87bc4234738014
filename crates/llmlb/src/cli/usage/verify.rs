//! `llmlb usage verify`: proves that every staged record is delivered, archived, pending or failed
//! exactly once, or lists the records and files for which that is not so.

use std::cell::Cell;

use serde::Serialize;
use spool::{Books, Cancel, Progress, Watch};

use super::args::ListArgs;
use super::data_dir::DataDir;
use super::json::{self, VERSION};
use super::{counted, disk};
use crate::cli::exit::{self, Failure};
use crate::cli::output;
use crate::cli::progress::ProgressLine;

#[derive(Serialize)]
struct VerifyDocument {
    version: u32,
    balanced: bool,
    staged: u64,
    delivered: u64,
    archived: u64,
    pending: u64,
    failed: u64,
    repeated: u64,
    busy: Option<Busy>,
    problems: Vec<ProblemEntry>,
}

#[derive(Serialize)]
struct Busy {
    pid: Option<u32>,
}

#[derive(Serialize)]
struct ProblemEntry {
    path: String,
    record: Option<String>,
    what: String,
}

pub(super) fn verify(args: &ListArgs, data: &DataDir, quiet: bool) -> Result<u8, Failure> {
    data.require()?;
    let bar = ProgressLine::new(quiet);
    let checked = Cell::new(0);
    let progress = |seen: Progress| {
        if let Progress::Checked { bytes, .. } = seen {
            checked.set(checked.get() + bytes);
            bar.show_text(&format!("checked {} MiB", checked.get() >> 20));
        }
    };
    let watch = Watch {
        cancel: Cancel::new(),
        progress: &progress,
    };
    let books = spool::verify(data.dir(), &watch).map_err(|error| disk(&error))?;
    drop(bar);
    if args.json {
        json::print(&document(&books))?;
    } else if books.problems.is_empty() {
        output::data(&balance(&books))?;
    } else {
        for problem in &books.problems {
            output::data(&problem.to_string())?;
        }
    }
    if let Some(busy) = books.busy {
        let pid = busy
            .pid
            .map_or_else(String::new, |pid| format!(", PID {pid}"));
        output::message(&format!(
            "another process works on this data directory{pid}: problems may be transient; when it \
             is done, repeat {}",
            data.command("verify")
        ));
    }
    data.report_lost();
    if books.problems.is_empty() {
        return Ok(exit::DONE);
    }
    let count = counted(books.problems.len() as u64, "problem");
    Err(
        Failure::new(exit::FAILED, format!("the books do not balance: {count}"))
            .hint("docs/troubleshooting.md explains each message"),
    )
}

fn balance(books: &Books) -> String {
    let Books {
        staged,
        delivered,
        archived,
        pending,
        failed,
        ..
    } = books;
    let repeated = match books.repeated {
        0 => String::new(),
        count => format!(
            " ({} staged again with the same id)",
            counted(count, "record")
        ),
    };
    format!(
        "the books balance: {staged} staged = {delivered} delivered + {archived} archived + \
         {pending} pending + {failed} failed{repeated}"
    )
}

fn document(books: &Books) -> VerifyDocument {
    VerifyDocument {
        version: VERSION,
        balanced: books.problems.is_empty(),
        staged: books.staged,
        delivered: books.delivered,
        archived: books.archived,
        pending: books.pending,
        failed: books.failed,
        repeated: books.repeated,
        busy: books.busy.map(|busy| Busy { pid: busy.pid }),
        problems: books
            .problems
            .iter()
            .map(|problem| ProblemEntry {
                path: problem.path.display().to_string(),
                record: problem.record.clone(),
                what: problem.what.clone(),
            })
            .collect(),
    }
}
